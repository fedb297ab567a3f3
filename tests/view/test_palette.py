"""The palette finds a command by its name, its key or what it does."""

from __future__ import annotations

import pytest

from homesplit.view.palette import Command, matching, row
from homesplit.view.spans import width_of

COMMANDS = (
    Command("Load", "l", "Start or stop the load"),
    Command("Mode", "m", "Switch the mode while it serves"),
    Command("Go to Monitor", "4", "Stop 4"),
    Command("Stop engine", "d", "Stop the engine on the boxes"),
)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", ("Load", "Mode", "Go to Monitor", "Stop engine")),
        ("mo", ("Mode", "Go to Monitor")),
        ("STOP", ("Stop engine", "Load", "Go to Monitor")),
        ("go mon", ("Go to Monitor",)),
        ("  serves ", ("Mode",)),
        ("4", ("Go to Monitor",)),
        ("xyz", ()),
    ],
)
def test_what_is_typed_finds_names_that_begin_so_before_others(
    typed: str, found: tuple[str, ...]
) -> None:
    assert tuple(COMMANDS[place].name for place in matching(COMMANDS, typed)) == found


def test_a_row_fits_any_width() -> None:
    assert all(width_of(row(COMMANDS[1], width)) <= width for width in (0, 5, 20, 200))
