"""Prompt classes on Monitor: those of the running workload, else by length alone."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec import Struct

from homesplit.core.state import Load
from homesplit.core.workload import LengthClass

MOST = 10**9
LOOKS = (("decode", "•"), ("handoff", "▴"), ("prefill", "◆"), ("mixed", "▪"))
"""Role and marker of each class on the charts, shortest prompts first."""


class PromptClass(Struct, frozen=True, kw_only=True):
    """A class by its prompts' tokens: fewer than `high`, and as many as the one before ends at."""

    name: str
    high: int
    role: str
    marker: str


def prompt_classes(load: Load) -> tuple[PromptClass, ...]:
    """The workload's classes, parted halfway between neighbours: templates add some tokens."""
    if not load.classes:
        names = (("short", 128), ("medium", 512), ("long", MOST))
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
    ends = (*cuts, MOST)
    return tuple(_made(n, name, ends[n]) for n, (name, _, _) in enumerate(joined))


def _made(number: int, name: str, high: int) -> PromptClass:
    role, marker = LOOKS[number]
    return PromptClass(name=name, high=high, role=role, marker=marker)


def place_by_length(classes: Sequence[PromptClass]) -> Callable[[int], int]:
    """Tells the place among `classes`, which are not none, of a prompt of so many tokens."""
    highs, last = [one.high for one in classes], len(classes) - 1
    return lambda prompt_tokens: min(bisect_right(highs, prompt_tokens), last)


def legend(classes: Sequence[PromptClass]) -> str:
    """What the charts' points are, for a border."""
    return "  ".join(f"{one.marker} {one.name}" for one in classes)
