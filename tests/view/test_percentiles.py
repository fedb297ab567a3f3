"""Percentiles with their intervals in 80 columns, whatever they are and however long a name."""

from __future__ import annotations

from typing import Any

import pytest

from homesplit.view.entry_page import entry_page
from homesplit.view.figures_table import figure_lines
from homesplit.view.percentiles import (
    BOUNDS,
    INTERVALS,
    PARTS,
    PER,
    percentile_lines,
    table_words,
    thin_words,
)

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
        (0.12345, 0.12344, 0.12346, "± 10 µs"),
        (12.3456, 12.345, 12.346, "± 600 µs"),
        (12.3456, 12.3456, 12.345653, "± 53 µs"),
        (134.2, 98.7, 156.4, "1.65 to 2.61 min"),
        (0.00042, 0.0003, 0.0005, "300 to 500 µs"),
        (0.00042, 0.0003, 0.05, "0.3 to 50 ms"),
        (0.9, 0.8, 1.1, "800 to 1100 ms"),
        (0.0, 0.0, 0.03, "0 to 30 ms"),
        (7200.0, 6840.0, 7560.0, "1.9 to 2.1 h"),
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


def test_an_interval_of_no_width_is_not_told() -> None:
    lines = figure_lines([("all", figures(0.25, 0.25, 0.25))])
    alone = [line.split() for line in lines if "250" in line]
    assert alone == [["all", *("250", "ms") * 4]] * len(NAMES)
    assert lines[-1] == PER and not any("interval" in line for line in lines)


@pytest.mark.parametrize(
    ("value_s", "low_s", "high_s", "said"),
    [
        (0.186, 0.181, 0.223, "181 to 223 ms"),
        (0.025, 0.0123, 0.1346, "12 to 135 ms"),
        (0.025, 0.0123, 0.0346, "12 to 35 ms"),
        (0.01233, 0.01231, 0.01234, "± 20 µs"),
        (134.2, 98.7, 156.4, "± 35.5 s"),
    ],
)
def test_in_the_app_at_80_columns_an_entry_keeps_every_percentile_whole(
    value_s: float, low_s: float, high_s: float, said: str
) -> None:
    body = figures(value_s, low_s, high_s, count=9)
    entry = {"kind": "run", "sentence": "A run.", "body": body}
    shown = ["".join(span.text for span in row) for row in entry_page(entry, {}, [], None, 69)]
    assert [row for row in shown if len(row) > 69 or row.endswith("…")] == []
    assert any(row.split()[1:] == list(PARTS) for row in shown)
    # Each interval of the five times, in the four columns.
    assert " ".join(shown).count(said) == 4 * len(NAMES)


def test_what_stands_under_a_time_is_named_for_what_it_is() -> None:
    measured = ("split", figures(0.25, 0.2, 0.3))
    bounded = {"ttft_s": {"p50": 0.2, "low": 0.15, "high": 0.3}}
    old = ("split", {**figures(0.25, 0.2, 0.3), "intervals": {}})
    assert table_words([measured]) == [f"{INTERVALS} {PER}"]
    assert table_words([old]) == [PER]
    both = ("split", {**measured[1], "predicted": bounded})
    assert table_words([both]) == [f"{INTERVALS} {BOUNDS} {PER}"]
    assert table_words([("split", {**old[1], "predicted": bounded})]) == [f"{BOUNDS} {PER}"]


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


def test_tokens_a_second_stand_under_the_counts_and_are_marked_where_they_are_estimated() -> None:
    rates = {"goodput_tokens_per_s": 6.0, "throughput_tokens_per_s": 12.5}
    guess = {**figures(0.25, 0.2, 0.3), **rates, "estimated": list(rates)}
    rows = [("split", guess), ("replica", figures(0.25, 0.2, 0.3))]
    assert "Tokens/s inside targets, of all answers: split ~6 of ~12.5." in figure_lines(rows)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "Of 1 request p50, p90, p95 and p99 of what is per request are about the slowest"),
        (9, "Of 9 requests p90, p95 and p99 of what is per request are about the slowest"),
        (10, "Of 10 requests p95 and p99 of what is per request are about the slowest"),
        (40, "Of 40 requests p99 of what is per request is about the slowest"),
        (100, None),
    ],
)
def test_a_percentile_that_hangs_on_the_slowest_request_is_told(
    count: int, said: str | None
) -> None:
    rows = [("all", figures(0.1, 0.1, 0.2, count=count))]
    found = thin_words(rows)
    assert [told.startswith(said or "") for told in found] == ([True] if said else [])
    assert [line for line in figure_lines(rows) if len(line) > 80] == []


def test_few_requests_of_one_set_are_told_of_that_set() -> None:
    rows = [(name, figures(0.1, 0.1, 0.2, count=n)) for name, n in (("split", 3), ("replica", 200))]
    (found,) = thin_words(rows)
    assert found.startswith("split: of 3 requests p90, p95 and p99")
    rows = [(name, figures(0.1, 0.1, 0.2, count=n)) for name, n in (("all", 60), ("chat", 3))]
    whole, chat = thin_words(rows)
    assert whole.startswith("Of 60 requests p99") and chat.startswith("chat: of 3 requests")
    rows = [(name, figures(0.1, 0.1, 0.2, count=9)) for name in ("split", "replica")]
    (found,) = thin_words(rows)
    assert found.startswith("Of 9 requests")
