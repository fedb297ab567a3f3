"""Prompt classes on Monitor: those of the running workload, else by length alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from homesplit.core.state import Load
from homesplit.core.workload import LengthClass

MOST = 10**9
LOOKS = (("decode", "•"), ("handoff", "▴"), ("prefill", "◆"), ("mixed", "▪"))
"""Role and marker of each class on the charts, shortest prompts first."""


class PromptClass(Struct, frozen=True, kw_only=True):
    """A class by its prompts' tokens: from `low`, up to but not including `high`."""

    name: str
    low: int
    high: int
    role: str
    marker: str

    def holds(self, prompt_tokens: int) -> bool:
        """Whether a prompt of this length belongs here."""
        return self.low <= prompt_tokens < self.high


def prompt_classes(load: Load) -> tuple[PromptClass, ...]:
    """The workload's classes, parted halfway between neighbours: templates add some tokens."""
    if not load.classes:
        names = (("short", 0, 128), ("medium", 128, 512), ("long", 512, MOST))
        return tuple(_made(n, *one) for n, one in enumerate(names))
    return _parted(load.classes)


def _parted(classes: Sequence[LengthClass]) -> tuple[PromptClass, ...]:
    order = sorted(classes, key=lambda one: one.prompt_tokens_low + one.prompt_tokens_high)
    joined: list[tuple[str, int, int]] = []
    for one in order:
        low, high = one.prompt_tokens_low, one.prompt_tokens_high
        if joined and (low <= joined[-1][2] or len(joined) == len(LOOKS)):
            # Lengths that overlap can't be told apart by length.
            before = joined[-1]
            joined[-1] = (f"{before[0]}+{one.name}", before[1], max(before[2], high))
        else:
            joined.append((one.name, low, high))
    cuts = [round(math.sqrt(a[2] * b[1])) for a, b in pairwise(joined)]
    ends = (0, *cuts, MOST)
    return tuple(_made(n, name, ends[n], ends[n + 1]) for n, (name, _, _) in enumerate(joined))


def _made(number: int, name: str, low: int, high: int) -> PromptClass:
    role, marker = LOOKS[number]
    return PromptClass(name=name, low=low, high=high, role=role, marker=marker)


def legend(classes: Sequence[PromptClass]) -> str:
    """What the charts' points are, for a border."""
    return "  ".join(f"{one.marker} {one.name}" for one in classes)
