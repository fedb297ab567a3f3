"""The app in a terminal on a lab's desk, led along the road by keys as a person does."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

from tests.lab.api import running_lab
from tests.lab.inside import exec_command
from tests.lab.records import DESK
from tests.lab.road import Road, box_platform, fetch_packages
from tests.lab.store import CHECKOUT
from tests.tmux import Tmux

LONG_S = 1800.0
"""A limit, not a wait: on a busy computer everything takes many times as long."""


class Terminal(Tmux):
    """The app on a lab's desk in a tmux of its own."""

    def __init__(
        self,
        road: Road,
        folder: Path,
        words: Sequence[str] = (),
        *,
        size: tuple[int, int] = (120, 40),
        ssh_config: Path | None = None,
    ) -> None:
        self.road = road
        config = ssh_config or road.lab.ssh_config
        command = [
            *exec_command(road.lab.lab, DESK),
            *("env", "-u", "COLUMNS", "-u", "LINES", f"HOMESPLIT_HOME={road.home}"),
            *(f"HOMESPLIT_SSH_CONFIG={config}", "LANG=C.UTF-8"),
            "TERM=tmux-256color",
            *(str(Path(sys.executable).with_name("homesplit")), *words),
        ]
        super().__init__(command, folder, at=CHECKOUT, size=size)


@contextlib.contextmanager
def started(
    folder: Path, cpu: Sequence[str], words: Sequence[str] = (), *, odd: str | None = None
) -> Generator[Terminal]:
    """The app as it starts, on a desk that knows a box for each of these shares of a core."""
    with running_lab(len(cpu), "1gbe", cpu=cpu, memory=["4"], odd=odd) as lab:
        fetch_packages(box_platform(lab, "atlas"))
        terminal = Terminal(Road(lab, folder / "home"), folder, words)
        try:
            yield terminal
        finally:
            terminal.close()


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
