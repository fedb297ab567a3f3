"""The app in a real terminal, by keys alone: from two machines found to a model that serves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from homesplit.io.locks import Holder
from tests.conftest import lab_needs, model_needs
from tests.lab.by_keys import (
    LONG_S,
    Terminal,
    a_plan_is_made,
    boxes_are_chosen_and_measured,
    one_box_is_chosen_and_measured,
    started,
    the_plan_is_deployed,
)
from tests.lab.desks import settle
from tests.lab.needs import missing
from tests.lab.road import files_of

pytestmark = [
    pytest.mark.lab,
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(4000),
]


@contextlib.contextmanager
def app_on_a_desk(folder: Path, *cpu: str, odd: str | None = None) -> Generator[Terminal]:
    """The app as it starts, on a desk that knows a box for each of these shares of a core."""
    assert not (lab_needs() or model_needs() or missing(("tmux",)))
    with started(folder, cpu, odd=odd) as terminal:
        yield terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Generator[Terminal]:
    """Two boxes; the second has half a core."""
    with app_on_a_desk(tmp_path, "atlas=1", "borea=0.5") as terminal:
        yield terminal


@pytest.fixture
def terminal_of_one(tmp_path: Path) -> Generator[Terminal]:
    """One box."""
    with app_on_a_desk(tmp_path, "atlas=1") as terminal:
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
    boxes_are_broken_by_key_and_mend(terminal)
    another_shell_is_noticed(terminal)
    terminal.press("q")
    terminal.wait_for_end()


@pytest.mark.long
def test_what_goes_wrong_on_the_road_is_told_by_the_screens_and_can_be_mended(
    tmp_path: Path,
) -> None:
    with app_on_a_desk(tmp_path, "atlas=1", "borea=1", odd="refuse") as terminal:
        a_wrong_password_is_told(terminal)
        the_changes_are_listed(terminal)
        a_full_disk_is_told(terminal)
        a_box_that_goes_while_it_is_deployed_to_is_told(terminal)
        boxes_that_another_changes_are_told(terminal)
        terminal.press("Enter")
        terminal.wait_for("go on to Monitor", limit_s=LONG_S)
        load_shows_in_monitor(terminal)
        a_router_that_is_not_heard_is_told_until_it_is(terminal)
        a_link_that_is_lost_while_modes_are_compared_is_told(terminal)
        terminal.press("q")
        terminal.wait_for_end()


MOST_WAITS = 300
"""Seconds until a fault of ten seconds is over also on a computer that has other work."""
MOST_TRIES = 12
"""Keys that are typed while one question goes and the next has not come are lost."""


def said(terminal: Terminal, *words: str) -> None:
    """Wait until the screen says all of this, wherever its lines are broken."""
    terminal.wait_until(
        lambda shown: all(word in " ".join(shown.split()) for word in words), f"{words}", LONG_S
    )


def opened_and_hidden(terminal: Terminal, *words: str) -> None:
    """What went wrong is opened by key, says all of this, and goes away by escape."""
    terminal.press("e")
    terminal.wait_for("What went wrong", *words)
    terminal.press("Escape")
    terminal.wait_until(lambda shown: "What went wrong" not in shown, "the screen again")
    terminal.press("Escape")
    terminal.wait_until(lambda shown: "hides it" not in shown, "a screen without the error")


def a_wrong_password_is_told(terminal: Terminal) -> None:
    """A box that lets in by a password alone: it is asked for until that is given up."""
    terminal.wait_until(
        lambda shown: all(name in shown for name in ("atlas", "borea", "corvo", "choose this")),
        "three machines",
    )
    # By their names.
    terminal.press("Home", "Down", "Down", "Space")
    terminal.wait_for("A● corvo")
    terminal.press("p")
    refused, asked = "does not let owner in", "Password of owner on corvo"

    def asks_or_refuses(shown: str) -> bool:
        return refused in shown or (asked in shown and "•" not in shown)

    for _ in range(MOST_TRIES):
        if refused in terminal.wait_until(asks_or_refuses, "a question or an error", LONG_S):
            break
        terminal.press("n", "o", "Enter")
    said(terminal, refused, "nor with the password")
    opened_and_hidden(terminal, "Where: corvo (stage probe)", "Do next:")
    terminal.press("Space")
    terminal.wait_until(lambda shown: "A● corvo" not in shown, "nothing chosen")


def the_changes_are_listed(terminal: Terminal) -> None:
    """Two boxes are chosen, and Deploy lists what it would do there."""
    terminal.press("Home", "Space", "Down", "Space")
    terminal.wait_for("A● atlas", "B● borea")
    terminal.press("3", "Enter")
    terminal.wait_for("will deploy smollm2-135m", "to write in all", "do it", limit_s=LONG_S)


def a_full_disk_is_told(terminal: Terminal) -> None:
    """Before anything is brought."""
    folder = "/home/owner/.local"
    size = "size=60m,mode=755,uid=$(id -u owner)"
    make = f"mkdir {folder} && mount -t tmpfs -o {size} tmpfs {folder}"
    lab = terminal.road.lab
    assert lab.box("atlas", ["sh", "-c", make], root=True).returncode == 0
    try:
        terminal.press("Enter")
        said(terminal, "✗ atlas:", "GB free")
        opened_and_hidden(terminal, "Where: atlas (stage deploy)", "Do next:")
    finally:
        lab.box("atlas", ["sh", "-c", f"umount {folder} && rmdir {folder}"], root=True)


def a_box_that_goes_while_it_is_deployed_to_is_told(terminal: Terminal) -> None:
    """Its cable is pulled while files are on their way."""
    lab = terminal.road.lab
    terminal.press("Enter")
    terminal.wait_until(
        lambda shown: bool(re.search(r"● (packages|environment|model)", shown)),
        "a copy under way",
        LONG_S,
    )
    lab.fault("atlas", "cut-link")
    try:
        said(terminal, "✗ atlas:", "hides it")
        opened_and_hidden(terminal, "Where: atlas (stage deploy)", "Do next:")
    finally:
        lab.fault("atlas", "restore-link")


def boxes_that_another_changes_are_told(terminal: Terminal) -> None:
    """Another shell of this desk holds them."""
    lock = terminal.road.home / "data" / "deployments" / ".lock"
    holder = Holder(pid=os.getpid(), doing="removing homesplit from borea", since_s=time.time())
    with lock.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(msgspec.json.encode(holder))
        file.flush()
        terminal.press("Enter")
        said(terminal, f"(process {os.getpid()}, since", "is removing homesplit from borea.")
        opened_and_hidden(terminal, "Do next: Wait until it is done, or end it there")


def a_router_that_is_not_heard_is_told_until_it_is(terminal: Terminal) -> None:
    """The cable of its box is pulled while Monitor shows it, and put back."""
    lab = terminal.road.lab
    box = the_box_of_the_router(terminal)
    lab.fault(box, "cut-link")
    try:
        said(terminal, f"the engine on {box} is not heard")
    finally:
        lab.fault(box, "restore-link")
    terminal.wait_until(lambda shown: "is not heard" not in shown, "word from it", LONG_S)


def a_link_that_is_lost_while_modes_are_compared_is_told(terminal: Terminal) -> None:
    """The comparison ends with an error, and the app goes on."""
    lab = terminal.road.lab
    box = the_box_of_the_router(terminal)
    terminal.press("5", "Enter")
    terminal.wait_for("Round 1 of 1", limit_s=LONG_S)
    lab.fault(box, "cut-link")
    try:
        said(terminal, "✗", "hides it")
        opened_and_hidden(terminal, "(stage compare)", "Do next:")
    finally:
        lab.fault(box, "restore-link")
    terminal.wait_until(lambda shown: "is not heard" not in shown, "word from it", LONG_S)


def the_box_of_the_router(terminal: Terminal) -> str:
    """Where the deployment's router runs."""
    told = terminal.road.json("status")["deployment"]
    return str(told["router_box"])


