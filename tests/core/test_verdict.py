"""The verdict of a comparison and the intervals under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest
from homesplit_engine.records import Mode, ModeSetting

from homesplit.core.bench_result import BenchResult
from homesplit.core.bootstrap import interval, mean, quantile
from homesplit.core.compare_result import ModeRuns, near_best, verdict
from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.load import plan_load
from homesplit.core.measured import RequestLog
from homesplit.core.prng import Prng
from homesplit.core.summary import summarise
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload

WORKLOAD = Workload(
    name="small",
    classes=(
        LengthClass(
            name="small",
            share=1.0,
            prompt_tokens_low=8,
            prompt_tokens_high=8,
            output_tokens_low=2,
            output_tokens_high=2,
        ),
    ),
    arrivals=Arrivals(rate_requests_per_s=1.0),
    targets=Targets(ttft_s=1.0, tpot_s=None),
)


def log(number: int, ttft_s: float | None) -> RequestLog:
    """A request sent at second `number`; None was refused."""
    return RequestLog(
        id=number,
        request_id=f"run-{number}",
        class_="small",
        due_s=float(number),
        sent_s=float(number),
        outcome="rejected" if ttft_s is None else "completed",
        arrival_s=() if ttft_s is None else (number + ttft_s, number + ttft_s + 0.1),
        ended_s=None if ttft_s is None else number + ttft_s + 0.1,
        prompt_tokens_asked=8,
        output_tokens_asked=2,
    )


def runs(
    mode: Mode,
    ttfts_s: Sequence[float | None],
    prefill: Literal["whole", "chunked"] = "chunked",
) -> ModeRuns:
    plan = plan_load(WORKLOAD, seed=1, seconds=float(len(ttfts_s)))
    logs = tuple(log(number, ttft_s) for number, ttft_s in enumerate(ttfts_s))
    summary = summarise(plan, logs, WORKLOAD.targets, warm_up=0.0, drain=0.0)
    run = BenchResult(
        workload=WORKLOAD,
        seconds=plan.seconds,
        seed=1,
        salt=0,
        model="m",
        api="chat",
        summary=summary,
        server=None,
        started_at="",
        logs=logs,
    )
    return ModeRuns(setting=ModeSetting(mode=mode, prefill=prefill), runs=(run,), pooled=summary)


QUICK, SLOW = 0.5, 2.0


def test_a_mode_that_keeps_the_targets_far_more_often_wins_with_an_interval_above_zero() -> None:
    found = verdict([runs("colocated", [QUICK, SLOW] * 30), runs("split", [QUICK] * 60)], None)
    assert found.mode == "split"
    assert found.low is not None and found.high is not None
    # Half of one request a second is the difference; its interval holds it.
    assert 0 < found.low < 30 / 60.1 < found.high < 1
    assert found.sentence.startswith("split had the most goodput")


def test_equal_modes_are_no_difference_and_the_simpler_one_is_named() -> None:
    found = verdict([runs("split", [QUICK] * 60), runs("colocated", [QUICK] * 60)], None)
    assert found.mode is None
    assert "No difference" in found.sentence and "take the simpler, colocated" in found.sentence


@pytest.mark.parametrize("each", [QUICK, SLOW], ids=["all inside", "none inside"])
def test_where_no_pair_differs_the_interval_still_has_a_width(each: float) -> None:
    found = verdict([runs("split", [each] * 24), runs("colocated", [each] * 24)], None)
    assert found.low is not None and found.high is not None
    # One more or fewer of 24 would not surprise anybody: about 0.075 of a request a second.
    assert found.low < -0.05 and found.high > 0.05
    many = verdict([runs("split", [each] * 240), runs("colocated", [each] * 240)], None)
    assert many.low is not None and found.low < many.low < 0


def test_a_difference_of_chance_is_no_difference() -> None:
    one = [QUICK] * 58 + [SLOW] * 2
    other = [SLOW] * 1 + [QUICK] * 59
    found = verdict([runs("colocated", one), runs("split", other)], None)
    assert found.mode is None and found.low is not None and found.low <= 0 <= (found.high or 0)


def test_pairing_finds_a_small_steady_gain_that_all_the_noise_of_requests_would_hide() -> None:
    base = [QUICK, SLOW] * 50
    better = [QUICK if i % 10 == 1 else t for i, t in enumerate(base)]
    found = verdict([runs("colocated", base), runs("split", better)], None)
    assert found.mode == "split"


@pytest.mark.parametrize(
    ("third", "said"),
    [
        (
            [QUICK, SLOW, SLOW] * 20,
            ["; replica is behind by 67%, ", "; each comparison is at 95 % by itself"],
        ),
        ([None] * 60, ["; replica served nobody."]),
    ],
)
@pytest.mark.parametrize("second", [[QUICK] * 60, [QUICK, SLOW] * 30], ids=["no winner", "won"])
def test_a_mode_that_is_far_behind_is_told_beside_those_that_the_verdict_is_about(
    second: list[float | None], third: list[float | None], said: list[str]
) -> None:
    modes = [runs("replica", third), runs("colocated", second), runs("split", [QUICK] * 60)]
    found = verdict(modes, None)
    assert all(word in found.sentence for word in said) and "replica" not in found.about


def test_a_mode_that_served_nothing_can_not_win_or_lose() -> None:
    found = verdict([runs("colocated", [None] * 60), runs("split", [SLOW] * 60)], None)
    assert found.mode is None and "Only split served" in found.sentence
    nothing = verdict([runs("colocated", [None] * 60)], None)
    assert nothing.sentence == "No data: no mode served."


def test_refused_requests_are_misses_of_the_mode_that_refused_them() -> None:
    refusing = [QUICK if i % 4 else None for i in range(60)]
    found = verdict([runs("colocated", refusing), runs("split", [QUICK] * 60)], None)
    assert found.mode == "split"


def test_too_few_common_requests_tell_nothing_apart() -> None:
    found = verdict([runs("colocated", [QUICK] * 10), runs("split", [SLOW] * 10)], None)
    assert found.mode is None and "Too few" in found.sentence


def test_on_one_machine_the_verdict_says_that_it_measured_no_network() -> None:
    found = verdict([runs("colocated", [QUICK] * 60), runs("split", [SLOW] * 60)], True)
    assert LOOPBACK_LABEL in found.sentence


def test_the_interval_is_the_same_each_time_and_holds_its_value() -> None:
    values = [float(x % 7) for x in range(100)]
    found = interval(values, mean)
    assert found == interval(values, mean)
    assert found is not None and found.low < found.value < found.high and found.count == 100


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, held = Prng(3), 0
    for _ in range(100):
        found = interval([rng.exponential(1.0) for _ in range(80)], mean)
        held += found is not None and found.low <= 1.0 <= found.high
    assert 86 <= held <= 100


def test_four_times_the_requests_give_half_the_interval() -> None:
    rng = Prng(5)
    few = interval([rng.uniform() for _ in range(100)], mean)
    many = interval([rng.uniform() for _ in range(400)], mean)
    assert few is not None and many is not None
    ratio = (few.high - few.low) / (many.high - many.low)
    assert ratio == pytest.approx(2.0, rel=0.25)


def test_one_value_has_no_interval_and_equal_values_one_of_no_width() -> None:
    assert interval([1.0], mean) is None
    same = interval([2.0] * 10, quantile(0.9))
    assert same is not None and (same.low, same.high) == (2.0, 2.0)


def in_a_closed_loop(mode: Mode, every_s: float) -> ModeRuns:
    """Users who are always answered in time, and so ask again each `every_s`."""
    workload = msgspec.structs.replace(WORKLOAD, arrivals=Arrivals(kind="closed", users=2))
    plan = plan_load(WORKLOAD, seed=1, seconds=60.0)
    times = [every_s * number for number in range(int(60 / every_s))]
    logs = tuple(
        msgspec.structs.replace(
            log(number, QUICK),
            due_s=at,
            sent_s=at,
            arrival_s=(at + QUICK, at + QUICK + 0.1),
            ended_s=at + QUICK + 0.1,
        )
        for number, at in enumerate(times)
    )
    summary = summarise(plan, logs, workload.targets, warm_up=0.0, drain=0.0)
    run = msgspec.structs.replace(
        runs(mode, [QUICK] * 30).runs[0], workload=workload, summary=summary, logs=logs
    )
    return ModeRuns(setting=ModeSetting(mode=mode), runs=(run,), pooled=summary)


def test_users_who_wait_are_answered_twice_as_often_and_that_is_the_difference() -> None:
    modes = [in_a_closed_loop("colocated", 1.0), in_a_closed_loop("replica", 0.5)]
    found = verdict(modes, None)
    assert found.mode == "replica"
    assert found.low is not None and found.high is not None
    assert 0.8 < found.low <= found.high < 1.2
    assert [mode.setting and mode.setting.mode for mode in near_best(modes)] == ["replica"]


def test_users_who_wait_equally_long_find_no_difference() -> None:
    found = verdict([in_a_closed_loop("colocated", 1.0), in_a_closed_loop("replica", 1.0)], None)
    assert found.mode is None and "take the simpler, colocated" in found.sentence


PACED = Targets(ttft_s=1.0, tpot_s=0.2)


def in_lumps(of: ModeRuns, lumps: int) -> ModeRuns:
    """The same runs with a target for TPOT, the first answers of which came at one moment."""
    (run,) = of.runs
    workload = msgspec.structs.replace(run.workload, targets=PACED)
    logs = tuple(
        msgspec.structs.replace(each, arrival_s=(each.arrival_s[0],) * 2) if n < lumps else each
        for n, each in enumerate(run.logs)
    )
    plan = plan_load(workload, seed=1, seconds=run.seconds)
    summary = summarise(plan, logs, PACED, warm_up=0.0, drain=0.0)
    assert (summary.figures.unjudged, summary.figures.judged) == (lumps, len(logs) - lumps)
    changed = msgspec.structs.replace(run, workload=workload, logs=logs, summary=summary)
    return msgspec.structs.replace(of, runs=(changed,), pooled=summary)


def test_answers_that_came_at_one_moment_are_no_misses_of_the_column_that_gave_them() -> None:
    whole = in_lumps(runs("colocated", [QUICK] * 40), 0)
    # Ten are left that can be judged in both: too few. Twenty-five tell no difference.
    few = verdict([whole, in_lumps(runs("split", [QUICK] * 40), 30)], None)
    assert few.mode is None and few.sentence == (
        "Too few requests in common to tell colocated:chunked from split; answers that came at "
        "one moment can't be judged (30 of split's): only requests are compared that can be "
        "judged in both."
    )
    some = verdict([whole, in_lumps(runs("split", [QUICK] * 40), 15)], None)
    assert some.mode is None and some.low is not None and some.high is not None
    assert some.low < 0 < some.high and some.sentence.startswith("No difference in goodput")
    assert "can't be judged (15 of split's)" in some.sentence


def test_a_column_with_lumps_wins_where_the_others_it_gave_are_better() -> None:
    # 20 of 60 slow: without the lumps it has goodput 40/60, the one with them 35/60 at least.
    slow = in_lumps(runs("colocated", [QUICK] * 25 + [QUICK, SLOW] * 15 + [SLOW] * 5), 0)
    quick = in_lumps(runs("split", [QUICK] * 60), 25)
    assert slow.pooled.figures.inside == 40 and quick.pooled.figures.inside == 35
    found = verdict([slow, quick], None)
    assert found.mode == "split" and found.low is not None and found.high is not None
    # Of the 35 that can be judged in both, 20 more were inside: 20 / 35 of one a second.
    assert 0 < found.low < 20 / 35 < found.high < 1


def test_users_who_wait_and_get_lumps_lose_to_none_by_them() -> None:
    whole = in_lumps(in_a_closed_loop("colocated", 1.0), 0)
    lumps = in_lumps(in_a_closed_loop("replica", 1.0), 30)
    found = verdict([whole, lumps], None)
    assert found.mode is None and found.sentence.startswith(
        "It can't be told whether colocated:chunked or replica had more goodput"
    )
    assert found.sentence.endswith(
        "; answers that came at one moment can't be judged (30 of replica's): their goodput is "
        "only known to be at least what is told."
    )
    # A third that nothing is told of has no part in the times either.
    third = in_lumps(in_a_closed_loop("split", 1.0), 0)
    beside = verdict([whole, lumps, third], None)
    assert "replica" in beside.sentence and len(beside.about) == 2
    assert f"whether {' or '.join(beside.about)} had more" in beside.sentence
    # Twice as many answers are more, also where all that can't be judged were inside.
    more = verdict([in_lumps(in_a_closed_loop("split", 0.5), 0), lumps], None)
    assert more.mode == "split" and more.low is not None and more.low > 0.8
