"""A run on two lab boxes, led by keys and recorded: what the pictures of this folder show.

The boxes have most of a core each, so the computer should have nothing else to do. The load is
more than one box can carry within its targets: people who chat while documents are to be read.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.lab.by_keys import (
    LONG_S,
    Terminal,
    boxes_are_chosen_and_measured,
    started,
    the_plan_is_deployed,
)
from tests.lab.needs import missing

CPU = ("atlas=0.9@0", "borea=0.9@1")
WORKLOAD = """\
name = "At home"
description = "People chat, and bring documents to be read: all at once, then nobody for a while."
source = "lengths chosen so that most of a core answers within seconds"
date = "2026-11-30"

[targets]
ttft_s = 8.0
tpot_s = 0.09

[arrivals]
kind = "open"
rate_requests_per_s = 1.25
pattern = "on_off"
on_s = 6.0
off_s = 6.0

[[classes]]
name = "chat"
share = 0.5
prompt_tokens = [24, 60]
output_tokens = [16, 28]

[[classes]]
name = "document"
share = 0.5
prompt_tokens = [140, 240]
output_tokens = [6, 12]
"""
RATE = "1.2 req/s"
"""What the plan asks about and Monitor offers, as the screen writes it."""
EACH_MODE_S = 75.0
MODES = [
    re.compile(rf"mode +{words}")
    for words in ("colocated .* whole", "colocated .* chunks", "replica", "split")
]
"""What Monitor says of the modes, in the order in which m goes through them."""
MOST_TURNS = 40


def lacks() -> list[str]:
    """What this computer lacks for a lab."""
    return missing(("ip", "tc", "sshd", "ssh-keygen", "avahi-daemon", "tmux"))


def record(kept: Path) -> None:
    """Lead the app along the whole road on a fresh lab, and keep what it was told in `kept`."""
    with tempfile.TemporaryDirectory(prefix="homesplit-pictures-") as name:
        folder = Path(name)
        written = folder / "run.jsonl"
        profiles = folder / "home" / "config" / "profiles" / "workloads"
        profiles.mkdir(parents=True)
        (profiles / "at-home.toml").write_text(WORKLOAD)
        with started(folder, CPU, ("app", "--record", str(written))) as terminal:
            _walk(terminal)
        with written.open("rb") as raw, gzip.open(kept, "wb", compresslevel=9) as packed:
            shutil.copyfileobj(raw, packed)


def _walk(terminal: Terminal) -> None:
    _say("machines")
    boxes_are_chosen_and_measured(terminal)
    _say("plan")
    _plan(terminal)
    _say("deploy")
    the_plan_is_deployed(terminal)
    _monitor(terminal)
    _say("compare")
    terminal.press("5", "Enter")
    terminal.wait_for("5 Compare ✓", limit_s=LONG_S)
    _say("plan once more, by what the engine itself took")
    terminal.press("2", "a")
    terminal.wait_for("still being worked out")
    _wait_for_advice(terminal)
    _say("notebook")
    terminal.press("6")
    terminal.wait_for("comparison")
    terminal.press("q")
    terminal.wait_for_end()


def _plan(terminal: Terminal) -> None:
    """The advice for this load, with the targets that it brings."""
    terminal.press("Enter")
    terminal.wait_for("What will be asked")
    terminal.press("Down", "Down")
    for _ in range(MOST_TURNS):
        terminal.press("Right")
        time.sleep(0.3)
        if "at-home" in terminal.shown():
            break
    else:
        raise AssertionError(f"no such workload on the screen:\n{terminal.shown()}")
    terminal.wait_for("The rules, in order", "prepare the deployment", limit_s=LONG_S)
    _wait_for_advice(terminal)


def _wait_for_advice(terminal: Terminal) -> None:
    """Until all of it is worked out."""
    terminal.wait_until(lambda shown: "worked out" not in shown, "the whole advice", LONG_S)


def _monitor(terminal: Terminal) -> None:
    """The load in each mode, prompts read whole first."""
    terminal.press("Enter")
    terminal.wait_for("What each box does", "start the load")
    for _ in range(MOST_TURNS):
        if MODES[0].search(terminal.shown()):
            break
        terminal.press("m")
        time.sleep(2.0)
    _say("load")
    # A rate that nobody has named begins at one a second.
    terminal.press("+")
    terminal.wait_for(f"off ({RATE})")
    terminal.press("l")
    terminal.wait_for(f"load ● {RATE}", limit_s=LONG_S)
    for number, mode in enumerate(MODES):
        if number:
            terminal.press("m")
        terminal.wait_until(lambda shown, mode=mode: bool(mode.search(shown)), mode.pattern)
        _say(mode.pattern)
        time.sleep(EACH_MODE_S)


def _say(step: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {step}", file=sys.stderr, flush=True)  # noqa: T201
