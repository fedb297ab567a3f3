"""Targets and a rate that the boxes at hand can hold, for whom nobody named any.

The same multiples as `alone` takes of measured requests, here of what the cost model says that
requests take alone; then the simulator is asked whether they hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from homesplit.core import say
from homesplit.core.alone import BUSY_SHARE, TPOT_TIMES, TTFT_TIMES, rounded_up
from homesplit.core.ledger import PromptClass, ledger_row
from homesplit.core.plan import Suited
from homesplit.core.predict import CAPACITY_ATTAINMENT, at_rate, outlook
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.workload import LengthClass, Targets, Workload

REQUESTS = 60
TRIES = 6
SLOWER = 0.6
"""The rate of each try beside the one before."""


def suited(
    scene: Scene, able: Sequence[Arrangement], workload: Workload, requests: int = REQUESTS
) -> Suited | None:
    """What the quickest box holds of this load; None where no rate holds.

    `able` are the arrangements that fit; those of one box are asked, with so many `requests`.
    """
    ones = [each for each in able if each.mode == "colocated"]
    if not ones:
        return None
    box = min({each.first: None for each in ones}, key=lambda b: _whole_s(scene, ones, b, workload))
    own = [each for each in ones if each.first == box]
    targets = _targets(scene, own[0], workload)
    rate = BUSY_SHARE / _whole_s(scene, ones, box, workload)
    for _ in range(TRIES):
        # What is told is what is asked.
        rate = float(f"{rate:.2g}")
        load = at_rate(workload, rate)
        share = max(outlook(scene, each, load, targets, requests).attainment for each in own)
        if share >= CAPACITY_ATTAINMENT:
            return _made(box, targets, rate, share, workload.turns)
        rate *= SLOWER
    return None


def _made(box: str, targets: Targets, rate: float, share: float, turns: int) -> Suited:
    ttft_s, tpot_s = targets.ttft_s or 0.0, targets.tpot_s or 0.0
    sentence = (
        f"What these boxes can hold: TTFT {say.seconds(ttft_s)} and TPOT {say.seconds(tpot_s)} at "
        f"{say.offered_rate(rate, turns)}, {TTFT_TIMES:g} and {TPOT_TIMES:g} times what a long "
        f"prompt and a token take alone on {box} ({say.percent(share)} of the requests inside)."
    )
    return Suited(
        box=box,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        rate_requests_per_s=rate,
        attainment=share,
        turns=turns,
        sentence=sentence,
    )


def _targets(scene: Scene, alone: Arrangement, workload: Workload) -> Targets:
    """So many times the longest prompt's TTFT, and the slowest class's token, alone."""
    rows = [ledger_row(scene, alone, _longest(workload, kind)) for kind in workload.classes]
    steps = [
        scene.box(alone.first).cost.step_seconds([], 1, row.prompt_tokens + row.output_tokens)
        for row in rows
    ]
    return Targets(
        ttft_s=rounded_up(TTFT_TIMES * max(row.ttft_s for row in rows)),
        tpot_s=rounded_up(TPOT_TIMES * max(steps)),
    )


def _whole_s(scene: Scene, ones: Sequence[Arrangement], box: str, workload: Workload) -> float:
    """Seconds of a mean request alone on a box, over the classes by their share."""
    alone = next(each for each in ones if each.first == box)
    cost, total, sum_s = scene.box(box).cost, 0.0, 0.0
    for kind in workload.classes:
        prompt = workload.first_prompt_tokens(round(kind.mean_prompt_tokens))
        mean = PromptClass(
            name=kind.name,
            prompt_tokens=prompt,
            output_tokens=max(1, round(kind.mean_output_tokens)),
        )
        steps = max(0, mean.output_tokens - 1)
        writes_s = steps * cost.step_seconds([], 1, prompt + mean.output_tokens // 2)
        sum_s += kind.share * (ledger_row(scene, alone, mean).ttft_s + writes_s)
        total += kind.share
    return sum_s / total


def _longest(workload: Workload, kind: LengthClass) -> PromptClass:
    return PromptClass(
        name=kind.name,
        prompt_tokens=workload.first_prompt_tokens(kind.prompt_tokens_high),
        output_tokens=kind.output_tokens_high,
    )


def with_suited(workload: Workload, found: Suited) -> Workload:
    """The load at the rate and with the targets that suit."""
    load = at_rate(workload, found.rate_requests_per_s)
    return structs.replace(load, targets=found.targets)
