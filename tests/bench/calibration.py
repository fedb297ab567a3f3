"""What a calibrated box is predicted to do, beside what its engine then does: steps not fitted.

    python -m tests.bench.calibration [--rounds 3] [--weights int8]

Two lab boxes with a core each: deployed, calibrated, and then asked for prompts of lengths and
answers in batches that the calibration did not hold. Each of these steps is timed by the engine
itself and held against the fit. Aim: within 5 % in the median, prefill and decode alike. Writes
`results/calibration.md`. Needs root, as every lab does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from homesplit_engine.records import ModeSetting, StepEvent

from homesplit.core.calibration import Calibration
from homesplit.core.load import LoadPlan, OfferedRequest, PromptPart
from homesplit.core.workload import Arrivals, fixed_lengths
from homesplit.io.profiles import load_model
from homesplit.stages.bench import Prepared, deployed, prepared, run_once
from homesplit.stages.context import Context
from homesplit.stages.plan import read_box, read_calibrations
from homesplit.stages.serve import set_mode
from tests.lab.api import CORE_EACH, RunningLab, running_lab
from tests.lab.road import Road, box_platform, fetch_packages

BOXES = ("atlas", "borea")
MODEL = "smollm2-135m"
PROMPTS = (24, 64, 112, 160, 240, 320)
"""Read whole and alone; none of them is a length of the calibration's first look."""
BATCHES = (1, 2, 3, 5, 8)
CONTEXTS = (40, 180)
ANSWER = 20
AIM = 0.05
PAGE = Path(__file__).with_name("results") / "calibration.md"
_LOAD = fixed_lengths(64, 2, name="held out", arrivals=Arrivals(kind="closed", users=1))


def prompts_in_turn(salt: int) -> LoadPlan:
    """One prompt after the other, nothing beside it."""
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="prompt",
            prompt=(PromptPart(seed=salt + 977 * number, tokens=tokens),),
            output_tokens=2,
            send_at_s=None if number else 0.0,
            after=number - 1 if number else None,
        )
        for number, tokens in enumerate(PROMPTS)
    )
    return LoadPlan(workload="prompts", seed=salt, seconds=300.0, closed=True, requests=requests)


def answers_at_once(batch: int, context: int, salt: int) -> LoadPlan:
    """So many answers, written together from the moment that all prompts are read."""
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="answer",
            prompt=(PromptPart(seed=salt + 31 * number, tokens=context),),
            output_tokens=ANSWER,
            send_at_s=0.0,
        )
        for number in range(batch)
    )
    return LoadPlan(workload="answers", seed=salt, seconds=300.0, closed=True, requests=requests)


# ---------------------------------------------------------------------- inside: on the desk


async def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Offer the held-out load to each box alone; runs on the lab's desk."""
    ctx = Context()
    boxes = tuple(read_box(ctx, name) for name in BOXES)
    fits = read_calibrations(ctx, boxes, load_model(MODEL, ctx.paths))
    found: list[dict[str, Any]] = []
    async with deployed(ctx) as target, prepared(target) as server:
        for fit in (fit for fit in fits if fit.weights == spec["weights"]):
            setting = ModeSetting(mode="colocated", prefill="whole", decode_box=fit.box)
            await set_mode(ctx, target.url, target.api_key, setting)
            for turn in range(spec["rounds"]):
                found += await one_box(ctx, server, fit, turn)
    kept = [{"box": f.box, "p50": f.error_p50, "p90": f.error_p90, "steps": f.steps} for f in fits]
    return {"loadavg": os.getloadavg()[0], "fits": kept, "points": found}


async def one_box(
    ctx: Context, server: Prepared, fit: Calibration, turn: int
) -> list[dict[str, Any]]:
    """Every point once."""
    salt = 1 + turn
    steps = await timed(ctx, server, prompts_in_turn(salt), salt, fit.box)
    found = [
        point(fit, "prefill", f"{tokens} tokens", [step])
        for step in steps
        if (tokens := sum(piece.tokens for piece in step.prefill)) and not step.decode
    ]
    for context in CONTEXTS:
        for batch in BATCHES:
            salt += 101
            load = answers_at_once(batch, context, salt)
            steps = await timed(ctx, server, load, salt, fit.box)
            writing = [s for s in steps if len(s.decode) == batch and not s.prefill]
            if writing:
                name = f"{batch} at once, prompts of {context}"
                found.append(point(fit, "decode", name, writing))
    return found


async def timed(
    ctx: Context, server: Prepared, load: LoadPlan, salt: int, box: str
) -> list[StepEvent]:
    """The engine's own steps while the load was served."""
    run = await run_once(ctx, server, _LOAD, load, salt=salt, warm_up=0.0, drain=0.0)
    return [step for step in run.timed.steps if step.box == box] if run.timed else []


