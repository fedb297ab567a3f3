"""What makes blocks cheap to simulate: a pool that only counts, and names in place of hashes."""

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


class PrefixNames:
    """Names for prefixes of full blocks, equal where the tokens are: hashes without hashing."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}

    def of(self, tokens: Sequence[int]) -> list[bytes]:
        """The names of all full blocks of `tokens`, in order."""
        names, size, parent = self._names, self._block_tokens, b""
        found: list[bytes] = []
        for start in range(0, len(tokens) - size + 1, size):
            key = (parent, tuple(tokens[start : start + size]))
            name = names.get(key)
            if name is None:
                name = names[key] = len(names).to_bytes(8, "big")
            found.append(name)
            parent = name
        return found
