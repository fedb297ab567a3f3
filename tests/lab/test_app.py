"""The app in a real terminal, by keys alone: from two machines found to a model that serves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.conftest import lab_needs, model_needs
from tests.lab.api import running_lab
from tests.lab.inside import exec_command
from tests.lab.needs import missing
from tests.lab.records import DESK
from tests.lab.road import Road, box_platform, fetch_packages
from tests.lab.store import CHECKOUT

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

POLL_S = 0.5
SOON_S, LONG_S = 60.0, 900.0
"""Limits, not waits: on a busy computer everything takes many times as long."""


class Terminal:
    """The app on a lab's desk in a tmux of its own."""

    def __init__(self, road: Road, folder: Path) -> None:
        self.road = road
        self._socket = str(folder / "tmux")
        words = [
            *exec_command(road.lab.lab, DESK),
            *("env", "-u", "COLUMNS", "-u", "LINES", f"HOMESPLIT_HOME={road.home}"),
            *(f"HOMESPLIT_SSH_CONFIG={road.lab.ssh_config}", "LANG=C.UTF-8"),
            *("TERM=xterm-256color", str(Path(sys.executable).with_name("homesplit"))),
        ]
        size = ("-x", "120", "-y", "40")
        self._tmux("new-session", "-d", "-s", "app", *size, "-c", str(CHECKOUT), *words)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-f", os.devnull, "-S", self._socket, *words],
            text=True,
            capture_output=True,
            timeout=30,
        )
        if done.returncode:
            raise RuntimeError(f"tmux {words[0]}: {done.stderr}")
        return done.stdout

    def press(self, *keys: str) -> None:
        """Type keys by their tmux names."""
        self._tmux("send-keys", "-t", "app", *keys)

    def shown(self) -> str:
        """What the terminal shows."""
        return self._tmux("capture-pane", "-p", "-t", "app")

    def wait_for(self, *words: str, limit_s: float = SOON_S) -> str:
        """The screen once all these words are on it."""
        return self.wait_until(
            lambda shown: all(word in shown for word in words), f"{words}", limit_s
        )

    def wait_until(
        self, is_there: Callable[[str], bool], what: str, limit_s: float = SOON_S
    ) -> str:
        """The screen once it is so."""
        deadline = time.monotonic() + limit_s
        while True:
            shown = self.shown()
            if is_there(shown):
                return shown
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not appear in {limit_s:g} s:\n{shown}")
            time.sleep(POLL_S)

    def has_ended(self) -> bool:
        """Whether the app has left, and its terminal with it."""
        return self._sessions().returncode != 0

    def _sessions(self) -> subprocess.CompletedProcess[str]:
        command = ["tmux", "-S", self._socket, "has-session", "-t", "app"]
        return subprocess.run(command, text=True, capture_output=True, timeout=30)

    def close(self) -> None:
        """End the terminal and what runs in it."""
        command = ["tmux", "-S", self._socket, "kill-server"]
        subprocess.run(command, capture_output=True, timeout=30, check=False)


@pytest.fixture
def terminal(tmp_path: Path) -> Generator[Terminal]:
    """The app as it starts, on a desk that knows two boxes; the second has half a core."""
    assert not (lab_needs() or model_needs() or missing(("tmux",)))
    with running_lab(2, "1gbe", cpu=["atlas=1", "borea=0.5"], memory=["4"]) as lab:
        fetch_packages(box_platform(lab, "atlas"))
        terminal = Terminal(Road(lab, tmp_path / "home"), tmp_path)
        try:
            yield terminal
        finally:
            terminal.close()


def test_keys_lead_from_two_machines_found_to_a_model_that_serves(terminal: Terminal) -> None:
    boxes_are_chosen_and_measured(terminal)
    a_plan_is_made(terminal)
    the_plan_is_deployed(terminal)
    load_shows_in_monitor(terminal)
    another_shell_is_noticed(terminal)
    terminal.press("q")
    deadline = time.monotonic() + SOON_S
    while not terminal.has_ended():
        if time.monotonic() > deadline:
            raise AssertionError(f"q did not leave the app:\n{terminal.shown()}")
        time.sleep(POLL_S)


def boxes_are_chosen_and_measured(terminal: Terminal) -> None:
    """Both are found, space chooses them, p measures them and the link."""
    terminal.wait_for("atlas", "borea", "choose this machine")
    terminal.wait_until(lambda shown: shown.count("✓ usable") >= 2, "two usable machines")
    # Whoever was found first: they stand by their names, this machine last.
    terminal.press("Home", "Space", "Down", "Space")
    terminal.wait_for("A● atlas", "B● borea")
    terminal.press("p")
    shown = terminal.wait_for("Gbit/s", "go on to the plan", limit_s=LONG_S)
    assert shown.count("just now") + shown.count(" s ago") + shown.count(" min ago") >= 2


def a_plan_is_made(terminal: Terminal) -> None:
    """Enter goes on and works out the advice; a knob is turned and the advice follows."""
    terminal.press("Enter")
    terminal.wait_for("What will be asked", "512 tokens")
    terminal.press("Enter")
    terminal.wait_for("The rules, in order", limit_s=LONG_S)
    terminal.press("Down", "Down", "Down", "Left")
    terminal.wait_for("256 tokens", "prepare the deployment")


def the_plan_is_deployed(terminal: Terminal) -> None:
    """The changes are listed first; enter makes them."""
    terminal.press("Enter")
    terminal.wait_for("will deploy smollm2-135m", "to write in all", "do it", limit_s=LONG_S)
    terminal.press("Enter")
    terminal.wait_for("go on to Monitor", limit_s=LONG_S)


def load_shows_in_monitor(terminal: Terminal) -> None:
    """The load is started by key and its requests end inside the screen."""
    terminal.press("Enter")
    terminal.wait_for("What each box does", "start the load")
    terminal.press("l")
    terminal.wait_for("open the chosen request", limit_s=LONG_S)


def another_shell_is_noticed(terminal: Terminal) -> None:
    """What is stopped elsewhere goes from the screen by itself."""
    done = terminal.road.run("down", timeout_s=LONG_S)
    assert done.returncode == 0, done.stderr
    terminal.wait_for("nothing is running")
