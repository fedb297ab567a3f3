"""What makes blocks cheap to simulate: a pool that only counts, and names in place of hashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

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
        self._names: dict[tuple[bytes, tuple[tuple[int, int], ...]], bytes] = {}
        self._rows: dict[tuple[bytes, int], list[bytes]] = {}
        """Those of blocks full of one value, by what is before them: found at once."""

    def of(self, tokens: Sequence[int]) -> list[bytes]:
        """The names of all full blocks of `tokens`, in order."""
        return self.of_runs([(value, sum(1 for _ in same)) for value, same in groupby(tokens)])

    def of_runs(self, runs: Iterable[tuple[int, int]]) -> list[bytes]:
        """The same of tokens told as (value, how many in a row)."""
        size, parent = self._block_tokens, b""
        found: list[bytes] = []
        block: list[tuple[int, int]] = []
        room = size
        for value, count in runs:
            if room == size and count >= size:
                names = self._row(parent, value, count // size)
                found += names
                parent, count = names[-1], count % size
            while count > 0:
                taken = min(count, room)
                count, room = count - taken, room - taken
                if block and block[-1][0] == value:
                    taken += block.pop()[1]
                block.append((value, taken))
                if room == 0:
                    parent = self._name(parent, tuple(block))
                    found.append(parent)
                    block, room = [], size
        return found

    def _row(self, parent: bytes, value: int, blocks: int) -> list[bytes]:
        """The names of so many blocks full of one value."""
        row = self._rows.setdefault((parent, value), [])
        while len(row) < blocks:
            row.append(self._name(row[-1] if row else parent, ((value, self._block_tokens),)))
        return row[:blocks]

    def _name(self, parent: bytes, block: tuple[tuple[int, int], ...]) -> bytes:
        key = (parent, block)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = len(self._names).to_bytes(8, "big")
        return name
