"""What the advice says of its own grounds: busy boxes, overruling comparisons, higher rates."""

from __future__ import annotations

import pytest
from msgspec import structs

from homesplit.cli.plan_text import plan_lines
from homesplit.core.candidates import Asked, arrangements, build_scene
from homesplit.core.decide import decide
from homesplit.core.elsewhere import open_atlas
from homesplit.core.explain import busy
from homesplit.core.load import plan_load
from homesplit.core.machine import BUSY_WORDS, BoxProfile
from homesplit.core.predict import at_rate, outlook, run_figures, saturation
from homesplit.core.probed import box_profile
from homesplit.core.reading import measured
from homesplit.core.sim_result import Bound
from homesplit.core.simulate import simulate
from homesplit.core.workload import Arrivals, Targets
from tests.core.test_decide import QUICK, ask, box, load


def probed(name: str, *, spread: float = 0.02, warnings: tuple[str, ...] = ()) -> BoxProfile:
    """A probed box whose bandwidth's samples lie `spread` of their median apart."""
    samples = [200e9 * (1 - spread / 2), 200e9, 200e9 * (1 + spread / 2)]
    read = measured(samples, unit="bytes/s", method="test")
    made = structs.replace(box(name), source="probe", device="cuda", warnings=warnings)
    return structs.replace(made, memory_bytes_per_s=read)


def said(asked: Asked) -> str | None:
    return busy(asked, build_scene(asked))


def test_boxes_measured_at_rest_are_not_called_busy() -> None:
    assert said(ask(a=probed("a"), b=probed("b"))) is None


@pytest.mark.parametrize(
    "disturbed",
    [
        probed("b", warnings=(f"{BUSY_WORDS} (load 3.1 on 2 cores)",)),
        probed("b", spread=0.5),
    ],
)
def test_a_busy_or_unsteady_box_is_named_in_the_advice_and_is_to_be_probed_again(
    disturbed: BoxProfile,
) -> None:
    asked = ask(a=probed("a"), b=disturbed)
    told = said(asked)
    assert told is not None and told.startswith("But b was busy or unsteady when probed")
    assert told in decide(asked, QUICK).recommendation.sentence
    assert "homesplit probe a b" in told


def test_a_makers_figures_are_nobodys_busy_box() -> None:
    stated = structs.replace(probed("b", spread=0.9), source="profile: test")
    assert said(ask(a=probed("a"), b=stated)) is None


def test_the_probes_own_warning_begins_with_the_words_that_are_looked_for() -> None:
    facts = {"load": 3.1, "cpu": {"cores": 2}, "memory": {"available_bytes": 8e9}}
    made = box_profile("a", None, facts, None, at="2026-01-01")
    assert any(word.startswith(BUSY_WORDS) for word in made.warnings)


def test_a_load_longer_than_the_models_context_is_told_so() -> None:
    known = structs.replace(ask().shape, name="Tiny", max_context=2048)
    for prompt, beyond in ((1998, False), (1999, True)):
        asked = structs.replace(ask(work=load(prompt, 50)), shape=known)
        said = decide(asked, QUICK).recommendation.sentence
        assert ("But Tiny takes 2,048 tokens at most" in said) is beyond
    nowhere = structs.replace(ask(a=box("a", memory=1e9), work=load(9000, 50)), shape=known)
    alone = structs.replace(nowhere, boxes=nowhere.boxes[:1], link=None)
    assert "asks for up to 9,050" in decide(alone, QUICK).recommendation.sentence
    unknown = structs.replace(asked, shape=structs.replace(known, max_context=None))
    assert "at most" not in decide(unknown, QUICK).recommendation.sentence


def test_where_nobody_is_answered_in_time_nothing_is_said_of_requests_under_way() -> None:
    work = load(4000, 50, users=50)
    slow = box("a", flops=1e10, bandwidth=1e10), box("b", flops=1e10, bandwidth=1e10)
    targets = Targets(ttft_s=1.0, tpot_s=0.1)
    plan = decide(ask(a=slow[0], b=slow[1], work=work, targets=targets), QUICK)
    rule = next(each for each in plan.rules if each.id == "someone_to_interrupt")
    assert (rule.verdict, rule.value) == ("n/a", None)
    assert "no request is answered in time" in rule.sentence
    assert "rarely meet" not in plan.recommendation.sentence


