"""Which cells the matrix has, in the order in which they are run, and which make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Moment = Literal["idle", "queued", "prefill", "hand-off", "commit", "decoding"]
Mode = Literal["colocated", "replica", "split", "auto"]

MOMENTS: tuple[Moment, ...] = ("hand-off", "commit", "decoding", "prefill", "queued", "idle")
"""`commit` is between the hand-off's commit and the next token."""
MODES: tuple[Mode, ...] = ("split", "auto", "replica", "colocated")
FRAME_FAULTS = ("flip", "lose", "repeat", "reorder")
FAULTS = (
    "kill-b",
    "loss",
    "cut",
    "kill-a",
    "latency",
    "no-blocks",
    "kill-router",
    "rate",
    "cut-and-back",
    "stop-5",
    "disk-full",
    "clock-back",
    "reboot",
    "stop-60",
    *FRAME_FAULTS,
)
"""Those that kill stand apart: a supervisor waits longer before each new start of a process that
keeps dying, and anew after a minute of life."""
ROUTER_BOX, OTHER_BOX = "atlas", "borea"
HIT_BOX = {
    "kill-a": ROUTER_BOX,
    "kill-b": OTHER_BOX,
    "stop-5": OTHER_BOX,
    "stop-60": OTHER_BOX,
    "cut": OTHER_BOX,
    "cut-and-back": OTHER_BOX,
    "reboot": OTHER_BOX,
}
"""Which box a fault takes away; its loss and its return have to be told."""
NAMED = {
    "kill-router": ("router_ended",),
    "disk-full": ("disk_full",),
    "clock-back": ("clock",),
    "loss": ("packet_loss",),
    "latency": ("latency",),
    "no-blocks": ("no_blocks",),
    "rate": ("handoff", "late_room", "slow_link", "worker_lost"),
}
"""By which of these kinds the monitor has to name a fault that takes no box away. A slow link is
seen by what is handed over."""
SEEN_OVER = ("latency", "disk_full", "no_blocks")
"""Of these kinds the monitor sees by itself, without a request, that they are over."""
WHAT = {
    "kill-a": "kill -9 of the worker on the router's box",
    "kill-b": "kill -9 of the other worker",
    "kill-router": "kill -9 of the router",
    "stop-5": "the other worker stopped for 5 s, then let go on",
    "stop-60": "the other worker stopped for 60 s, then let go on",
    "cut": "the other box's cable out until the answers are whole",
    "cut-and-back": "the other box's cable out for 3 s",
    "loss": "5 % of packets lost",
    "latency": "200 ms added",
    "rate": "the link at 1 % of its rate",
    "disk-full": "not a byte left where engine and router write",
    "no-blocks": "other requests want more KV blocks than there are",
    "flip": "a bit of one KV frame flipped",
    "lose": "one KV frame lost",
    "repeat": "one KV frame sent twice",
    "reorder": "two KV frames in the wrong order",
    "clock-back": "the wall clock set back by an hour",
    "reboot": "the other box switched off and on",
}
SHORT = (
    ("kill-b", "hand-off", "split"),
    ("kill-a", "hand-off", "split"),
    ("kill-b", "decoding", "replica"),
    ("flip", "hand-off", "split"),
    ("stop-5", "decoding", "colocated"),
    ("kill-router", "decoding", "split"),
)
"""The hardest of them, for every day."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one moment in one mode."""

    fault: str
    moment: Moment
    mode: Mode

    @property
    def name(self) -> str:
        """As the results name it."""
        return f"{self.fault}/{self.moment}/{self.mode}"

    @property
    def why_not(self) -> str | None:
        """Why this cell does not exist; None when it does."""
        if self.moment in ("hand-off", "commit") and self.mode in ("colocated", "replica"):
            return f"{self.mode} hands nothing over"
        if self.fault in FRAME_FAULTS and self.moment != "hand-off":
            return "frames are under way during a hand-off only"
        return None

    @property
    def needs_first_handoff(self) -> bool:
        """Whether `auto` has to be brought to hand over: it tries what it never measured."""
        return self.mode == "auto" and self.moment in ("hand-off", "commit")

    @property
    def through_wire(self) -> bool:
        """Whether hand-offs have to go through the wire that damages frames."""
        return self.fault in FRAME_FAULTS


def all_cells() -> list[Cell]:
    """Every cell, in the order in which they are run."""
    return [Cell(fault, moment, mode) for mode in MODES for moment in MOMENTS for fault in FAULTS]


def together(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that one fault can be judged at, together; in the order of each one's first."""
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        alone = cell.moment == "idle" or cell.through_wire or cell.needs_first_handoff
        groups.setdefault(cell if alone else (cell.fault, cell.mode), []).append(cell)
    return list(groups.values())


def short_cells() -> list[Cell]:
    """The short form's cells."""
    return [cell for cell in all_cells() if (cell.fault, cell.moment, cell.mode) in SHORT]
