"""Spans of figures: as many places as it takes to tell their ends apart, and no more."""

from __future__ import annotations

import pytest

from homesplit.core.bench_result import seconds_against
from homesplit.core.say import listed, seconds_span, span


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.181, 0.223, "0.181 to 0.223 s"),
        (0.2001, 0.2004, "0.2001 to 0.2004 s"),
        (0.0181, 0.0223, "18.1 to 22.3 ms"),
        (0.05, 0.4, "0.05 to 0.4 s"),
        (1.0, 12.34, "1 to 12.3 s"),
        (0.0, 0.5, "0 to 0.5 s"),
        (0.2, 0.2, "0.2 s at both ends"),
        (0.0, 0.0, "0 ms at both ends"),
        (0.20000001, 0.20000002, "0.2 s at both ends"),
        (120.0, 134.4, "120 to 134 s"),
    ],
)
def test_a_span_of_seconds_never_reads_as_a_figure_to_itself(
    low: float, high: float, said: str
) -> None:
    assert seconds_span(low, high) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.0123, 0.0456, "-0.0123 to +0.0456 requests/s"),
        (-0.5, 0.0, "-0.5 to 0 requests/s"),
        (-0.5, -0.25, "-0.5 to -0.25 requests/s"),
    ],
)
def test_a_difference_has_its_signs(low: float, high: float, said: str) -> None:
    assert span(low, high, "requests/s", signed=True) == said


def test_an_end_above_zero_is_not_told_as_zero() -> None:
    assert span(0.0004, 0.3, "requests/s") == "0.0004 to 0.3 requests/s"


def test_two_figures_that_read_alike_are_the_same_in_both() -> None:
    assert seconds_against(0.2001, 0.2004) == "0.2 s in both"
    assert seconds_against(0.2, 0.3) == "0.2 s against 0.3 s"
    assert seconds_against(None, 0.3) == "no data against 0.3 s"
    assert seconds_against(0.07, 0.11) == "70 ms against 110 ms"
    assert seconds_against(0.07, 1.5) == "70 ms against 1.5 s"


def test_names_are_listed_as_people_write_them() -> None:
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        *("a", "a and b", "a, b and c"),
    ]
