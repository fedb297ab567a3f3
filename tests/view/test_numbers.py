"""Figures are shown in units that people read, and a missing one keeps its reason."""

from __future__ import annotations

import pytest

from homesplit.core.reading import unknown
from homesplit.view import numbers
from homesplit.view.spans import bar, clean, line, plain, wrap


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (0.00042, "420 µs"),
        (0.0123, "12.3 ms"),
        (0.42, "420 ms"),
        (1.24, "1.24 s"),
        (125.0, "2 min 05 s"),
        (7300.0, "2 h 01 min"),
    ],
)
def test_a_duration(value: float | None, shown: str) -> None:
    assert numbers.seconds(value) == shown


def test_a_link_is_shown_in_bits_and_memory_in_bytes() -> None:
    assert numbers.link_rate(117.5e6) == "0.94 Gbit/s"
    assert numbers.link_rate(6.25e6) == "50.0 Mbit/s"
    assert numbers.bandwidth(9.8e9) == "9.80 GB/s"


def test_a_missing_reading_says_why() -> None:
    assert numbers.reading(unknown("no meter"), numbers.watts) == "– (no meter)"


def test_names_from_outside_can_not_move_the_cursor() -> None:
    assert clean("box\x1b[2J\n") == "box?[2J?"


def test_wrapping_keeps_to_the_width_and_says_where_it_cut() -> None:
    assert plain(wrap("one two three four", 8, limit=2)) == "one two\nthree f…"


def test_a_bar_has_the_width_it_was_given() -> None:
    assert plain([bar(0.5, 10, "key")]) == "█████·····"
    assert plain([line(*bar(2.0, 4, "key"))]) == "████"
