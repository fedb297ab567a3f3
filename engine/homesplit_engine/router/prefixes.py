"""A guess at which leading tokens each box still holds, to send related prompts to one box."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MAX_REMEMBERED = 65_536
"""Prefix blocks remembered per box; about 8 MB each."""
STRIDE_TOKENS = 64
"""Coarser than a worker's blocks: the guess only has to rank boxes."""


def chain(token_ids: Sequence[int]) -> list[int]:
    """One hash per whole stride, each over everything before it."""
    hashes: list[int] = []
    last = 0
    for end in range(STRIDE_TOKENS, len(token_ids) + 1, STRIDE_TOKENS):
        last = hash((last, *token_ids[end - STRIDE_TOKENS : end]))
        hashes.append(last)
    return hashes


class PrefixMemory:
    """Which prompts were read where, least recently used forgotten first."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._boxes: dict[str, OrderedDict[int, None]] = {}

    def remembered(self, box: str) -> int:
        """How many prefix blocks are remembered of a box."""
        return len(self._boxes.get(box, ()))

    def remember(self, box: str, prefix: Sequence[int]) -> None:
        """`box` now holds the prompt with this chain."""
        held = self._boxes.setdefault(box, OrderedDict())
        # The tail is of no use without its head, so it is forgotten before it.
        for key in reversed(prefix):
            held[key] = None
            held.move_to_end(key)
        while len(held) > self._most:
            held.popitem(last=False)

    def forget(self, box: str) -> None:
        """`box` was lost or started anew."""
        self._boxes.pop(box, None)

    def cached_tokens(self, box: str, prefix: Sequence[int]) -> int:
        """Leading tokens of this chain that `box` probably holds."""
        held = self._boxes.get(box, {})
        count = 0
        while count < len(prefix) and prefix[count] in held:
            count += 1
        return count * STRIDE_TOKENS
