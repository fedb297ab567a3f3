"""What the person has chosen at the screens: boxes, model, workload, lengths, targets."""

from __future__ import annotations

import msgspec
from homesplit_engine.records import ModeSetting
from msgspec import Struct, field

from homesplit.core.workload import Targets


class Choices(Struct, frozen=True, kw_only=True):
    """The question as it stands on the screens; every stage takes its input from here."""

    boxes: tuple[str, ...] = ()
    """At most two names, in the order chosen."""
    model: str = "smollm2-135m"
    workload: str | None = None
    """A workload profile; None asks with the four figures below instead."""
    prompt_tokens: int = 512
    output_tokens: int = 64
    users: int = 4
    rate_requests_per_s: float | None = None
    """Offered load in place of `users`, None when users are meant."""
    targets: Targets = field(default_factory=Targets)
    targets_from: tuple[str, str] = ("", "")
    """Where the TTFT and the TPOT target come from when they were measured, in two words each."""
    setting: ModeSetting | None = None
    """The mode to deploy with; None takes the plan's recommendation."""
    load_workload: str | None = None
    """The workload the load generator on Monitor runs; None takes its default."""
    load_rate_requests_per_s: float | None = None
    """None where nobody has named one: it is then taken from requests served alone."""


def names_targets(choices: Choices) -> bool:
    """Whether the person chose the targets; measured ones and those of the start are not chosen."""
    return choices.targets != Targets() and not any(choices.targets_from)


def toggled(choices: Choices, name: str) -> Choices:
    """Choose a box or let it go; a third choice replaces the older of the two."""
    if name in choices.boxes:
        boxes = tuple(box for box in choices.boxes if box != name)
    else:
        boxes = (*choices.boxes[-1:], name) if len(choices.boxes) == 2 else (*choices.boxes, name)
    return msgspec.structs.replace(choices, boxes=boxes)