def test_boxes_with_long_names_keep_what_tells_their_arrangements_apart() -> None:
    long = [box(f"{name}-in-the-cupboard-under-the-stairs") for name in "ab"]
    plan = decide(ask(a=long[0], b=long[1]), QUICK)
    lines = list(plan_lines(plan))
    for each in plan.modes:
        if each.mode == "colocated":
            told = [line for line in lines if f"on {each.boxes[0]} {each.prefill} " in line]
            assert len(told) == 2
    tables = [line for line in lines if "requests/" in line and line.startswith("  colocated")]
    assert len({len(line) for line in tables}) == 1


def test_goodput_rises_with_the_rate_and_then_no_more() -> None:
    work = structs.replace(load(1000, 50), arrivals=Arrivals(rate_requests_per_s=1.0))
    asked = ask(work=work, targets=Targets(ttft_s=1.0, tpot_s=0.05))
    atlas = open_atlas(asked, "load")
    assert atlas is not None
    curves = {curve.mode: curve for curve in atlas.map.rates}
    assert set(curves) == {"colocated", "replica", "split"}
    assert atlas.map.here_rate == 1.0
    for curve in curves.values():
        offered, got = curve.rates_requests_per_s, curve.goodput_requests_per_s
        # A finite load draws somewhat more or less than its mean rate.
        assert all(good <= 1.3 * rate for rate, good in zip(offered, got, strict=True))
    one, two = curves["colocated"], curves["replica"]
    assert max(two.goodput_requests_per_s) > 1.4 * max(one.goodput_requests_per_s)
    # Beyond what one box holds, more requests bring it nothing.
    assert one.goodput_requests_per_s[-1] < 1.1 * max(one.goodput_requests_per_s)


def test_what_a_flood_gets_through_is_what_can_be_offered_without_an_end() -> None:
    """Two boxes get twice what one does, and only what is beyond it makes a queue that grows."""
    work = load(1000, 100)
    asked = ask(work=work)
    scene = build_scene(asked)
    able = {each.mode: each for each in arrangements(asked, scene)}
    most = {mode: saturation(scene, each, work) for mode, each in able.items()}
    assert most["replica"] == pytest.approx(2 * most["colocated"], rel=0.1)
    patient = Targets(ttft_s=None, tpot_s=1.0)
    for share, keeps_up in ((0.85, True), (1.5, False)):
        offered = at_rate(work, share * most["replica"])
        assert outlook(scene, able["replica"], offered, patient, 300).keeps_up is keeps_up


def test_a_search_breaks_a_run_off_only_where_too_many_miss() -> None:
    work = structs.replace(load(1000, 50), arrivals=Arrivals(rate_requests_per_s=1.0))
    asked = ask(work=work)
    scene = build_scene(asked)
    one = arrangements(asked, scene)[0]
    told: list[bool] = []
    for rate in (1.0, 2.0, 4.0, 8.0):
        plan = plan_load(at_rate(work, rate), seed=3, seconds=60.0 / rate)
        whole = simulate(scene, one, plan)
        figures = run_figures(whole, plan, Targets(ttft_s=0.5, tpot_s=0.05))
        bound = Bound(ttft_s=0.5, tpot_s=0.05, most=0.1 * len(plan.requests))
        short = simulate(scene, one, plan, bound=bound)
        assert short.hopeless is ((figures.attainment or 0.0) < 0.9)
        assert (len(short.records) < len(whole.records)) is short.hopeless
        told.append(short.hopeless)
    assert told[0] is False and told[-1] is True


def test_users_who_set_the_pace_have_no_rate_of_their_own_on_the_chart() -> None:
    atlas = open_atlas(ask(work=load(500, 20, users=2)), "load")
    assert atlas is not None and atlas.map.here_rate is None and atlas.map.rates


@pytest.mark.parametrize(("rate", "offered"), [(0.05, False), (60.0, True)])
def test_a_load_that_fits_is_offered_only_in_place_of_one_that_does_not(
    rate: float, offered: bool
) -> None:
    work = structs.replace(load(1000, 50), arrivals=Arrivals(rate_requests_per_s=rate))
    plan = decide(ask(work=work, targets=Targets(ttft_s=2.0, tpot_s=0.1)), QUICK)
    assert plan.sustainable is not offered
    assert (plan.suited is not None) is offered
