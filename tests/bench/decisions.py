"""Is the recommended mode the best measured one? A grid of cells on two boxes of the lab.

    python -m tests.bench.decisions [--cells equal/20mbit/quiet,…] [--rounds 1] [--weights int8]
    python -m tests.bench.decisions --since 2026-11-30T12:00 --minutes 25
    python -m tests.bench.decisions --report
    python -m tests.bench.decisions --again

A cell is a pair of boxes, a link and a load. In each, the advice is asked (calibrated boxes, the
link's measured rate), then every mode gets the same requests, in alternating order. Each cell
is one line of `results/decisions.jsonl`, so that a run can be stopped and taken up again;
`--report` makes `results/decisions.md` of them, `--again` after asking the advice
as it is now once more, from the questions that stand in the lines. Needs root, as every lab does.

A closed loop ends after a fixed number of requests, so that a mode's goodput is theirs over the
time that they took; an open one offers the same requests at the same moments. The advice is asked
for these very requests, and told the end. Of each mode the arrangement is measured that the advice
puts first within that mode.

Targets follow the boxes: so many times the mean prompt's reading alone for TTFT, so many times a
decode step of four for TPOT; so does the rate of an open load. The grid means the same on any
computer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.decision_cells import (
    BOXES,
    INSTALLED_OVER,
    LINKS,
    MODEL,
    PAIRS,
    all_cells,
    measure_cell,
    predict_again,
)
from tests.bench.decision_report import LINES, RESULTS, TABLE, done_cells, regret, report
from tests.lab.api import RunningLab, running_lab
from tests.lab.road import Road, box_platform, fetch_packages

PAIR = ",".join(BOXES)
PAUSE_S = 2.0


@contextlib.contextmanager
def alone(path: Path | None) -> Generator[None]:
    """Hold a lock file while measuring, so that two measurements don't meet."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    # Whoever else waits for it gets it before we ask again.
    time.sleep(PAUSE_S)


def run_pair(pair: str, cells: Sequence[str], args: argparse.Namespace) -> None:
    """Bring up one pair of boxes, deploy, calibrate, and measure its cells."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_lab(2, INSTALLED_OVER, cpu=PAIRS[pair], memory=["4"], subnet=args.subnet) as lab,
    ):
        fetch_packages(box_platform(lab, BOXES[0]))
        road = Road(lab, Path(folder) / "home")
        try:
            road.json("probe", *BOXES, timeout_s=400)
            say("probed")
            deploy(road, args)
            begun_over = cells[0].split("/")[1]
            if LINKS.index(begun_over) < LINKS.index(INSTALLED_OVER):
                # As in service: what serves is begun over the link that it then has.
                lab.set_rate(begun_over)
                road.json("probe", *BOXES, "--link", timeout_s=400)
                road.run("down", timeout_s=120)
                deploy(road, args)
            rate, shaped = 0.0, ""
            end_s = time.monotonic() + 60.0 * args.minutes
            for cell in cells:
                if time.monotonic() > end_s:
                    say(f"{pair}: the time for this pair is over; run again to go on")
                    break
                with alone(args.lock):
                    _, link, load = cell.split("/")
                    if link != shaped:
                        lab.set_rate(link)
                        rate = min(lab.iperf_bits_per_s(*BOXES) / 8, 400e6)
                        shaped = link
                        # The computer drifts within minutes: calibrated as late as a user would.
                        calibrate(road)
                    line = one_cell(road, lab, cell, load, rate, args)
                    keep({**line, "begun_over": begun_over})
        finally:
            road.run("down", timeout_s=120)


def deploy(road: Road, args: argparse.Namespace) -> None:
    """Bring the engine up on both boxes."""
    words = ("up", "--boxes", PAIR, "--model", MODEL, "--mode", "colocated", "--yes")
    road.json(*words, "--weights", args.weights, timeout_s=900)
    say("deployed")


def calibrate(road: Road) -> None:
    """Fit both boxes' costs to the engine that runs there now."""
    for fit in road.json("calibrate", timeout_s=600)["boxes"]:
        say(f"calibrated {fit['box']}: off by {fit['error_p50']:.1%} in the median")


def one_cell(
    road: Road, lab: RunningLab, cell: str, load: str, rate: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Measure one cell from the desk."""
    spec = {
        "cell": cell,
        "load": load,
        "link_bytes_per_s": rate,
        "rounds": args.rounds,
        "weights": args.weights,
        "number": all_cells().index(cell),
    }
    environment = {
        "HOMESPLIT_HOME": str(road.home),
        "HOMESPLIT_SSH_CONFIG": str(lab.ssh_config),
    }
    command = [sys.executable, "-m", "tests.bench.decisions", "--inside", json.dumps(spec)]
    done = lab.desk(command, environment=environment, timeout_s=900)
    if done.returncode:
        raise SystemExit(f"{cell}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def keep(line: dict[str, Any]) -> None:
    """Add a cell to the results."""
    RESULTS.mkdir(exist_ok=True)
    with LINES.open("a") as file:
        file.write(json.dumps(line) + "\n")
    found = regret(line)
    say(f"{line['cell']}: {line['recommended']}, " + ("void" if found is None else f"{found:.0%}"))


def say(sentence: str) -> None:
    """Progress on stderr."""
    print(datetime.now(UTC).strftime("%H:%M:%S"), sentence, file=sys.stderr, flush=True)


def main() -> None:
    """Measure what is not yet measured, or make the report."""
    parser = argparse.ArgumentParser(description="Recommended against best measured mode.")
    parser.add_argument("--cells", help="comma-separated names; else all that lack a result")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="of measuring, each pair")
    parser.add_argument("--weights", choices=("same", "int8"), default="same")
    parser.add_argument("--lock", type=Path, help="a file that is locked while measuring")
    parser.add_argument("--subnet", default="10.96.0.0/24")
    parser.add_argument("--since", default="", help="what was measured before is measured anew")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--again", action="store_true", help="predict the measured cells anew")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(asyncio.run(measure_cell(json.loads(args.inside)))))
        return
    if args.again:
        lines = [predict_again(line) if "asked" in line else line for line in done_cells().values()]
        LINES.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif not args.report:
        wanted = sorted(args.cells.split(","), key=all_cells().index) if args.cells else all_cells()
        for pair in PAIRS:
            done = done_cells(args.since)
            cells = [c for c in wanted if c.startswith(f"{pair}/") and c not in done]
            if cells:
                run_pair(pair, cells, args)
    TABLE.write_text(report())
    say(f"{TABLE} written")


if __name__ == "__main__":
    main()
