"""What an arrangement is predicted to do under a load: figures, capacity, interval."""

from __future__ import annotations

import math
from collections.abc import Callable

from homesplit_engine.words import Figures, Percentiles, figures
from msgspec import Struct, structs

from homesplit.core.conversing import TIMES, converses, flooded, going_on, turn_s
from homesplit.core.load import Extent, LoadPlan, OfferedRequest, bounded_load, plan_load
from homesplit.core.plan import MeasuredFigures, ModePrediction, Spread, StallFigures
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.sim_result import Bound, SimResult
from homesplit.core.simulate import simulate
from homesplit.core.window import Window, window
from homesplit.core.workload import Arrivals, Targets, Workload

SEED = 20_261
FLOOD_USERS = 48
"""For each box: more than most have room for at once."""
BEYOND_FLOOD = 1.1
"""A flood is worked off in batches; a rate that comes evenly may be somewhat higher."""
FIRST_USERS = 12
"""For each box: so many conversations at once tell where to begin to look for the most."""
HIGHER = 1.5
SURER = 3
"""So many times as many requests tell whether a rate of conversations lasts: what waits grows
slowly, and makes them outgrow the memory in which their beginnings are kept."""
LOWER = 0.88
"""The next rate where one does not last; so often at the most."""
TRIES = 6
LUCK = 1.25
"""No more than so many times the requests that a rate brings come by chance."""
CAPACITY_ATTAINMENT = 0.90
"""DistServe's: the highest rate at which so many requests are inside both targets."""


class Effort(Struct, frozen=True, kw_only=True):
    """How much is simulated: more requests, steadier figures, longer waiting."""

    requests: int = 240
    capacity_requests: int = 120
    capacity_rounds: int = 6


class Outlook(Struct, frozen=True, kw_only=True):
    """One arrangement's figures under the load, as the decision weighs them."""

    arrangement: Arrangement
    figures: Figures
    result: SimResult
    in_flight: float
    """Answers being written at once, on average."""
    latency_s: float
    """What the targets care about: TTFT, TPOT, or the mean time of a whole answer."""
    keeps_up: bool
    """Whether the load is worked off as it comes, and no queue grows."""
    doubt: float = 0.0
    """By which share the boxes' fits miss the steps that they were made of, in the median; the
    greatest of them, 0 where none was fitted."""

    @property
    def goodput(self) -> float:
        """Requests per second inside both targets."""
        return self.figures.goodput_requests_per_s or 0.0

    @property
    def attainment(self) -> float:
        """Share of offered requests inside both targets."""
        return self.figures.attainment or 0.0


