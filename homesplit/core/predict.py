"""What an arrangement is predicted to do under a load: figures, capacity, interval."""

from __future__ import annotations

from homesplit_engine.words import Figures, Percentiles, figures
from msgspec import Struct, structs

from homesplit.core.load import Extent, LoadPlan, bounded_load, plan_load
from homesplit.core.plan import MeasuredFigures, ModePrediction, Spread, StallFigures
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.simulate import SimResult, simulate
from homesplit.core.window import Window, window
from homesplit.core.workload import Arrivals, Targets, Workload

SEED = 20_261
FLOOD_USERS = 48
"""For each box: more than most have room for at once."""
CONVERSING = 3
"""An open load of conversations takes at most so many times as many requests: with fewer, most are
over before as many conversations go on at once as its rate brings."""
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
    """About so many requests of the load; a closed loop gets the number that ends it."""
    arrivals = workload.arrivals
    if arrivals.kind == "closed":
        users = arrivals.users or 1
        chats = max(4, -(-requests // (users * workload.turns)))
        plan = plan_load(workload, seed=seed, seconds=max(chats * workload.turns / 20.0, 0.05))
        return plan, min(requests, max(2 * users, requests))
    rate = (arrivals.rate_requests_per_s or 1.0) * workload.turns
    requests *= min(workload.turns, CONVERSING)
    seconds = requests / rate
    if arrivals.pattern == "on_off":
        period_s = arrivals.on_s + arrivals.off_s
        seconds = max(2.0, round(seconds / arrivals.on_s)) * period_s
        seconds = min(seconds, 8.0 * requests / rate + period_s)
    plan = plan_load(workload, seed=seed, seconds=seconds)
    return plan, None


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
        load, enough = load_of(workload, requests)
        result = simulate(scene, arrangement, load, enough=enough, ttft_target_s=targets.ttft_s)
        # Where waiting breaks no target, only the time to work everything off tells what was not
        # sustained.
        patient = targets.ttft_s is None
        window_s = result.window_s if load.closed or patient else load.seconds
        made = _sum(result, targets, window_s)
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
    nobody writes.
    """
    users = FLOOD_USERS * len(arrangement.boxes)
    flood = structs.replace(
        workload,
        arrivals=Arrivals(kind="closed", users=users, think_s=0.0),
        turns=1,
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
    most = saturation(scene, arrangement, workload)
    if untargeted:
        return most
    low, high = 0.0, 1.1 * most
    if high <= 0:
        return 0.0
    for turn in range(effort.capacity_rounds):
        rate = high if turn == 0 else (low + high) / 2.0
        if _holds(scene, arrangement, at_rate(workload, rate), targets, effort):
            low = rate
            if turn == 0:
                return rate
        else:
            high = rate
    return low


def _holds_alone(
    scene: Scene, arrangement: Arrangement, workload: Workload, targets: Targets
) -> bool:
    """Whether enough requests are inside the targets when each has the boxes to itself."""
    lone = structs.replace(workload, arrivals=Arrivals(kind="closed", users=1, think_s=0.0))
    made = outlook(scene, arrangement, lone, targets, 24)
    # A few requests are a coarse sample, so only a clear miss is taken for one.
    return made.attainment >= CAPACITY_ATTAINMENT - 0.15


def _holds(
    scene: Scene, arrangement: Arrangement, workload: Workload, targets: Targets, effort: Effort
) -> bool:
    made = outlook(scene, arrangement, workload, targets, effort.capacity_requests)
    return made.attainment >= CAPACITY_ATTAINMENT and made.keeps_up


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
) -> ModePrediction:
    """The record of one arrangement; its interval is that of costs all low and all high."""
    arrangement = made.arrangement
    fast, slow = _bounds(scene, made, workload, targets, effort, extent)
    goodput = made.figures.goodput_requests_per_s
    count = len(arrangement.boxes)
    setting = arrangement.setting
    return ModePrediction(
        mode=arrangement.mode,
        boxes=arrangement.boxes,
        prefill=setting.prefill,
        prefill_box=setting.prefill_box if arrangement.mode == "split" else None,
        decode_box=setting.decode_box if arrangement.mode != "replica" else None,
        kv_wire=setting.kv_wire if arrangement.mode == "split" else None,
        ttft_s=_spread(made.figures.ttft_s, fast.ttft_s.p50, slow.ttft_s.p50),
        tpot_s=_spread(made.figures.tpot_s, fast.tpot_s.p50, slow.tpot_s.p50),
        stall_s=_stalls(made.figures.stall_s, fast.stall_s.p90, slow.stall_s.p90),
        attainment=made.figures.attainment,
        goodput_requests_per_s=goodput,
        capacity_requests_per_s=capacity(scene, arrangement, workload, targets, effort),
        goodput_per_box=None if goodput is None else goodput / count,
        goodput_per_watt_hour=goodput * 3600.0 / watts if goodput is not None and watts else None,
        goodput_per_price=goodput / price if goodput is not None and price else None,
        measured=measured,
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
