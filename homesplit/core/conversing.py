"""Loads whose conversations have several turns: as many go on from the start as their rate brings.

A load that begins with nobody brings less until its first conversations end: what is told of one
that goes on is told from its middle, where others were begun before and are part of the way.
"""

from __future__ import annotations

import math

from msgspec import Struct, structs

from homesplit.core.load import LoadPlan, OfferedRequest, plan_load
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.simulate import simulate
from homesplit.core.workload import Arrivals, Workload

TIMES = 2
"""So many times as many requests are counted as of a load without turns: the turns of a
conversation come one with the other, and are so many fewer pieces of luck."""
LOADED = 1.2
"""How many times as long an answer takes beside others as alone, about."""
MOST_BEFORE = 3000
"""Requests of conversations that were begun before: where there are more, too many come anyway."""
MOST_USERS = 48
"""For each box; fewer where their conversations have no room."""
FLOOD_REQUESTS = 100
ENDED_SHARE = 0.9
"""Of a flood that ends: then the last ones write alone."""


class Talks(Struct, frozen=True, kw_only=True):
    """A load in its middle, and the last question before it of each conversation under way."""

    load: LoadPlan
    before: tuple[OfferedRequest, ...]
    """The one longest ago first."""


def converses(workload: Workload) -> bool:
    """Whether conversations of several turns begin at a rate."""
    return workload.turns > 1 and workload.arrivals.kind == "open"


def turn_s(scene: Scene, arrangement: Arrangement, workload: Workload) -> float:
    """About how long it is from one question of a conversation to the next."""
    prompt, answer = _means(workload)
    alone_s = max(
        box.cost.step_seconds([(0, max(1, round(prompt)))], 0, 0)
        + answer * box.cost.step_seconds([], 1, _context(workload))
        for box in map(scene.box, arrangement.boxes)
    )
    return workload.turn_think_s + LOADED * alone_s


def going_on(workload: Workload, *, seed: int, seconds: float, each_s: float) -> Talks:
    """So many seconds from the middle of a load; a question follows the other after `each_s`."""
    rate = (workload.arrivals.rate_requests_per_s or 1.0) * workload.turns
    before_s = min(workload.turns * each_s, MOST_BEFORE / rate)
    whole = plan_load(workload, seed=seed, seconds=before_s + seconds)
    kept: list[OfferedRequest] = []
    before: list[tuple[float, OfferedRequest]] = []
    begun_s, at = 0.0, 0
    for place, request in enumerate(whole.requests):
        if request.turn == 0:
            begun_s = (request.send_at_s or 0.0) - before_s
            at = max(0, math.ceil(-begun_s / each_s))
        moment_s = begun_s + at * each_s
        if moment_s >= seconds or request.turn < at:
            continue
        if request.turn > at:
            kept.append(request)
            continue
        kept.append(structs.replace(request, send_at_s=moment_s, after=None, pause_s=0.0))
        if at:
            before.append((moment_s, whole.requests[place - 1]))
    before.sort(key=lambda one: one[0])
    return Talks(
        load=structs.replace(whole, seconds=seconds, requests=tuple(kept)),
        before=tuple(request for _, request in before),
    )


def _means(workload: Workload) -> tuple[float, float]:
    """Tokens of a prompt and of an answer, without what was said before."""
    total = sum(kind.share for kind in workload.classes)
    prompt = sum(kind.share * kind.mean_prompt_tokens for kind in workload.classes)
    answer = sum(kind.share * kind.mean_output_tokens for kind in workload.classes)
    return prompt / total, answer / total


def _context(workload: Workload) -> int:
    """Tokens of a conversation that is half over."""
    prompt, answer = _means(workload)
    first = workload.first_prompt_tokens(round(prompt))
    return round(first + answer + (workload.turns - 1) * (prompt + answer) / 2.0)


def flooded(
    scene: Scene,
    arrangement: Arrangement,
    workload: Workload,
    seed: int,
    most_users: int = MOST_USERS,
) -> float:
    """Requests per second with as many conversations at once as have room, without a pause."""
    room = min(scene.box(name).kv_tokens for name in arrangement.boxes) // _context(workload)
    users = max(1, min(most_users, room)) * len(arrangement.boxes)
    flood = structs.replace(
        workload,
        arrivals=Arrivals(kind="closed", users=users, think_s=0.0),
        turn_think_s=0.0,
        cancel_share=0.0,
    )
    each = max(1, round(FLOOD_REQUESTS / (users * workload.turns)))
    load = plan_load(flood, seed=seed, seconds=0.05, each=each)
    lines = [record.timeline for record in simulate(scene, arrangement, load).records]
    ends = sorted(t.token_s[-1] for t in lines if t.outcome == "completed" and t.token_s)
    ended = int(ENDED_SHARE * len(ends))
    return ended / ends[ended - 1] if ended else 0.0