def load_of(workload: Workload, requests: int, *, seed: int = SEED) -> tuple[LoadPlan, int | None]:
    """About so many requests of the load.

    A closed loop gets the number that ends it: two for each user at the least.
    """
    arrivals = workload.arrivals
    if arrivals.kind == "closed":
        users = arrivals.users or 1
        requests = max(2 * users, requests)
        chats = max(4, -(-requests // (users * workload.turns)))
        plan = plan_load(workload, seed=seed, seconds=max(chats * workload.turns / 20.0, 0.05))
        return plan, requests
    return plan_load(workload, seed=seed, seconds=_seconds(workload, requests)), None


def _seconds(workload: Workload, requests: int) -> float:
    """How long an open load offers about so many requests, in whole bursts where it has any."""
    arrivals = workload.arrivals
    rate = (arrivals.rate_requests_per_s or 1.0) * workload.turns
    seconds = requests / rate
    if arrivals.pattern == "on_off":
        period_s = arrivals.on_s + arrivals.off_s
        seconds = max(2.0, round(seconds / arrivals.on_s)) * period_s
        seconds = min(seconds, 8.0 * requests / rate + period_s)
    return seconds


def outlook(
    scene: Scene,
    arrangement: Arrangement,
    workload: Workload,
    targets: Targets,
    requests: int,
    extent: Extent | None = None,
) -> Outlook:
    """Simulate the load and sum it up: about `requests` of one that goes on, or all of `extent`."""
    if extent is not None:
        load = bounded_load(workload, extent)
        result = simulate(
            scene,
            arrangement,
            load,
            until_s=load.seconds,
            ttft_target_s=targets.ttft_s,
            gives_up=True,
        )
        made = run_figures(result, load, targets)
    else:
        load, result = _going_on(scene, arrangement, workload, targets, requests)
        made = _worked_off(result, load, targets)
    timelines = [record.timeline for record in result.records]
    writing = sum(t.token_s[-1] - t.token_s[0] for t in timelines if len(t.token_s) > 1)
    return Outlook(
        arrangement=arrangement,
        figures=made,
        result=result,
        in_flight=writing / result.window_s if result.window_s > 0 else 0.0,
        latency_s=_latency(made, result, targets),
        # A load that ends is worked off in the end.
        keeps_up=load.closed or extent is not None or _keeps_up(result, load.seconds),
        doubt=max((box.cost.fit.error_p50 for box in scene.boxes if box.cost.fit), default=0.0),
    )


def _going_on(
    scene: Scene,
    arrangement: Arrangement,
    workload: Workload,
    targets: Targets,
    requests: int,
    *,
    most_missed: float | None = None,
) -> tuple[LoadPlan, SimResult]:
    """A load that goes on, and what became of it.

    With `most_missed` the run ends once a greater share of all must have missed.
    """
    before: tuple[OfferedRequest, ...] = ()
    enough: int | None = None
    if converses(workload):
        each_s = turn_s(scene, arrangement, workload)
        seconds = _seconds(workload, TIMES * requests)
        talks = going_on(workload, seed=SEED, seconds=seconds, each_s=each_s)
        load, before, offered = talks.load, talks.before, LUCK * TIMES * requests
    else:
        load, enough = load_of(workload, requests)
        offered = len(load.requests)
    bound = None
    if most_missed is not None:
        bound = Bound(ttft_s=targets.ttft_s, tpot_s=targets.tpot_s, most=most_missed * offered)
    result = simulate(
        scene,
        arrangement,
        load,
        enough=enough,
        until_s=load.seconds if converses(workload) else None,
        ttft_target_s=targets.ttft_s,
        bound=bound,
        before=before,
    )
    return load, result


def _worked_off(result: SimResult, load: LoadPlan, targets: Targets) -> Figures:
    """What a load that goes on came to, over the time in which it was offered.

    Where waiting breaks no target, only the time to work everything off tells what was not
    sustained.
    """
    patient = targets.ttft_s is None
    return _sum(result, targets, result.window_s if load.closed or patient else load.seconds)


def _keeps_up(result: SimResult, seconds: float) -> bool:
    """Whether the last fifth of an open load waited about as long as the first.

    Where less is served than comes, the wait grows by the lacking share of the time.
    """
    ordered = sorted((r.timeline for r in result.records), key=lambda line: line.start_s)
    waits = [line.token_s[0] - line.start_s for line in ordered if line.token_s]
    fifth = len(waits) // 5
    if not fifth:
        return True
    first, last = sum(waits[:fifth]) / fifth, sum(waits[-fifth:]) / fifth
    return last <= 2.0 * first + 0.1 * seconds


def run_figures(
    result: SimResult, load: LoadPlan, targets: Targets, seen: Window | None = None
) -> Figures:
    """The figures of a simulated run of `load`, counted as the measured one; all without `seen`."""
    seen = seen or window(load.seconds, 0.0, 0.0)
    counted = [r for r in result.records if seen.counts(r.timeline.start_s)]
    lines = [record.timeline for record in counted]
    ends = [t.token_s[-1] for t in lines if t.outcome == "completed" and t.token_s]
    last_s = max(ends, default=load.seconds)
    # A closed loop that ran dry ends with its last answer.
    dry = load.closed and len(result.records) >= len(load.requests)
    window_s = last_s - seen.warm_up_s if dry else seen.length_s(last_s)
    return _sum(structs.replace(result, records=tuple(counted)), targets, window_s)


def _sum(result: SimResult, targets: Targets, window_s: float) -> Figures:
    return figures(
        [record.timeline for record in result.records],
        ttft_target_s=targets.ttft_s,
        tpot_target_s=targets.tpot_s,
        window_s=max(window_s, 1e-9),
    )


def _latency(made: Figures, result: SimResult, targets: Targets) -> float:
    if targets.ttft_s is not None and targets.tpot_s is None:
        return made.ttft_s.p90 or 0.0
    if targets.tpot_s is not None and targets.ttft_s is None:
        return made.tpot_s.p90 or 0.0
    whole = [
        r.timeline.token_s[-1] - r.timeline.start_s for r in result.records if r.timeline.token_s
    ]
    return sum(whole) / len(whole) if whole else float("inf")


def saturation(scene: Scene, arrangement: Arrangement, workload: Workload) -> float:
    """Requests per second with everything there at once: what no queue can beat.

    Over one answer of each user, from when half of them have theirs: before that, all read and
    nobody writes. Of conversations over all of several, as later turns differ from earlier ones.
    """
    if workload.turns > 1:
        return flooded(scene, arrangement, workload, SEED)
    users = FLOOD_USERS * len(arrangement.boxes)
    flood = structs.replace(
        workload,
        arrivals=Arrivals(kind="closed", users=users, think_s=0.0),
        cancel_share=0.0,
    )
    load, enough = load_of(flood, 2 * users)
    result = simulate(scene, arrangement, load, enough=enough)
    lines = [record.timeline for record in result.records]
    ends = sorted(t.token_s[-1] for t in lines if t.outcome == "completed" and t.token_s)
    if len(ends) <= 3 * users // 2:
        return len(ends) / ends[-1] if ends else 0.0
    # Answers of one batch may end at one moment: what lies between two such moments is counted.
    first_s, last_s = ends[users // 2], ends[3 * users // 2]
    return sum(first_s < end_s <= last_s for end_s in ends) / (last_s - first_s)


def capacity(
    scene: Scene, arrangement: Arrangement, workload: Workload, targets: Targets, effort: Effort
) -> float:
    """The highest offered rate with 90 % of requests inside both targets, requests per second.

    Without any target: what the arrangement completes when flooded.
    """
    untargeted = targets.ttft_s is None and targets.tpot_s is None
    if not untargeted and not _holds_alone(scene, arrangement, workload, targets):
        return 0.0
    talks = workload.turns > 1
    if talks and not untargeted:
        most = flooded(scene, arrangement, workload, SEED, FIRST_USERS)
    else:
        most = saturation(scene, arrangement, workload)
    if untargeted:
        return most
    if most <= 0:
        return 0.0

    def holds(rate: float, requests: int) -> bool:
        load = at_rate(workload, rate)
        return _holds(scene, arrangement, load, targets, requests)

    found = _highest(BEYOND_FLOOD * most, effort, holds, grows=talks)
    return _lasting(found, effort, holds) if talks else found


def _highest(
    first: float, effort: Effort, holds: Callable[[float, int], bool], *, grows: bool
) -> float:
    """The highest rate that holds, by halving; above the `first` only where it `grows`."""
    rate, low, high = first, 0.0, math.inf
    # Where a longer look follows, a rough one is enough.
    rounds = max(2, effort.capacity_rounds - 2) if grows else effort.capacity_rounds
    for _ in range(rounds):
        if holds(rate, effort.capacity_requests):
            low = rate
        else:
            high = rate
        if high < math.inf:
            rate = (low + high) / 2.0
        elif grows:
            # Flooded, conversations outgrow the memory that they have when they come one by one.
            rate = HIGHER * low
        else:
            break
    return low


def _lasting(rate: float, effort: Effort, holds: Callable[[float, int], bool]) -> float:
    """The same of conversations, whose load takes longer to show what it is."""
    for _ in range(TRIES):
        if rate <= 0 or holds(rate, SURER * effort.capacity_requests):
            return rate
        rate *= LOWER
    return rate


def _holds_alone(
    scene: Scene, arrangement: Arrangement, workload: Workload, targets: Targets
) -> bool:
    """Whether enough requests are inside the targets when each has the boxes to itself."""
    lone = structs.replace(workload, arrivals=Arrivals(kind="closed", users=1, think_s=0.0))
    made = outlook(scene, arrangement, lone, targets, 24)
    # A few requests are a coarse sample, so only a clear miss is taken for one.
    return made.attainment >= CAPACITY_ATTAINMENT - 0.15


def _holds(
    scene: Scene, arrangement: Arrangement, workload: Workload, targets: Targets, requests: int
) -> bool:
    missed = 1.0 - CAPACITY_ATTAINMENT
    load, result = _going_on(scene, arrangement, workload, targets, requests, most_missed=missed)
    if result.hopeless:
        return False
    keeps_up = load.closed or _keeps_up(result, load.seconds)
    made = _worked_off(result, load, targets)
    return (made.attainment or 0.0) >= CAPACITY_ATTAINMENT and keeps_up


def at_rate(workload: Workload, rate: float) -> Workload:
    """The same load in an open loop at another mean rate, bursts kept."""
    arrivals = workload.arrivals
    if arrivals.kind == "closed":
        arrivals = Arrivals(kind="open", rate_requests_per_s=rate / workload.turns)
    else:
        arrivals = structs.replace(arrivals, rate_requests_per_s=rate / workload.turns)
    return structs.replace(workload, arrivals=arrivals)


def prediction(
    scene: Scene,
    made: Outlook,
    workload: Workload,
    targets: Targets,
    *,
    effort: Effort,
    watts: float | None,
    price: float | None,
    extent: Extent | None = None,
    measured: MeasuredFigures | None = None,
    alike: ModePrediction | None = None,
) -> ModePrediction:
    """The record of one arrangement; its interval is that of costs all low and all high.

    One that is `alike`, on boxes that are, has the same interval and the same capacity.
    """
    arrangement = made.arrangement
    goodput = made.figures.goodput_requests_per_s
    count = len(arrangement.boxes)
    setting = arrangement.setting
    ttft_s, tpot_s, stall_s, capacity_requests_per_s = (
        (alike.ttft_s, alike.tpot_s, alike.stall_s, alike.capacity_requests_per_s)
        if alike
        else _simulated(scene, made, workload, targets, effort, extent)
    )
    return ModePrediction(
        mode=arrangement.mode,
        boxes=arrangement.boxes,
        prefill=setting.prefill,
        prefill_box=setting.prefill_box if arrangement.mode == "split" else None,
        decode_box=setting.decode_box if arrangement.mode != "replica" else None,
        kv_wire=setting.kv_wire if arrangement.mode == "split" else None,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        stall_s=stall_s,
        attainment=made.figures.attainment,
        goodput_requests_per_s=goodput,
        capacity_requests_per_s=capacity_requests_per_s,
        goodput_per_box=None if goodput is None else goodput / count,
        goodput_per_watt_hour=goodput * 3600.0 / watts if goodput is not None and watts else None,
        goodput_per_price=goodput / price if goodput is not None and price else None,
        measured=measured,
    )


def _simulated(
    scene: Scene,
    made: Outlook,
    workload: Workload,
    targets: Targets,
    effort: Effort,
    extent: Extent | None,
) -> tuple[Spread, Spread, StallFigures, float]:
    """What takes more simulations than the outlook itself: intervals and capacity."""
    fast, slow = _bounds(scene, made, workload, targets, effort, extent)
    seen = made.figures
    return (
        _spread(seen.ttft_s, fast.ttft_s.p50, slow.ttft_s.p50),
        _spread(seen.tpot_s, fast.tpot_s.p50, slow.tpot_s.p50),
        _stalls(seen.stall_s, fast.stall_s.p90, slow.stall_s.p90),
        capacity(scene, made.arrangement, workload, targets, effort),
    )


def _spread(made: Percentiles, low: float | None, high: float | None) -> Spread:
    ends = _ordered(made.p50, low, high)
    return Spread(p50=made.p50, p90=made.p90, low=ends[0], high=ends[1])


def _stalls(made: Percentiles, low: float | None, high: float | None) -> StallFigures:
    ends = _ordered(made.p90, low, high)
    return StallFigures(p50=made.p50, p90=made.p90, low=ends[0], high=ends[1])


def _ordered(
    mid: float | None, fast: float | None, slow: float | None
) -> tuple[float | None, float | None]:
    """Least and most of three, an end that is not known left out.

    Quicker boxes do not make all quicker: a prompt that is read sooner hides less of its hand-off.
    """
    known = [each for each in (mid, fast, slow) if each is not None]
    return None if fast is None else min(known), None if slow is None else max(known)


def _bounds(
    scene: Scene,
    made: Outlook,
    workload: Workload,
    targets: Targets,
    effort: Effort,
    extent: Extent | None,
) -> tuple[Figures, Figures]:
    """Figures with every cost at the low and at the high end of its interval."""
    requests = max(40, effort.requests // 3)
    costs = [scene.box(name).cost for name in made.arrangement.boxes]
    ends: list[Figures] = []
    for prefill, decode in (
        (min(c.prefill_low for c in costs), min(c.decode_low for c in costs)),
        (max(c.prefill_high for c in costs), max(c.decode_high for c in costs)),
    ):
        bound = scene.scaled(prefill, decode)
        ends.append(outlook(bound, made.arrangement, workload, targets, requests, extent).figures)
    return ends[0], ends[1]
