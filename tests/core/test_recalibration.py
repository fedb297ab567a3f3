"""After a comparison the measured steps have the last word, and former knowledge the rest."""

from __future__ import annotations

import pytest
from homesplit_engine.records import PrefillSlice, StepEvent
from msgspec import structs

from homesplit.core.calibration import Calibration
from homesplit.core.cost import CostModel, cost_model
from homesplit.core.recalibration import recalibrated
from homesplit.core.served import Timed
from tests.core.test_cost import box, model
from tests.core.test_handoff_fit import quiet_record

FIT = Calibration(
    box="b",
    model="m",
    step_s=0.010,
    token_s=0.001,
    pair_s=1e-6,
    sequence_s=0.002,
    context_s=1e-6,
    steps=400,
    error_p50=0.01,
    error_p90=0.03,
    router_s=0.003,
    at="2026-11-01T10:00:00+00:00",
)
AT = "2026-11-30T10:00:00+00:00"


def cost(fit: Calibration) -> CostModel:
    return cost_model(box(), model(), calibration=fit)


def load(times: float, *, steps: int = 80) -> Timed:
    """Short prompts of 20 tokens and up to three answers, each step `times` as long as known."""
    made: list[StepEvent] = []
    for number in range(steps):
        batch, tokens = number % 4, 20 if number % 4 == 0 else 0
        context = 60 * batch
        took_s = times * FIT.step_seconds([(0, tokens)] if tokens else [], batch, context)
        made.append(
            StepEvent(
                box="b",
                step=number,
                start_s=number * 1.0,
                end_s=number * 1.0 + took_s,
                decode=tuple(map(str, range(batch))),
                prefill=(PrefillSlice(request_id="p", start=0, tokens=tokens),) if tokens else (),
                context_tokens=context,
            )
        )
    return Timed(steps=tuple(made))


def test_what_was_measured_is_believed_from_then_on() -> None:
    made = recalibrated(cost(FIT), FIT, [load(1.5)], at=AT)
    assert made is not None
    assert made.error_before_p50 == pytest.approx(1 - 1 / 1.5, rel=0.02)
    assert made.fit.error_p50 < 0.05
    for pieces, batch in (([(0, 20)], 0), ([], 1), ([], 3)):
        known = FIT.step_seconds(pieces, batch, 60 * batch)
        found = made.fit.step_seconds(pieces, batch, 60 * batch)
        assert found == pytest.approx(1.5 * known, rel=0.08)


def test_what_was_not_measured_stays_as_it_was_known() -> None:
    made = recalibrated(cost(FIT), FIT, [load(1.0)], at=AT)
    assert made is not None
    for pieces, batch, context in (([(0, 1024)], 0, 0), ([], 16, 32_768)):
        known = FIT.step_seconds(pieces, batch, context)
        assert made.fit.step_seconds(pieces, batch, context) == pytest.approx(known, rel=0.1)


def test_the_source_names_the_calibration_and_the_comparison() -> None:
    made = recalibrated(cost(FIT), FIT, [load(1.2)], at=AT)
    assert made is not None
    said = cost(made.fit).source
    assert "400 steps of the engine, 2026-11-01" in said
    assert "80 steps of a comparison, 2026-11-30" in said


def test_a_box_that_was_only_probed_gets_its_first_fit() -> None:
    probed = cost_model(structs.replace(box(), source="probe"), model())
    bare = structs.replace(FIT, step_s=0.0, token_s=0.0, steps=0, at="", router_s=None)
    made = recalibrated(probed, bare, [load(1.0)], at=AT)
    assert made is not None
    assert made.fit.step_seconds([(0, 20)], 0, 0) == pytest.approx(0.0302, rel=0.1)
    assert cost(made.fit).source == "calibrated on 80 steps of a comparison, 2026-11-30"


def test_steps_of_other_boxes_and_too_few_change_nothing() -> None:
    others = structs.replace(FIT, box="c")
    assert recalibrated(cost(others), others, [load(1.5)], at=AT) is None
    assert recalibrated(cost(FIT), FIT, [load(1.5, steps=10)], at=AT) is None


def test_the_routers_part_is_that_of_requests_that_reserve_nothing() -> None:
    """Beside 4 colocated ones of 5 ms stand more split ones of 35, and one that began anew."""
    split = [quiet_record(f"s{number}", rest_s=0.035) for number in range(6)]
    alone = [quiet_record(f"a{number}", rest_s=0.005, served="colocated") for number in range(4)]
    anew = quiet_record("anew", rest_s=0.9, served="resumed")
    run = structs.replace(load(1.0), records=(*split, *alone, anew))
    for told, found in ((run, 0.005), (structs.replace(run, records=tuple(split)), FIT.router_s)):
        made = recalibrated(cost(FIT), FIT, [told], at=AT)
        assert made is not None and made.fit.router_s == pytest.approx(found)


@pytest.mark.parametrize("together", [1.0, 1.5])
def test_what_boxes_slow_each_other_by_is_not_counted_in_the_fit_as_well(together: float) -> None:
    base = structs.replace(FIT, together=together)
    run = load(together)
    beside = [structs.replace(step, box="other") for step in run.steps]
    made = recalibrated(cost(base), base, [Timed(steps=(*run.steps, *beside))], at=AT)
    assert made is not None and made.fit.together == together
    for pieces, batch in (([(0, 20)], 0), ([], 3)):
        known = FIT.step_seconds(pieces, batch, 60 * batch)
        assert made.fit.step_seconds(pieces, batch, 60 * batch) == pytest.approx(known, rel=0.05)
