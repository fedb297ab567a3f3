"""One cell of the decision grid: its load and boxes, the advice asked, every mode measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from homesplit_engine.words import Figures
from msgspec.structs import replace

from homesplit.core.candidates import Asked, arrangements, build_scene
from homesplit.core.choose import choose
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
from tests.lab.api import CORE_EACH

BOXES = ("atlas", "borea")
MODEL = "smollm2-135m"
PAIRS = {"equal": CORE_EACH, "unequal": ("atlas=1@0", "borea=0.5@1")}
LINKS = ("20mbit", "100mbit", "1gbe", "2.5gbe", "10gbe")
"""From slow to fast: the router learns of a link that carries more than it knew, and takes one that
carries less for a broken one. 10gbe is as good as unshaped here."""
INSTALLED_OVER = "1gbe"
"""What an engine is pushed over; a slower link is set afterwards."""
SEED = 11
LONGEST_S = 240.0
"""No run offers for longer; a closed loop ends before, by its number of requests."""


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
                "goodput": mean([f.goodput_requests_per_s or 0.0 for f in found]),
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


def mean(values: Sequence[float]) -> float:
    """Their mean."""
    return sum(values) / len(values)
