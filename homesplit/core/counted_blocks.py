"""A block pool that only counts: for loads whose prompts share nothing."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.pages import BlockPool, OutOfBlocks


class CountedBlocks(BlockPool):
    """As many blocks as the engine's pool, without a place for each.

    Where no prefix is looked for, the scheduler asks only how many are left; a simulation
    spends most of its time on which ones they are otherwise.
    """

    def __init__(self, blocks_total: int, block_tokens: int) -> None:
        super().__init__(blocks_total, block_tokens, prefix_cache=False)

    def allocate(self, count: int, *, after: int | None = None, room: int = 0) -> list[int]:
        """`count` blocks, all called 0; raises OutOfBlocks."""
        if count > self.blocks_available:
            raise OutOfBlocks(f"{count} blocks asked for, {self.blocks_available} available")
        self._used += count
        return [0] * count

    def release(self, blocks: Sequence[int]) -> None:
        """Gives as many blocks back."""
        self._used -= len(blocks)
