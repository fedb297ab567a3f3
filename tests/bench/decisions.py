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
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from homesplit_engine.words import Figures
from msgspec.structs import replace

from homesplit.core.candidates import Asked, arrangements, build_scene
from homesplit.core.choose import ABOUT_AS_GOOD, MOST_DOUBT, choose
from homesplit.core.decide import Thinking, decide
from homesplit.core.load import Extent, bounded_load, with_load
from homesplit.core.plan import ModePrediction, Plan
from homesplit.core.predict import Effort, outlook
from homesplit.core.prng import Prng
from homesplit.core.rules import mean_kind
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload
from homesplit.io.profiles import load_link, load_model
from homesplit.stages.bench import Prepared, deployed, prepared, run_once
from homesplit.stages.context import Context
from homesplit.stages.plan import read_box, read_calibrations, read_handoffs
from homesplit.stages.serve import set_mode
from tests.bench.prediction import summary
from tests.lab.api import CORE_EACH, RunningLab, running_lab
from tests.lab.road import Road, box_platform, fetch_packages

RESULTS = Path(__file__).with_name("results")
LINES, TABLE = RESULTS / "decisions.jsonl", RESULTS / "decisions.md"
BOXES = ("atlas", "borea")
PAIR = ",".join(BOXES)
MODEL = "smollm2-135m"
PAIRS = {"equal": CORE_EACH, "unequal": ("atlas=1@0", "borea=0.5@1")}
LINKS = ("20mbit", "100mbit", "1gbe", "2.5gbe", "10gbe")
"""From slow to fast: the router learns of a link that carries more than it knew, and takes one that
carries less for a broken one. 10gbe is as good as unshaped here."""
INSTALLED_OVER = "1gbe"
SEED = 11
PAUSE_S = 2.0
LONGEST_S = 240.0
"""No run offers for longer; a closed loop ends before, by its number of requests."""
ENOUGH, NEVER_BELOW = 0.95, 0.80
WORTH_COMPARING = 0.6
"""Modes with less of a cell's best goodput are out of the question there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A load, its length, and its targets as multiples of what the boxes need alone."""

    workload: Workload
    each: int = 0
    """Requests of each user of a closed loop."""
    seconds: float = 0.0
    """How long an open one offers."""
    reading: float = 0.0
    """Its rate while on: prompts that the quickest box reads in so many seconds, each second."""
    burst: float = 0.0
    """How long it is on, and then off: so many times the mean prompt's reading."""
    ttft_times: float
    tpot_times: float


def _kind(name: str, share: float, prompt: tuple[int, int], output: tuple[int, int]) -> LengthClass:
    return LengthClass(
        name=name,
        share=share,
        prompt_tokens_low=prompt[0],
        prompt_tokens_high=prompt[1],
        output_tokens_low=output[0],
        output_tokens_high=output[1],
    )


def _closed(name: str, users: int, *kinds: LengthClass) -> Workload:
    return Workload(name=name, classes=kinds, arrivals=Arrivals(kind="closed", users=users))


OFFERS = {
    "quiet": Offer(
        workload=_closed("quiet", 1, _kind("one", 1, (80, 160), (12, 24))),
        each=16,
        ttft_times=3.0,
        tpot_times=2.5,
    ),
    "chat": Offer(
        workload=_closed("chat", 4, _kind("short", 1, (40, 90), (24, 40))),
        each=8,
        ttft_times=3.0,
        tpot_times=2.5,
    ),
    "docs": Offer(
        workload=_closed("docs", 3, _kind("long", 1, (200, 350), (6, 12))),
        each=8,
        ttft_times=3.0,
        tpot_times=2.5,
    ),
    "bursts": Offer(
        workload=Workload(
            name="bursts",
            classes=(
                _kind("short", 0.5, (24, 60), (16, 28)),
                _kind("long", 0.5, (200, 350), (6, 12)),
            ),
            arrivals=Arrivals(rate_requests_per_s=1.0, pattern="on_off"),
        ),
        seconds=18.0,
        reading=1.2,
        burst=5.0,
        ttft_times=6.0,
        tpot_times=1.5,
    ),
    "answers": Offer(
        workload=Workload(
            name="answers",
            classes=(
                _kind("short", 0.5, (24, 60), (80, 120)),
                _kind("long", 0.5, (200, 350), (6, 12)),
            ),
            arrivals=Arrivals(rate_requests_per_s=1.0, pattern="on_off"),
        ),
        seconds=18.0,
        reading=1.0,
        burst=5.0,
        ttft_times=6.0,
        tpot_times=1.3,
    ),
}


