"""The Compare screen: what stands in a row can be compared at a glance."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from homesplit.view.compare import rates_in_one_unit


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
