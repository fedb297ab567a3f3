"""The fault matrix: every fault at every moment in every mode, on two boxes of a lab.

    python -m tests.lab.matrix [--short] [--only WORD,…] [--skip WORD,…] [--seconds N] [--again]

Results are kept a line a run in `tests/bench/results/faults.jsonl`, so that a run goes on where
the last one ended; the table is `tests/bench/results/faults.md`. Several may run at a time, each
with its own cells. A cell whose moment was not met is tried again. Exit 1 when a cell that ran
was not as it must be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab.api import RunningLab, running_lab
from tests.lab.errors import LabError
from tests.lab.matrix.answers import Answers
from tests.lab.matrix.cells import Cell, all_cells, short_cells, together
from tests.lab.matrix.run import RULE, Result, check_undisturbed, run_together
from tests.lab.matrix.stand import LINK_MBIT, Stand, end_in_good_order_when_told, standing
from tests.lab.matrix.table import JSONL, keep, last_of_each, read, write_table

LINK = f"{LINK_MBIT}mbit"
TRIES = 3
"""Runs of a cell by itself whose moment was not met."""
STANDS = 6
"""Deployments made in one run at most: another one after a cell that left its own broken."""


def chosen_cells(args: argparse.Namespace, runs: Sequence[Result]) -> list[Cell]:
    """The cells that are asked for and not done yet: first faults that a mode has never met."""
    cells = short_cells() if args.short else all_cells()
    done = last_of_each(runs)
    met = {(cell.fault, cell.mode) for cell in cells if cell.name in done}

    def is_known(cell: Cell) -> tuple[bool, bool]:
        return cell.name in done, (cell.fault, cell.mode) in met

    return [
        cell
        for cell in sorted(cells, key=is_known)
        if cell.why_not is None
        and (args.again or _is_open(cell, done, runs))
        and _named(cell, args.only, all_of=True, empty=True)
        and not _named(cell, args.skip, all_of=False, empty=False)
    ]


def _is_open(cell: Cell, done: dict[str, Result], runs: Sequence[Result]) -> bool:
    last = done.get(cell.name)
    if last is None or not last.ok or last.rule < RULE:
        return True
    return not last.moment_met and sum(run.cell == cell.name for run in runs) < TRIES


def _named(cell: Cell, words: str | None, *, all_of: bool, empty: bool) -> bool:
    found = [any(p in cell.name for p in w.split("|")) for w in (words or "").split(",") if w]
    return (all(found) if all_of else any(found)) if found else empty


class Run:
    """The cells still to be run, on one deployment after the other."""

    def __init__(self, lab: RunningLab, folder: Path, end_s: float) -> None:
        self.results: list[Result] = []
        self._lab = lab
        self._folder = folder
        self._end_s = end_s
        self._stands = 0

    def groups(self, groups: Sequence[Sequence[Cell]], *, wire: bool) -> None:
        """Run them; where one breaks the deployment, the next has a new one."""
        left = list(groups)
        while left and time.monotonic() < self._end_s and self._stands < STANDS:
            self._stands += 1
            with standing(self._lab, self._folder, wire=wire) as stand:
                answers = Answers(self._folder / "model")
                check_undisturbed(stand, answers)
                while left and time.monotonic() < self._end_s:
                    if not self._run(stand, left.pop(0), answers):
                        break

    def _run(self, stand: Stand, cells: Sequence[Cell], answers: Answers) -> bool:
        """Run one fault; whether the deployment is whole afterwards."""
        try:
            results = run_together(stand, cells, answers)
        except (LabError, OSError, TimeoutError) as error:
            why = [f"{type(error).__name__}: {error}"]
            results = [Result(cell=cell.name, ok=False, why=why) for cell in cells]
        for result in results:
            self.results.append(result)
            keep(result)
            _tell(result)
        if all(result.ok for result in results) or stand.is_whole():
            return True
        print(f"another deployment: {stand.last_words()}", file=sys.stderr, flush=True)
        return False


def run_cells(args: argparse.Namespace) -> list[Result]:
    """Run what is asked for: several moments at once, then each that was not met by itself."""
    end_s = time.monotonic() + args.seconds
    if not chosen_cells(args, read()):
        return []
    with (
        tempfile.TemporaryDirectory(prefix="homesplit-matrix-") as folder,
        running_lab(2, LINK, subnet=args.subnet) as lab,
    ):
        run = Run(lab, Path(folder), end_s)
        for number in range(1 + TRIES):
            failed = {result.cell for result in run.results if not result.ok}
            cells = [cell for cell in chosen_cells(args, read()) if cell.name not in failed]
            args.again = False
            for wire in (False, True):
                part = [cell for cell in cells if cell.through_wire == wire]
                run.groups(together(part) if number == 0 else [[c] for c in part], wire=wire)
    return run.results


def _tell(result: Result) -> None:
    pause = f"pause {result.pause.whole_s:.2f} s" if result.pause else "no pause figure"
    met = "" if result.moment_met else " (moment not met)"
    verdict = "ok  " if result.ok else "FAIL"
    parts = ", ".join(f"{name} {part_s:.1f}" for name, part_s in result.parts_s.items())
    print(
        f"{verdict} {result.cell}{met}: {pause}, {result.took_s:.1f} s ({parts})", file=sys.stderr
    )
    for why in result.why:
        print(f"     {why}", file=sys.stderr)
    sys.stderr.flush()


def main() -> int:
    """Run and print; 1 when a cell was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.matrix", description=__doc__)
    parser.add_argument("--short", action="store_true", help="the hardest cells only")
    parser.add_argument("--only", metavar="WORDS", help="cells whose names have all these words")
    parser.add_argument("--skip", metavar="WORDS", help="no cell whose name has one of these")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    parser.add_argument("--again", action="store_true", help="also cells that are done")
    parser.add_argument("--table", action="store_true", help="only write the table anew")
    parser.add_argument("--subnet", default="10.86.0.0/24")
    args = parser.parse_args()
    end_in_good_order_when_told()
    results: list[Result] = []
    if not args.table:
        results = run_cells(args)
        print(f"{sum(r.ok for r in results)} of {len(results)} as they must be; {JSONL}")
    write_table()
    return int(not all(result.ok for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
