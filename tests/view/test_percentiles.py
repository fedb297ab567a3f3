"""Percentiles with their intervals in 80 columns, whatever they are and however long a name."""

from __future__ import annotations

from typing import Any

import pytest

from homesplit.view.figures_table import figure_lines
from homesplit.view.percentiles import PARTS, percentile_lines, thin_words

NAMES = ("ttft_s", "ttst_s", "tpot_s", "itl_s", "stall_s")


def figures(value_s: float, low_s: float, high_s: float, *, count: int = 200) -> dict[str, Any]:
    """Every percentile of every figure the same."""
    each = {**dict.fromkeys(PARTS, value_s), "count": count}
    found = {"low": low_s, "high": high_s}
    return {
        "offered": count,
        "completed": count,
        **dict.fromkeys(NAMES, each),
        "attainment": 0.9,
        "goodput_requests_per_s": 1.25,
        "intervals": {
            **{f"{name}_{part}": found for name in NAMES for part in PARTS},
            "attainment": {"low": 0.85, "high": 0.94},
            "goodput_requests_per_s": {"low": 1.18, "high": 1.31},
        },
    }


@pytest.mark.parametrize(
    ("value_s", "low_s", "high_s", "said"),
    [
        (0.186, 0.181, 0.223, "181 to 223 ms"),
        (1.24, 0.98, 1.3, "0.98 to 1.3 s"),
        (0.12345, 0.12344, 0.12346, "within 20 µs"),
        (12.3456, 12.345, 12.346, "within 1.00 ms"),
        (134.2, 98.7, 156.4, "99 to 156 s"),
        (0.0, 0.0, 0.0, ""),
    ],
)
@pytest.mark.parametrize("name", ["all", "other server http://192.168.178.20:11434"])
def test_a_table_fits_80_columns(
    name: str, value_s: float, low_s: float, high_s: float, said: str
) -> None:
    lines = figure_lines([(name, figures(value_s, low_s, high_s))])
    assert [line for line in lines if len(line) > 80] == []
    assert "".join(lines).count(said) >= 20
    assert any("90 % (85 to 94 %)" in line and "1.25 (1.18 to 1.31)" in line for line in lines)


def test_what_was_predicted_stands_under_its_mode_with_the_bounds_of_its_percentile() -> None:
    predicted = {
        "ttft_s": {"p50": 0.2, "p90": 0.4, "low": 0.15, "high": 0.3},
        "stall_s": {"p50": 0.0, "p90": 0.5, "low": 0.1, "high": 0.9},
    }
    rows = [("split", {**figures(0.25, 0.2, 0.3), "predicted": predicted})]
    lines = [line.split() for line in percentile_lines(rows)]
    at = lines.index(["predicted", "200", "ms", "400", "ms"])
    assert lines[at + 1] == ["150", "to", "300", "ms"]
    at = lines.index(["predicted", "0", "s", "500", "ms"])
    assert lines[at + 1] == ["100", "to", "900", "ms"]
    assert sum(line[:1] == ["predicted"] for line in lines) == 2


def test_what_served_nobody_has_no_data_and_no_zero() -> None:
    nothing = {
        "offered": 5,
        "completed": 0,
        "no_data": "no data: refused",
        **figures(1.0, 1.0, 2.0),
    }
    told = " ".join(figure_lines([("split", nothing), ("replica", figures(0.25, 0.2, 0.3))]))
    assert told.count("no data") == 2 + 4 * len(NAMES)
    assert figure_lines([]) == [] and percentile_lines([("split", nothing)]) == []


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (9, "Of 9 requests p90, p95 and p99 are about the slowest"),
        (40, "Of 40 requests p99 is about the slowest"),
        (100, None),
    ],
)
def test_a_percentile_that_hangs_on_the_slowest_request_is_told(
    count: int, said: str | None
) -> None:
    found = thin_words([("all", figures(0.1, 0.1, 0.2, count=count))])
    assert (found or "").startswith(said or "") and bool(found) == bool(said)