def all_cells() -> list[str]:
    """Every cell's name, pairs outermost, so that one deployment serves many."""
    return [f"{pair}/{link}/{load}" for pair in PAIRS for link in LINKS for load in OFFERS]


# ---------------------------------------------------------------------- inside: on the desk


async def measure_cell(spec: dict[str, Any]) -> dict[str, Any]:
    """Ask for the advice, then measure; runs on the lab's desk."""
    ctx = Context()
    asked = _asked(ctx, spec)
    scene = build_scene(asked)
    # No mode is asked for by name: the grid measures what the advice can choose from.
    plan = decide(asked, Thinking(effort=Effort(capacity_requests=40), flips=False))
    runs = _modes(plan, asked, scene)
    load = bounded_load(asked.workload, _extent(OFFERS[spec["load"]]))
    async with deployed(ctx) as target, prepared(target) as server:
        before = server.status
        measured: dict[str, list[Figures]] = {name: [] for name in runs}
        # No two runs of a deployment may share a prompt: its KV would still be in the cache.
        salts = Prng(SEED).fork(spec["number"])
        for turn in range(spec["rounds"]):
            names = list(runs) if (turn + spec["number"]) % 2 == 0 else list(reversed(runs))
            for place, name in enumerate(names):
                await set_mode(ctx, target.url, target.api_key, runs[name].setting)
                salt = salts.fork(turn, place).bits()
                run = await run_once(
                    ctx, server, asked.workload, load, salt=salt, warm_up=0.0, drain=0.0
                )
                measured[name].append(run.summary.figures)
    recommended = _name_of(plan.modes[0])
    return {
        "cell": spec["cell"],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "loadavg": os.getloadavg()[0],
        "link_bytes_per_s": spec["link_bytes_per_s"],
        "targets": msgspec.to_builtins(asked.targets),
        "rounds": spec["rounds"],
        "weights": spec["weights"],
        "requests": len(load.requests),
        "asked": msgspec.to_builtins(asked),
        "workers": _workers(server, before is not None),
        "recommended": recommended,
        "tie": plan.tie,
        "predicted_of": "these requests",
        "calibrations": [
            msgspec.to_builtins(replace(fit, residuals=())) for fit in asked.calibrations
        ],
        "handoff_fits": [msgspec.to_builtins(fit) for fit in asked.handoffs],
        "modes": {
            name: {
                "goodput": _mean([f.goodput_requests_per_s or 0.0 for f in found]),
                "rounds": [summary(f) for f in found],
                "predicted": _predicted(plan, name),
            }
            for name, found in measured.items()
        },
    }


def predict_again(line: dict[str, Any]) -> dict[str, Any]:
    """The line with what the advice as it is now says of the same question.

    The measured modes stay; where another arrangement of a mode is advised now, the mode's
    measured one stands for it.
    """
    asked = msgspec.convert(line["asked"], Asked)
    scene = build_scene(asked)
    looks = {
        _arrangement_name(each): outlook(
            scene, each, asked.workload, asked.targets, 0, asked.extent
        )
        for each in arrangements(asked, scene)
    }
    choice = choose(tuple(looks.values()), asked.targets)
    mode = choice.best.arrangement.mode
    recommended = next(name for name in line["modes"] if name.split(":")[0] == mode)
    modes = {
        name: {**seen, "predicted": {**summary(looks[name].figures)}}
        for name, seen in line["modes"].items()
    }
    again = {"recommended": recommended, "predicted_of": "these requests", "modes": modes}
    return {**line, **again, "tie": choice.tie}


def _extent(offer: Offer) -> Extent:
    """The load's end; of a closed loop the first `each` requests of every user."""
    return Extent(seconds=offer.seconds or LONGEST_S, seed=SEED, each=offer.each or None)