def load_shows_in_monitor(terminal: Terminal) -> None:
    """The load is started by key and its requests end inside the screen."""
    terminal.press("Enter")
    terminal.wait_for("What each box does", "start the load")
    terminal.press("l")
    terminal.wait_for("open the chosen request", limit_s=LONG_S)


def boxes_are_broken_by_key_and_mend(terminal: Terminal) -> None:
    """A box is paused, then another's cable pulled."""
    terminal.wait_for("load ●", limit_s=LONG_S)
    a_fault_is_told_and_undone(terminal, "Home", "You paused")
    a_fault_is_told_and_undone(terminal, "End", "You pulled the cable of")
    assert "load ●" in terminal.shown()


def a_fault_is_told_and_undone(terminal: Terminal, place: str, told: str) -> None:
    """The first or the last of the list is told below the strips; then another may be picked."""
    a_fault_is_asked_for(terminal)
    terminal.press(place, "Enter")
    said(terminal, f"✗ fault {told}")
    # That it is over is told too, but what the router then has to tell may stand in its place.
    a_fault_is_asked_for(terminal)
    terminal.press("Escape")
    terminal.wait_until(lambda shown: "Break something" not in shown, "Monitor again")
    terminal.wait_until(
        lambda shown: not any(word in shown for word in ("is not heard", "does not answer")),
        "both boxes again",
        LONG_S,
    )


def a_fault_is_asked_for(terminal: Terminal) -> None:
    """There is a list once none is on."""
    for _ in range(MOST_WAITS):
        terminal.press("i")
        shown = terminal.wait_until(
            lambda shown: "Break something" in shown or "is on already" in shown, "a list"
        )
        if "Break something" in shown:
            return
        time.sleep(1.0)
    raise AssertionError(f"no list of faults:\n{terminal.shown()}")


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
