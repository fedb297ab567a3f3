"""The Compare screen: what stands in a row can be compared at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pytest
from msgspec.structs import replace

from homesplit.core.state import RunState, apply
from homesplit.view.compare import meaning, rates_in_one_unit, table
from homesplit.view.spans import plain, width_of
from tests.tui import sample_run


@pytest.mark.parametrize(
    ("rates", "unit", "told"),
    [
        ((0.61, 0.083, None), "req/s", ["0.61", "0.08", "–"]),
        ((0.05, 0.02), "req/min", ["3.00", "1.20"]),
        ((120.0, 4.4), "req/s", ["120", "4"]),
        ((0.5, 0.004), "req/s", ["0.500", "0.004"]),
        ((12.0, 0.4, 0.0), "req/s", ["12.0", "0.4", "0.0"]),
        ((0.0, 0.0), "req/s", ["0.00", "0.00"]),
        ((), "req/s", []),
    ],
)
def test_the_rates_of_a_row_have_one_unit(
    rates: Sequence[float | None], unit: str, told: list[str]
) -> None:
    found, show = rates_in_one_unit(rates)
    assert found == unit
    assert [show(rate) for rate in rates] == told


@pytest.mark.parametrize("width", [76, 116, 196, 296])
def test_where_columns_are_wide_each_figure_has_its_bar_and_the_best_is_ticked(width: int) -> None:
    state = reduce(apply, sample_run.whole_run(), RunState())
    alike = next(row for row in plain(table(state, width)).split("\n") if "TTFT p50" in row)
    assert "✓" not in alike
    first = state.compared[0]
    quick = replace(first.figures, ttft_s=replace(first.figures.ttft_s, p50=0.1))
    state = replace(state, compared=(replace(first, figures=quick), *state.compared[1:]))
    rows = table(state, width)
    assert all(width_of(row) <= width for row in (*rows, *meaning(width)))
    ttft = next(row for row in plain(rows).split("\n") if row.startswith("TTFT p50"))
    assert ttft.count("✓") == 1
    assert ("█" in ttft) is (width >= 196)
    # The one bar of narrow columns is that of goodput below them.
    assert ("█" in plain(rows[-1:])) is (width < 196)
