"""A measured comparison has the last word in the plan, where it is of the same question."""

from __future__ import annotations

import pytest
from homesplit_engine.records import ModeSetting
from msgspec import structs

from homesplit.core.compare_result import near_best, verdict
from homesplit.core.compared import Compared, ComparedMode, compared
from homesplit.core.decide import decide
from homesplit.core.plan import MeasuredFigures
from homesplit.core.workload import Targets
from tests.core.test_decide import QUICK, ask, load
from tests.core.test_verdict import QUICK as FAST
from tests.core.test_verdict import SLOW, WORKLOAD, runs

ALONE = ModeSetting(mode="colocated", prefill="chunked", decode_box="a")
WHOLE = structs.replace(ALONE, prefill="whole")
BOTH = ModeSetting(mode="replica", prefill="whole")
SPLIT = ModeSetting(mode="split", prefill="whole", prefill_box="a", decode_box="b")


def figures(goodput: float) -> MeasuredFigures:
    return MeasuredFigures(
        offered=60,
        ttft_p50_s=1.0,
        ttft_p90_s=2.0,
        tpot_p50_s=0.1,
        tpot_p90_s=0.2,
        attainment=1.0,
        goodput_requests_per_s=goodput,
    )


def seen(near: tuple[ModeSetting, ...], *also: ModeSetting) -> Compared:
    return Compared(
        at="2026-11-30T10:00:00+00:00",
        boxes=("b", "a"),
        model=ask().shape.name,
        workload=load(),
        modes=tuple(ComparedMode(setting=s, figures=figures(1.0)) for s in (*near, *also)),
        near=near,
        sentence="measured",
        link_bytes_per_s=1e9,
    )


def test_a_winner_that_the_model_did_not_expect_is_recommended_and_the_model_named() -> None:
    before = decide(ask(), QUICK)
    assert before.recommendation.mode == "colocated"
    plan = decide(ask(), QUICK, seen((SPLIT,), ALONE, WHOLE))
    assert plan.recommendation.mode == "split" and plan.recommendation.prefill_box == "a"
    assert "measured on 2026-11-30" in plan.recommendation.sentence
    assert "the model alone had expected colocated" in plan.recommendation.sentence
    assert plan.modes[0].measured == figures(1.0)
    assert plan.measured_at == "2026-11-30T10:00:00+00:00"


@pytest.mark.parametrize(
    ("near", "said"),
    [((ALONE, WHOLE), "nothing told it from"), ((WHOLE, BOTH, ALONE), "nothing told it from")],
)
def test_a_choice_among_the_best_measured_ones_stays(
    near: tuple[ModeSetting, ...], said: str
) -> None:
    plan = decide(ask(), QUICK, seen(near, SPLIT))
    assert plan.recommendation.mode == "colocated"
    assert said in plan.recommendation.sentence


def test_a_choice_that_was_not_measured_is_not_overruled() -> None:
    plan = decide(ask(), QUICK, seen((SPLIT,), BOTH))
    assert plan.recommendation.mode == "colocated"
    assert "measured" not in plan.recommendation.sentence


def test_it_answers_only_the_question_that_was_measured() -> None:
    known = seen((SPLIT,), ALONE)
    name = ask().shape.name
    assert known.answers(("a", "b"), name, load(), 1.1e9)
    assert known.answers(("a", "b"), name, load(), None)
    assert not known.answers(("a", "c"), name, load(), 1e9)
    assert not known.answers(("a", "b"), "other", load(), 1e9)
    assert not known.answers(("a", "b"), name, load(users=2), 1e9)
    assert not known.answers(("a", "b"), name, load(), 2e9)
    assert not known.answers(("a", "b"), name, load(), 1e9, "int8")
    for change in ({"cancel_share": 0.5}, {"shared_prefix_groups": 4}, {"turn_think_s": 9.0}):
        other = structs.replace(load(), **change)
        assert not known.answers(("a", "b"), name, other, 1e9)
    assert known.answers(("a", "b"), name, structs.replace(load(), name="as I call it"), 1e9)
    stricter = structs.replace(load(), targets=Targets(ttft_s=0.1, tpot_s=None))
    assert not known.answers(("a", "b"), name, stricter, 1e9)


def test_what_is_kept_of_a_comparison_names_the_modes_that_nothing_tells_apart() -> None:
    modes = [
        runs("split", [FAST] * 60),
        runs("replica", [FAST] * 60),
        runs("colocated", [FAST, SLOW] * 30),
    ]
    assert [mode.name for mode in near_best(modes)] == ["replica", "split"]
    kept = compared(modes, verdict(modes, None), boxes=("a", "b"), model="m", at="2026")
    assert kept is not None
    assert [setting.mode for setting in kept.near] == ["replica", "split"]
    assert [mode.figures.attainment for mode in kept.modes] == [1.0, 1.0, 0.5]
    assert kept.answers(("b", "a"), "M", WORKLOAD, None)


def test_a_comparison_without_goodput_or_with_few_requests_is_not_kept() -> None:
    for times in ([SLOW] * 60, [FAST] * 5):
        modes = [runs("split", times), runs("replica", times)]
        told = verdict(modes, None)
        assert compared(modes, told, boxes=("a", "b"), model="m", at="2026") is None
