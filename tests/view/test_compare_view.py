"""The Compare screen: what stands in a row can be compared at a glance."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from homesplit.view.compare import rates_in_one_unit


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((0.61, 0.083, None), ["0.61 req/s", "0.08 req/s", "–"]),
        ((0.05, 0.02), ["3.00 req/min", "1.20 req/min"]),
        ((120.0, 4.4), ["120 req/s", "4 req/s"]),
        ((0.5, 0.004), ["0.500 req/s", "0.004 req/s"]),
        ((12.0, 0.4, 0.0), ["12.0 req/s", "0.4 req/s", "0.0 req/s"]),
        ((0.0, 0.0), ["0.00 req/s", "0.00 req/s"]),
        ((), []),
    ],
)
def test_the_rates_of_a_row_have_one_unit(rates: Sequence[float | None], told: list[str]) -> None:
    assert [rates_in_one_unit(rates)(rate) for rate in rates] == told