def point(fit: Calibration, kind: str, name: str, steps: Sequence[StepEvent]) -> dict[str, Any]:
    """Measured and predicted seconds of steps of one kind, medians."""
    made = [
        fit.step_seconds([(p.start, p.tokens) for p in s.prefill], len(s.decode), s.context_tokens)
        for s in steps
    ]
    took = [step.end_s - step.start_s for step in steps]
    return {
        "box": fit.box,
        "kind": kind,
        "name": name,
        "measured_s": statistics.median(took),
        "predicted_s": statistics.median(made),
        "off": statistics.median(m / t - 1.0 for m, t in zip(made, took, strict=True)),
    }


# ---------------------------------------------------------------------- outside: the lab


def run_lab(args: argparse.Namespace) -> dict[str, Any]:
    """Two boxes, deployed and calibrated, then measured."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_lab(2, "1gbe", cpu=CORE_EACH, memory=["4"], subnet=args.subnet) as lab,
    ):
        fetch_packages(box_platform(lab, BOXES[0]))
        road = Road(lab, Path(folder) / "home")
        try:
            road.json("probe", *BOXES, timeout_s=400)
            words = ("up", "--boxes", ",".join(BOXES), "--model", MODEL, "--mode", "colocated")
            road.json(*words, "--yes", "--weights", args.weights, timeout_s=900)
            road.json("calibrate", timeout_s=600)
            return inside(road, lab, args)
        finally:
            road.run("down", timeout_s=120)


def inside(road: Road, lab: RunningLab, args: argparse.Namespace) -> dict[str, Any]:
    """The held-out load, offered from the desk."""
    spec = json.dumps({"rounds": args.rounds, "weights": args.weights})
    environment = {"HOMESPLIT_HOME": str(road.home), "HOMESPLIT_SSH_CONFIG": str(lab.ssh_config)}
    command = [sys.executable, "-m", "tests.bench.calibration", "--inside", spec]
    done = lab.desk(command, environment=environment, timeout_s=1800)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def page(made: dict[str, Any], args: argparse.Namespace) -> str:
    """The result as a page."""
    points: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for each in made["points"]:
        points.setdefault((each["box"], each["kind"], each["name"]), []).append(each)
    told = [
        "# A calibrated box: predicted beside measured",
        "",
        f"    python -m tests.bench.calibration --rounds {args.rounds} --weights {args.weights}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, two lab boxes with a core each on one machine with 2 "
        f"cores, load average {made['loadavg']:.1f}. None of these steps was fitted; each is timed "
        f"by the engine itself, {args.rounds} times, medians. Aim: within {AIM:.0%} in the median.",
        "",
        "| | points | median error | largest | within the aim |",
        "|---|---|---|---|---|",
        *(_summary(kind, list(points.items())) for kind in ("prefill", "decode")),
        "",
        "| box | fitted steps | the fit's own error, median | p90 |",
        "|---|---|---|---|",
        *(
            f"| {fit['box']} | {fit['steps']} | {fit['p50']:.1%} | {fit['p90']:.1%} |"
            for fit in made["fits"]
        ),
        "",
        "| box | what | measured ms | predicted ms | off |",
        "|---|---|---|---|---|",
        *(_row(key, found) for key, found in points.items()),
    ]
    return "\n".join(told) + "\n"


def _off(found: Sequence[dict[str, Any]]) -> float:
    return statistics.median(each["off"] for each in found)


def _summary(kind: str, points: Sequence[tuple[tuple[str, str, str], list[dict[str, Any]]]]) -> str:
    errors = [abs(_off(found)) for (_, of, _), found in points if of == kind]
    inside_aim = sum(error <= AIM for error in errors)
    median, most = statistics.median(errors), max(errors)
    return f"| {kind} | {len(errors)} | {median:.1%} | {most:.1%} | {inside_aim} |"


def _row(key: tuple[str, str, str], found: Sequence[dict[str, Any]]) -> str:
    box, kind, name = key
    measured, predicted = (
        statistics.median(each[of] for each in found) * 1e3 for of in ("measured_s", "predicted_s")
    )
    return f"| {box} | {kind}, {name} | {measured:.1f} | {predicted:.1f} | {_off(found):+.1%} |"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description="Held-out steps beside the calibration.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", choices=("same", "int8"), default="same")
    parser.add_argument("--subnet", default="10.94.0.0/24")
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(asyncio.run(measure(json.loads(args.inside)))))
        return
    made = run_lab(args)
    args.out.write_text(page(made, args))
    print(args.out.read_text())


if __name__ == "__main__":
    main()
