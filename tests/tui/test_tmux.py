"""The app in a real terminal: a recording played in tmux, with keys, resizing and few colours."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.tmux import Tmux

CHECKOUT = Path(__file__).parents[2]
RECORDING = CHECKOUT / "screenshots" / "two-boxes.jsonl.gz"
MANY_COLOURS = re.compile(r"\x1b\[[0-9;]*[34]8;")
"""A hue of 256 or of 16 million."""
SPEED = "0.01"
"""Nothing moves by itself while a test looks, however long that takes on a busy computer."""
ANY_COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:[34][0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

Play = Callable[..., Tmux]


@pytest.fixture
def play(tmp_path: Path) -> Generator[Play]:
    """Plays the recording of two boxes in a terminal of this kind; the environment may be added."""
    opened: list[Tmux] = []

    def start(terminal: str = "tmux-256color", **environment: str) -> Tmux:
        unset = [f"--unset={name}" for name in ("NO_COLOR", "COLORTERM", "COLUMNS", "LINES")]
        own = {"HOMESPLIT_HOME": str(tmp_path), "LANG": "C.UTF-8", **environment}
        words = [
            *("env", *unset, *(f"{name}={value}" for name, value in own.items())),
            *(str(Path(sys.executable).with_name("homesplit")), "app"),
            *("--replay", str(RECORDING), "--speed", SPEED),
        ]
        opened.append(Tmux(words, tmp_path, terminal=terminal, at=CHECKOUT))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_recording_is_walked_through_by_keys_while_the_window_changes(play: Play) -> None:
    terminal = play()
    terminal.wait_for("Machines found", "a recording")
    terminal.press(">", ">")
    terminal.wait_for("What will be asked")
    terminal.resize(80, 24)
    terminal.press("4")
    terminal.wait_until(
        lambda shown: "What each box does" not in shown and "TTFT" in shown, "a small Monitor"
    )
    terminal.resize(200, 60)
    terminal.wait_for("What each box does", "Last requests")
    terminal.press("?")
    terminal.wait_for("Keys on this screen")
    terminal.press("Escape")
    terminal.wait_until(lambda shown: "Keys on this screen" not in shown, "help that is gone")
    terminal.press("q")
    terminal.wait_for_end()


def test_no_color_shows_no_colour(play: Play) -> None:
    terminal = play(NO_COLOR="1")
    terminal.wait_for("Machines found", "a recording")
    assert ANY_COLOUR.findall(terminal.shown(colours=True)) == []


def test_a_terminal_of_sixteen_colours_is_sent_no_other(play: Play) -> None:
    terminal = play(terminal="screen")
    terminal.wait_for("Machines found", "a recording")
    shown = terminal.shown(colours=True)
    assert MANY_COLOURS.findall(shown) == []
    assert ANY_COLOUR.findall(shown)
