"""Intervals of percentiles: drawn by request, for every percentile, overall and by class."""

from __future__ import annotations

import pytest
from homesplit_engine.words import percentile

from homesplit.core.bootstrap import interval, quantile, quantile_ends
from homesplit.core.prng import Prng
from homesplit.core.summary import PERCENTILES, summed
from homesplit.core.window import Window
from homesplit.core.workload import Targets
from tests.core.test_verdict import QUICK, SLOW, log

SHARES = (0.5, 0.9, 0.95, 0.99)
WHOLE = Window(warm_up_s=0.0, drain_s=0.0, offered_s=60.0)


def one_each(values: list[float]) -> list[tuple[float, ...]]:
    return [(value,) for value in values]


def test_single_values_have_about_the_interval_of_the_plain_bootstrap() -> None:
    rng = Prng(7)
    values = [rng.exponential(1.0) for _ in range(120)]
    found = quantile_ends({"x": one_each(values)}, SHARES)["x"]
    for share, ends in zip(SHARES, found, strict=True):
        plain = interval(values, quantile(share))
        assert ends is not None and plain is not None
        assert ends[0] == pytest.approx(plain.low, rel=0.2)
        assert ends[1] == pytest.approx(plain.high, rel=0.2)


def test_the_interval_of_a_median_covers_it_about_as_often_as_it_says() -> None:
    rng, held, truth = Prng(3), 0, 0.6931
    for _ in range(50):
        values = one_each([rng.exponential(1.0) for _ in range(60)])
        (ends,) = quantile_ends({"x": values}, (0.5,))["x"]
        held += ends is not None and ends[0] <= truth <= ends[1]
    assert 43 <= held <= 50


def test_gaps_of_one_answer_are_no_independent_witnesses() -> None:
    rng = Prng(5)
    paces = [rng.uniform() for _ in range(40)]
    alike = [(pace,) * 50 for pace in paces]
    (ends,) = quantile_ends({"x": alike}, (0.5,))["x"]
    (single,) = quantile_ends({"x": one_each(paces)}, (0.5,))["x"]
    assert ends is not None and single is not None
    # Fifty gaps of one pace tell no more than one.
    assert ends[1] - ends[0] == pytest.approx(single[1] - single[0], rel=0.2)


def test_requests_of_many_values_and_of_none_still_have_ends_around_the_percentile() -> None:
    groups = [(1.0, 2.0), (3.0,), (), (4.0, 5.0, 6.0)]
    found = quantile_ends({"x": groups}, SHARES)["x"]
    every = sorted(value for group in groups for value in group)
    for share, ends in zip(SHARES, found, strict=True):
        assert ends is not None and ends[0] <= percentile(every, share) <= ends[1]


def test_one_request_alone_and_none_have_no_interval() -> None:
    found = quantile_ends({"one": [(1.0, 2.0), ()], "none": [(), ()]}, (0.5,))
    assert found == {"one": [None], "none": [None]}
    assert quantile_ends({}, (0.5,)) == {}


def test_every_percentile_of_a_run_and_of_its_classes_has_its_interval() -> None:
    logs = [log(n, QUICK if n % 3 else SLOW) for n in range(60)]
    targets = Targets(ttft_s=1.0, tpot_s=0.05)
    found = summed([logs], WHOLE, 60.0, targets, left_out=0)
    names = ("ttft_s", "ttst_s", "itl_s", "tpot_s", "stall_s", "longest_gap_s")
    keys = {f"{name}_{part}" for name in names for part in PERCENTILES}
    assert keys | {"attainment", "goodput_requests_per_s"} == set(found.intervals)
    for told, figures in (
        (found.intervals, found.figures),
        (found.class_intervals["small"], found.by_class["small"]),
    ):
        for name in names:
            for part in PERCENTILES:
                each = told[f"{name}_{part}"]
                assert each is not None and each.low <= each.value <= each.high
                assert each.value == getattr(getattr(figures, name), part) and each.count == 60


def test_a_figure_that_nothing_had_has_no_interval() -> None:
    refused = summed([[log(n, None) for n in range(9)]], WHOLE, 60.0, Targets(), left_out=0)
    assert set(refused.intervals.values()) == {None}


def test_the_only_class_is_the_whole_and_its_intervals_are_not_drawn_again() -> None:
    logs = [log(number, QUICK) for number in range(30)]
    found = summed([logs], WHOLE, 60.0, Targets(ttft_s=1.0, tpot_s=None), left_out=0)
    ((name, own),) = found.class_intervals.items()
    assert own is found.intervals and found.by_class == {name: found.figures}