def _workers(server: Prepared, known: bool) -> int | None:
    return len(server.status.workers) if known and server.status else None


def _asked(ctx: Context, spec: dict[str, Any]) -> Asked:
    """The question of a cell, with the targets that its boxes set."""
    boxes = tuple(read_box(ctx, name) for name in BOXES)
    shape = load_model(MODEL, ctx.paths)
    link = load_link(f"{spec['link_bytes_per_s'] * 8 / 1e6:.3f}Mbit/s", *BOXES, ctx.paths)
    asked = Asked(
        boxes=boxes,
        link=link,
        shape=shape,
        workload=OFFERS[spec["load"]].workload,
        targets=Targets(ttft_s=None, tpot_s=None),
        weights=spec["weights"],
        calibrations=read_calibrations(ctx, boxes, shape),
        handoffs=read_handoffs(ctx, boxes),
        extent=_extent(OFFERS[spec["load"]]),
    )
    scene, kind = build_scene(asked), mean_kind(asked)
    quickest = min(box.cost.prefill_s(kind.prompt_tokens).mid for box in scene.boxes)
    step_s = min(box.cost.decode_step_s(4, 4 * kind.prompt_tokens).mid for box in scene.boxes)
    offer = OFFERS[spec["load"]]
    targets = Targets(
        ttft_s=round(offer.ttft_times * quickest, 3), tpot_s=round(offer.tpot_times * step_s, 3)
    )
    rate = round(offer.reading / quickest, 2) if offer.reading else None
    workload = with_load(
        _in_bursts(asked.workload, offer.burst * quickest),
        rate_requests_per_s=rate,
        ttft_s=targets.ttft_s,
        tpot_s=targets.tpot_s,
    )
    return replace(asked, workload=workload, targets=targets)


def _in_bursts(workload: Workload, on_s: float) -> Workload:
    """The load on for so long, then off as long; as it is where that is 0."""
    if not on_s:
        return workload
    arrivals = replace(workload.arrivals, on_s=round(on_s, 3), off_s=round(on_s, 3))
    return replace(workload, arrivals=arrivals)


def _name_of(mode: ModePrediction) -> str:
    where = {"split": f" {mode.prefill_box}>{mode.decode_box}", "colocated": f" {mode.boxes[0]}"}
    return f"{mode.mode}:{mode.prefill}{where.get(mode.mode, '')}"


def _modes(plan: Plan, asked: Asked, scene: Scene) -> dict[str, Arrangement]:
    """Of each mode the arrangement that the plan puts first, the recommended one first of all."""
    able = {_arrangement_name(each): each for each in arrangements(asked, scene)}
    chosen: dict[str, Arrangement] = {}
    seen: set[str] = set()
    for mode in plan.modes:
        if mode.mode != "auto" and mode.mode not in seen:
            seen.add(mode.mode)
            chosen[_name_of(mode)] = able[_name_of(mode)]
    return chosen


def _arrangement_name(each: Arrangement) -> str:
    setting = each.setting
    where = {
        "split": f" {setting.prefill_box}>{setting.decode_box}",
        "colocated": f" {each.first}",
    }
    return f"{setting.mode}:{setting.prefill}{where.get(setting.mode, '')}"


