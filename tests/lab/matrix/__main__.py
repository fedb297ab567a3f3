"""The fault matrix: every fault at every moment in every mode, on two boxes of a lab.

    python -m tests.lab.matrix [--short] [--only WORD,…] [--seconds N] [--again]

Results are kept a line a cell in `tests/bench/results/faults.jsonl`, so that a run goes on
where the last one ended; the table is `tests/bench/results/faults.md`. Exit 1 when a cell that
ran was not as it must be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.api import running_lab
from tests.lab.matrix.cells import Cell, all_cells, short_cells
from tests.lab.matrix.run import Known, Result, run_cell
from tests.lab.matrix.stand import standing
from tests.lab.matrix.table import JSONL, keep, read, write_table
from tests.lab.store import CHECKOUT

LINK = "30mbit"
"""A prompt's KV takes four seconds and more, so that a hand-off outlasts its prefill."""


def chosen_cells(args: argparse.Namespace, done: dict[str, Result]) -> list[Cell]:
    """The cells that are asked for and not done yet."""
    cells = short_cells() if args.short else all_cells()
    words = [word for word in (args.only or "").split(",") if word]
    return [
        cell
        for cell in cells
        if cell.why_not is None
        and (args.again or cell.name not in done or not done[cell.name].ok)
        and (not words or all(any(p in cell.name for p in w.split("|")) for w in words))
    ]


def run_cells(cells: Sequence[Cell], seconds: float, subnet: str) -> list[Result]:
    """Run them, those through the wire on a deployment of their own."""
    end_s = time.monotonic() + seconds
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="homesplit-matrix-") as folder,
        running_lab(2, LINK, subnet=subnet) as lab,
    ):
        for wire in (False, True):
            part = [cell for cell in cells if cell.through_wire == wire]
            if not part or time.monotonic() > end_s:
                continue
            with standing(lab, Path(folder), wire=wire) as stand:
                known = Known.learn(stand)
                print(f"reading a prompt alone took {known.read_s:.2f} s", file=sys.stderr)
                for cell in part:
                    if time.monotonic() > end_s:
                        break
                    results.append(run_cell(stand, cell, known))
                    keep(results[-1])
                    _tell(results[-1])
                    if not stand.is_whole():
                        print(f"stopped: {stand.last_words()}", file=sys.stderr)
                        return results
    return results


def _tell(result: Result) -> None:
    pause = f"pause {result.pause_s:.2f} s" if result.pause_s is not None else "no pause figure"
    met = "" if result.moment_met else " (moment not met)"
    verdict = "ok  " if result.ok else "FAIL"
    print(f"{verdict} {result.cell}{met}: {pause}, {result.took_s:.1f} s", file=sys.stderr)
    for why in result.why:
        print(f"     {why}", file=sys.stderr, flush=True)


def main() -> int:
    """Run and print; 1 when a cell was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.matrix", description=__doc__)
    parser.add_argument("--short", action="store_true", help="the hardest cells only")
    parser.add_argument("--only", metavar="WORDS", help="cells whose names have all these words")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    parser.add_argument("--again", action="store_true", help="also cells that are done")
    parser.add_argument("--table", action="store_true", help="only write the table anew")
    parser.add_argument("--subnet", default="10.86.0.0/24")
    args = parser.parse_args()
    results: list[Result] = []
    if not args.table:
        results = run_cells(chosen_cells(args, read()), args.seconds, args.subnet)
        print(f"{sum(r.ok for r in results)} of {len(results)} as they must be; {JSONL}")
    write_table(CHECKOUT / "tests/bench/results/faults.md")
    return int(not all(result.ok for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
