"""What the Plan screen tells of its grounds, of comparisons, of costs and of higher rates."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from homesplit.core.plan import Plan, Suited
from homesplit.core.plan_map import NOBODY, CurvePoint, PlanMap
from homesplit.view import charts, plan_charts, plan_cost, plan_grounds
from homesplit.view import plan as view
from homesplit.view import plan_map as map_view
from homesplit.view.spans import Lines, width_of
from tests.tui.sample_run import plan, plan_map

WIDTHS = (44, 60, 90, 150)


def text(rows: Lines) -> str:
    return " ".join(" ".join("".join(span.text for span in row) for row in rows).split())


@pytest.mark.parametrize("width", WIDTHS)
def test_every_ground_and_the_overruling_comparison_are_told_in_every_width(width: int) -> None:
    rows = plan_grounds.sources(plan(), width)
    assert max(map(width_of, rows)) <= width
    said = text(rows)
    for told in ("● atlas", "calibrated on 197 steps", "◐ borea", "probes of the box", "○ link"):
        assert told in said
    assert "● hand-off" in said
    assert "the measurement overrules the model, which expected replica on both boxes" in said


@pytest.mark.parametrize(
    ("ground", "mark", "told"),
    [
        ("calibrated on 12 steps of the engine", "●", "timed"),
        ("probe, 2026-01-02 03:04 UTC", "◐", "probed"),
        ("profile: NVIDIA DGX Spark", "○", "stated"),
        ("typed", "○", "stated"),
    ],
)
def test_a_boxs_mark_says_how_far_its_figures_can_be_trusted(
    ground: str, mark: str, told: str
) -> None:
    one = structs.replace(plan(), sources=(f"atlas: {ground}",))
    assert text(plan_grounds.sources(one, 60)).startswith(f"{mark} atlas")
    assert plan_grounds.summary(one) == f"atlas {told}"
    assert ("2026-01-02 03:04 UTC" in text(plan_grounds.sources(one, 60))) == (told == "probed")


def badge(made: Plan) -> str:
    return text(view.verdict(made, 100))


def test_the_badge_says_whether_a_comparison_agreed_or_overruled() -> None:
    overruled = plan()
    assert "the measurement overrules the model" in badge(overruled)
    best = overruled.modes[-1]
    agreed = structs.replace(overruled, overruled=None, modes=(best,))
    assert "measured here" in badge(agreed)
    never = structs.replace(agreed, measured_at=None)
    assert "measured" not in badge(never)
    assert "Never measured here" in text(plan_grounds.sources(never, 90))


def test_what_was_measured_stands_below_its_prediction() -> None:
    rows = view.predictions(plan(), 100)
    names = ["".join(span.text for span in row)[:26].split() for row in rows]
    at = next(n for n, words in enumerate(names) if words[:1] == ["replica"])
    assert names[at + 1][:2] == ["measured", "11-29,"]
    assert "936 ms" in text(rows[at + 1 : at + 2])


def test_a_load_that_fits_is_offered_only_where_this_one_does_not() -> None:
    offer = Suited(
        box="atlas",
        ttft_s=3.0,
        tpot_s=0.2,
        rate_requests_per_s=0.1,
        attainment=0.98,
        sentence="What these boxes can hold: TTFT 3 s.",
    )
    held = structs.replace(plan(), suited=offer)
    assert plan_grounds.suited(held, 60) == ()
    for beyond in (False, None):
        said = badge(structs.replace(held, sustainable=beyond))
        assert "What these boxes can hold" in said


@pytest.mark.parametrize("width", WIDTHS)
def test_goodput_is_told_by_box_by_power_and_by_price_or_why_not(width: int) -> None:
    rows = plan_cost.per_hardware(plan(), width)
    assert max(map(width_of, rows)) <= width
    said = text(rows)
    assert "price of these boxes is not known" in said and "power" not in said
    if width >= 60:
        assert "▸ split atlas▶borea 0.9/s – –" in said and "colocated whole borea 1.1/s 40" in said


def test_each_mode_has_its_curve_and_the_question_its_mark() -> None:
    shown = plan_map()
    chart = plan_charts.rates_chart(shown)
    assert [points.marker for points in chart.series] == ["1", "2", "s"]
    assert [mark.x for mark in chart.marks] == [1.2]
    assert "you" in plan_charts.rates_words(shown)


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (2.0, ("0", "1/s", "2/s")),
        (0.2, ("0", "5/min", "10/min")),
        (0.004, ("0", "5/h", "10/h")),
        (1200.0, ("0", "500/s", "1,000/s")),
    ],
)
def test_rates_on_an_axis_are_round_differ_and_have_one_unit(
    most: float, told: tuple[str, ...]
) -> None:
    curve = structs.replace(
        plan_map().rates[0], rates_requests_per_s=(most,), goodput_requests_per_s=(most / 2,)
    )
    chart = plan_charts.rates_chart(structs.replace(plan_map(), rates=(curve,)))
    assert tuple(words for _, words in chart.x_ticks)[:3] == told
    assert all(at <= most for at, _ in chart.x_ticks)


def test_each_crossing_of_hand_off_and_prefill_is_marked_and_told() -> None:
    curve = tuple(
        CurvePoint(prompt_tokens=tokens, prefill_s=3.0, handoff_s=handoff_s, exposed_s=0.0)
        for tokens, handoff_s in ((100, 4.0), (200, 2.0), (300, 4.0))
    )
    twice = structs.replace(plan_map(), curve=curve)
    assert map_view.crossing(twice) == "equal at 150 and 250 tokens"
    marks = [mark.x for mark in charts.handoff_chart(twice).marks if mark.text == "equal"]
    assert marks == pytest.approx([math.log2(150), math.log2(250)])


def test_a_prompt_length_on_the_map_is_told_as_it_is() -> None:
    lengths = (64, 1024, 4000, 12_500)
    wide = structs.replace(plan_map(), prompt_tokens=lengths, cells=(("split",) * 4,) * 9)
    assert text(map_view.plan_map(wide, 90)[-2:-1]) == "prompt 64 1k 4000 12k"


def test_a_rate_beyond_the_chart_and_a_closed_load_are_told_in_words() -> None:
    shown = plan_map()
    far = structs.replace(shown, here_rate=99.0)
    assert plan_charts.rates_chart(far).marks == ()
    assert "beyond the right edge" in plan_charts.rates_words(far)
    closed = structs.replace(shown, here_rate=None)
    assert "your users set the pace" in plan_charts.rates_words(closed)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_map_tells_where_nobody_is_inside_the_targets(width: int) -> None:
    shown = plan_map()
    assert "none inside" not in text(map_view.plan_map(shown, width))
    hopeless = structs.replace(shown, cells=((NOBODY, *shown.cells[0][1:]), *shown.cells[1:]))
    rows = map_view.plan_map(hopeless, width)
    assert max(map(width_of, rows)) <= width
    told = text(rows)
    for word in ("one box (colocated)", "copy on each (replica)", "none inside the targets"):
        assert word in told
    assert told.endswith("[you are here]")


def test_an_empty_chart_says_why() -> None:
    empty = structs.replace(plan_map(), rates=())
    assert "nothing to draw" in plan_charts.rates_chart(empty).empty
    assert plan_charts.rates_words(empty) == ""
    none: PlanMap | None = None
    assert plan_charts.rates_chart(none).empty == "being worked out"


@pytest.mark.parametrize("width", WIDTHS)
def test_who_reads_and_who_writes_is_never_cut(width: int) -> None:
    rows = view.verdict(plan(), width)
    assert max(map(width_of, rows)) <= width
    assert "atlas reads ━▶ borea writes" in text(rows)