def _predicted(plan: Plan, name: str) -> dict[str, float | None]:
    mode = next(each for each in plan.modes if _name_of(each) == name)
    return {
        "ttft_p50": mode.ttft_s.p50,
        "ttft_p90": mode.ttft_s.p90,
        "tpot_p50": mode.tpot_s.p50,
        "tpot_p90": mode.tpot_s.p90,
        "attainment": mode.attainment,
        "goodput": mode.goodput_requests_per_s,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# ---------------------------------------------------------------------- outside: the lab


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


def done_cells(since: str = "") -> dict[str, dict[str, Any]]:
    """The newest line of each measured cell, of those measured at `since` or later."""
    if not LINES.exists():
        return {}
    lines = [json.loads(line) for line in LINES.read_text().splitlines()]
    return {line["cell"]: line for line in lines if line["at"] >= since}


def regret(line: dict[str, Any]) -> float | None:
    """The recommended mode's goodput over the best one's; None where none had any."""
    best = max(mode["goodput"] for mode in line["modes"].values())
    return line["modes"][line["recommended"]]["goodput"] / best if best > 0 else None


def report() -> str:
    """The table of all measured cells."""
    lines = [done_cells()[name] for name in all_cells() if name in done_cells()]
    shares = [share for line in lines if (share := regret(line)) is not None]
    good = sum(share >= ENOUGH for share in shares)
    weights = " and ".join(sorted({line["weights"] for line in lines})) or "same"
    told = [
        "# The advice against the measurement",
        "",
        f"{len(lines)} of {len(all_cells())} cells measured, {len(shares)} with any goodput. "
        f"The recommended mode had at least {ENOUGH:.0%} of the best goodput in {good} of "
        f"{len(shares)}"
        + (
            f"; the lowest share was {min(shares):.0%} (aim: never below {NEVER_BELOW:.0%})."
            if shares
            else "."
        ),
        "",
        f"Made by `python -m tests.bench.decisions --weights {weights}` and `--report`, on two "
        "boxes of the lab on one machine. One row a cell; of each mode the arrangement that the "
        "advice puts first: measured goodput in requests/s (predicted). Bold: recommended. Where "
        "`--again` was run, advice and prediction are those of the code as it is now for the "
        "question as it was measured (boxes, calibration, link, requests).",
        "",
        "| boxes/link/load | share of best | load of the computer | modes |",
        "|---|---|---|---|",
    ]
    told += [_row(line) for line in lines]
    told += prediction_lines(lines)
    told += mode_lines(lines)
    told += lead_lines(lines)
    told += repeat_lines(lines)
    told += ["", "## How this grid came about", "", HISTORY]
    return "\n".join(told) + "\n"


ERRORS = {
    "ttft_p50": ("TTFT p50", 0.10),
    "ttft_p90": ("TTFT p90", 0.20),
    "tpot_p50": ("TPOT p50", 0.10),
    "tpot_p90": ("TPOT p90", 0.20),
    "attainment": ("attainment", 0.05),
    "goodput": ("goodput", 0.10),
}
"""What is predicted, and how far off it may be: relative, attainment in points."""


def prediction_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """How far the predictions lay from the measurements, over all modes of all cells."""
    told = [
        "",
        "## Predicted beside measured",
        "",
        "Of every mode of every cell: (predicted - measured) / measured, of attainment the "
        "difference in points; mean and median without sign. Where a cell was measured over "
        "several rounds, against their mean.",
    ]
    for old, said in ((False, ""), (True, "Cells predicted for a load that goes on:")):
        chosen = [line for line in lines if ("predicted_of" not in line) == old]
        if not chosen:
            continue
        told += ["", *([said, ""] if said else [])]
        told += ["| figure | compared | mean | median | mean with sign | within the aim |"]
        told += ["|---|---|---|---|---|---|"]
        for key, (name, aim) in ERRORS.items():
            told.append(_error_row(name, errors_of(chosen, key), aim))
    return told


def errors_of(lines: Sequence[dict[str, Any]], key: str) -> list[float]:
    """The signed error of one figure in each mode that has both sides of it."""
    found: list[float] = []
    for line in lines:
        for mode in line["modes"].values():
            guess = mode["predicted"].get(key)
            seen = [r[key] for r in mode["rounds"] if r.get(key) is not None]
            if guess is None or not seen:
                continue
            measured = _mean(seen)
            if key == "attainment":
                found.append(guess - measured)
            elif measured > 0:
                found.append(guess / measured - 1.0)
    return found


HISTORY = (
    "Equal boxes' 25 cells were measured on 2026-12-01 between 00:43 and 01:04, the machine at "
    "rest, unequal boxes' 20 the day before beside other work, `answers` not among them; there "
    "bursts and chat after a kernel had been mended, the rest before. That a lead within what the "
    "calibration is off by is a tie was learnt from cells like these, so they do not prove it. The "
    "equal boxes' calibration took atlas for 37 % slower while borea computes, which one short "
    "moment told: a split that writes on atlas was predicted too slow by it (`answers`), and "
    "replicas' TTFT too long (docs). It asks three times since; no cell is of after that. On 20 "
    "Mbit/s the router gives hand-offs up that are not through in time, which the simulator "
    "does not."
)
OF_BEFORE = (
    "{old} of the {all} cells are of before 2026-11-30 21:40: no calibration timed there what a "
    "client adds or what opening KV takes, and its fit lay below the middle of steps that "
    "scattered; the boxes were deployed "
    "over 1 Gbit/s, so that the router took slower links for broken ones and gave hand-offs up: "
    "there a split's TPOT is lower than predicted. Last row of the table: without those links."
)
NOT_MODELLED = (
    "Not modelled: how single steps scatter, that opening touches memory which a step needs too, "
    "and what the router's own processor takes of the box that it runs on beyond what the "
    "calibration timed there."
)


def mode_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Which way the predictions are off, by mode."""
    told = [
        "",
        "By mode, mean with sign (cells whose calibration timed no step beside the other box's: "
        f"{sum(_alone_only(line) for line in lines)} of {len(lines)}; there a mode that uses both "
        "boxes at once is predicted as if they did not share one machine):",
        "",
        "| mode | modes measured | TTFT p50 | TPOT p50 |",
        "|---|---|---|---|",
    ]
    told += [_mode_row(lines, mode) for mode in ("colocated", "replica", "split")]
    known = [line for line in lines if not _taken_for_broken(line)]
    if len(known) < len(lines):
        told.append(_mode_row(known, "split"))
    old = sum("begun_over" not in line for line in lines)
    if old:
        told += ["", OF_BEFORE.format(old=old, all=len(lines))]
    return [*told, "", NOT_MODELLED]


def _mode_row(lines: Sequence[dict[str, Any]], mode: str) -> str:
    chosen = [_of_mode(line, mode) for line in lines]
    errors = [errors_of(chosen, key) for key in ("ttft_p50", "tpot_p50")]
    signed = " | ".join(f"{_mean(each):+.0%}" if each else "–" for each in errors)
    return f"| {mode} | {len(errors[0])} | {signed} |"


def _taken_for_broken(line: dict[str, Any]) -> bool:
    """Whether the router knew of a faster link than there was."""
    over, link = line.get("begun_over", INSTALLED_OVER), line["cell"].split("/")[1]
    return LINKS.index(link) < LINKS.index(over)


def _alone_only(line: dict[str, Any]) -> bool:
    """Whether no box's calibration says how steps go beside the other's."""
    fits = line.get("asked", {}).get("calibrations", ())
    return not any("together" in fit for fit in fits)


def _of_mode(line: dict[str, Any], mode: str) -> dict[str, Any]:
    modes = {name: each for name, each in line["modes"].items() if name.startswith(mode)}
    return {**line, "modes": modes}


def lead_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """How far off the predicted leads of one mode over another are, beside the width of a tie."""
    found = [pair for line in lines for pair in _leads(line)]
    if not found:
        return []
    misses = sorted(abs(math.log(measured / told)) for told, measured, _ in found)
    sure = [(told, measured) for told, measured, width in found if told > 1.0 / (1.0 - width)]
    wrong = sum(measured < 1.0 for _, measured in sure)
    return [
        "",
        "## How sure a lead is",
        "",
        "A lead within what the boxes' calibration is off by (in the median over the cells "
        f"{statistics.median(width for *_, width in found):.0%}) is told as a tie. Of "
        f"{len(found)} pairs of modes of one cell of which the lesser was told at least "
        f"{WORTH_COMPARING:.0%} of the cell's best goodput, the predicted lead was off by "
        f"{statistics.median(misses):.0%} in the median and {_p90(misses):.0%} in nine of ten; of "
        f"{len(sure)} leads told as such {wrong} turned out the other way.",
    ]


def _leads(line: dict[str, Any]) -> list[tuple[float, float, float]]:
    """(told, measured, the tie's width) of each pair of modes that are near each other."""
    doubt = max(fit["error_p50"] for fit in line["calibrations"])
    width = max(1.0 - ABOUT_AS_GOOD, min(MOST_DOUBT, doubt))
    goods = [(m["predicted"]["goodput"] or 0.0, m["goodput"]) for m in line["modes"].values()]
    best = max(told for told, _ in goods)
    near = [(t, m) for t, m in goods if t >= WORTH_COMPARING * best and m > 0 and t > 0]
    pairs = itertools.combinations(sorted(near, reverse=True), 2)
    return [(one[0] / other[0], one[1] / other[1], width) for one, other in pairs]


def _p90(ordered: Sequence[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def repeat_lines(lines: Sequence[dict[str, Any]]) -> list[str]:
    """How well measurements of one and the same thing agree: no prediction can do better.

    Colocated and replica use no link, so cells that differ in the link alone measure them anew.
    """
    told = [
        "",
        "## How well the measurement repeats itself",
        "",
        "Colocated and replica send nothing between the boxes, so the cells of one pair and load "
        "that differ in the link alone measure them again and again. Pairs of such measurements "
        "within the aim of each other, beside predictions of the same modes within the aim:",
        "",
        "| figure | two measurements agree | prediction and measurement agree |",
        "|---|---|---|",
    ]
    groups = _repeated(lines)
    for key, (name, aim) in ERRORS.items():
        pairs = [
            _apart(key, one, other)
            for group in groups
            for one, other in itertools.permutations(_seen_in(group, key), 2)
        ]
        guesses = [
            _apart(key, guess, seen)
            for group in groups
            for mode in group
            if (guess := mode["predicted"].get(key)) is not None
            for seen in _seen_in([mode], key)
        ]
        told.append(f"| {name} | {_share_within(pairs, aim)} | {_share_within(guesses, aim)} |")
    return told


def _repeated(lines: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The modes that were measured in several cells though the link is nothing to them."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        pair, _, load = line["cell"].split("/")
        for name, mode in line["modes"].items():
            if name.startswith(("colocated", "replica")):
                groups.setdefault((pair, load, name), []).append(mode)
    return [group for group in groups.values() if len(group) > 1]


def _seen_in(modes: Sequence[dict[str, Any]], key: str) -> list[float]:
    """One figure as it was measured, the mean of its rounds, of each mode that has it."""
    told = ([r[key] for r in mode["rounds"] if r.get(key) is not None] for mode in modes)
    return [_mean(values) for values in told if values]


def _apart(key: str, one: float, other: float) -> float:
    """How far apart; of attainment the difference, else relative to the other."""
    if key == "attainment":
        return abs(one - other)
    return abs(one / other - 1.0) if other else float(one != other)


def _share_within(errors: Sequence[float], aim: float) -> str:
    if not errors:
        return "–"
    inside = sum(error <= aim for error in errors)
    return f"{inside} of {len(errors)} ({inside / len(errors):.0%})"


def _error_row(name: str, errors: Sequence[float], aim: float) -> str:
    if not errors:
        return f"| {name} | 0 | – | – | – | – |"
    sizes = [abs(error) for error in errors]
    inside = sum(size <= aim for size in sizes)
    points = 100.0 if name == "attainment" else 1.0
    told = [points * value for value in (_mean(sizes), statistics.median(sizes), _mean(errors))]
    mean, median, signed = (
        [f"{v:.0f} points" for v in told[:2]] + [f"{told[2]:+.0f} points"]
        if name == "attainment"
        else [f"{v:.0%}" for v in told[:2]] + [f"{told[2]:+.0%}"]
    )
    limit = f"{aim * 100:.0f} points" if name == "attainment" else f"{aim:.0%}"
    return f"| {name} | {len(errors)} | {mean} | {median} | {signed} | {inside} within {limit} |"


def _row(line: dict[str, Any]) -> str:
    cells: list[str] = []
    for name, mode in sorted(line["modes"].items(), key=lambda item: -item[1]["goodput"]):
        text = f"{name} {mode['goodput']:.2f} ({mode['predicted']['goodput'] or 0:.2f})"
        cells.append(f"**{text}**" if name == line["recommended"] else text)
    share = regret(line)
    told = "no goodput in any" if share is None else f"{share:.0%}"
    return f"| {line['cell']} | {told} | {line['loadavg']:.1f} | {'; '.join(cells)} |"


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
