"""The app in a real terminal, by keys alone: from two machines found to a model that serves."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conftest import lab_needs, model_needs
from tests.lab.api import running_lab
from tests.lab.desks import settle
from tests.lab.inside import exec_command
from tests.lab.needs import missing
from tests.lab.records import DESK
from tests.lab.road import Road, box_platform, fetch_packages, files_of
from tests.lab.store import CHECKOUT
from tests.tmux import Tmux

pytestmark = [
    pytest.mark.lab,
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(4000),
]

LONG_S = 1800.0
"""A limit, not a wait: on a busy computer everything takes many times as long."""


class Terminal(Tmux):
    """The app on a lab's desk in a tmux of its own."""

    def __init__(self, road: Road, folder: Path) -> None:
        self.road = road
        words = [
            *exec_command(road.lab.lab, DESK),
            *("env", "-u", "COLUMNS", "-u", "LINES", f"HOMESPLIT_HOME={road.home}"),
            *(f"HOMESPLIT_SSH_CONFIG={road.lab.ssh_config}", "LANG=C.UTF-8"),
            "TERM=tmux-256color",
            str(Path(sys.executable).with_name("homesplit")),
        ]
        super().__init__(words, folder, at=CHECKOUT)


@contextlib.contextmanager
def started(folder: Path, *cpu: str) -> Generator[Terminal]:
    """The app as it starts, on a desk that knows a box for each of these shares of a core."""
    assert not (lab_needs() or model_needs() or missing(("tmux",)))
    with running_lab(len(cpu), "1gbe", cpu=cpu, memory=["4"]) as lab:
        fetch_packages(box_platform(lab, "atlas"))
        terminal = Terminal(Road(lab, folder / "home"), folder)
        try:
            yield terminal
        finally:
            terminal.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Generator[Terminal]:
    """Two boxes; the second has half a core."""
    with started(tmp_path, "atlas=1", "borea=0.5") as terminal:
        yield terminal


@pytest.fixture
def terminal_of_one(tmp_path: Path) -> Generator[Terminal]:
    """One box."""
    with started(tmp_path, "atlas=1") as terminal:
        yield terminal


def test_keys_lead_from_a_machine_found_to_an_answer_and_to_a_box_as_it_was(
    terminal_of_one: Terminal,
) -> None:
    terminal, lab = terminal_of_one, terminal_of_one.road.lab
    before = files_of(lab, "atlas")
    one_box_is_chosen_and_measured(terminal)
    a_plan_is_made(terminal)
    the_plan_is_deployed(terminal)
    the_model_answers(terminal)
    all_is_removed(terminal)
    assert settle(lambda: files_of(lab, "atlas") == before, within_s=60)
    terminal.press("q")
    terminal.wait_for_end()


@pytest.mark.long
def test_keys_lead_from_two_machines_found_to_a_model_that_serves(terminal: Terminal) -> None:
    boxes_are_chosen_and_measured(terminal)
    a_plan_is_made(terminal)
    the_plan_is_deployed(terminal)
    load_shows_in_monitor(terminal)
    another_shell_is_noticed(terminal)
    terminal.press("q")
    terminal.wait_for_end()


def boxes_are_chosen_and_measured(terminal: Terminal) -> None:
    """Both are found, space chooses them, p measures them and the link."""
    terminal.wait_for("atlas", "borea", "choose this machine")
    terminal.wait_until(
        lambda shown: all(re.search(rf"\b{name} .*✓ usable", shown) for name in ("atlas", "borea")),
        "two usable machines",
    )
    # Whoever was found first: they stand by their names, this machine last.
    terminal.press("Home", "Space", "Down", "Space")
    terminal.wait_for("A● atlas", "B● borea")
    terminal.press("p")
    shown = terminal.wait_for("Gbit/s", "go on to the plan", limit_s=LONG_S)
    assert shown.count("just now") + shown.count(" s ago") + shown.count(" min ago") >= 2


def one_box_is_chosen_and_measured(terminal: Terminal) -> None:
    """It is found, space chooses it, p measures it."""
    terminal.wait_for("choose this machine")
    terminal.wait_until(lambda shown: bool(re.search(r"\batlas .*✓ usable", shown)), "a machine")
    # By their names, this machine last.
    terminal.press("Home", "Space")
    terminal.wait_for("A● atlas")
    terminal.press("p")
    terminal.wait_for("go on to the plan", limit_s=LONG_S)


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


def the_model_answers(terminal: Terminal) -> None:
    """A question is typed into the chat over Monitor, and its answer comes."""
    terminal.press("Enter")
    terminal.wait_for("What each box does", "start the load")
    terminal.press("c")
    terminal.wait_for("Chat with the model on your boxes")
    terminal.press("H", "i", "Enter")
    terminal.wait_for("first token after", limit_s=LONG_S)
    terminal.press("Escape")
    terminal.wait_until(lambda shown: "Chat with the model" not in shown, "Monitor again")


def all_is_removed(terminal: Terminal) -> None:
    """The engine is stopped and everything taken off the box, each after a question."""
    terminal.press("3")
    terminal.wait_for("On each box", "go on to Monitor")
    terminal.press("d")
    terminal.wait_for("Stop the engine?")
    terminal.press("y")
    terminal.wait_for("Stopped; nothing runs on the boxes.", limit_s=LONG_S)
    terminal.press("r")
    terminal.wait_for("Remove homesplit from atlas?")
    terminal.press("y")
    terminal.wait_for("Nothing of homesplit is left on atlas.", limit_s=LONG_S)


def another_shell_is_noticed(terminal: Terminal) -> None:
    """What is stopped elsewhere goes from the screen by itself."""
    done = terminal.road.run("down", timeout_s=LONG_S)
    assert done.returncode == 0, done.stderr
    terminal.wait_for("nothing is running")
