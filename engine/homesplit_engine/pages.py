"""The block allocator of the KV pool: integers and hashes only, never a tensor.

The pool is `blocks_total` blocks of `block_tokens` slots. A block is free, in use (counted),
or *cached*: in no use, but still holding a prefix that a later prompt may take up again.

    block   0   1   2   3   4   5   6   7
          [ A | A | a | . | B | B | c | c ]     A, B in use   a promised to A
                                                . free        c cached (evicted last)

Neighbouring blocks let attention read a request's KV in place instead of gathering it, so
a request is given a run, and room behind it is *promised*: others take that room last.
"""

from __future__ import annotations

import re
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

_USED, _FREE, _PROMISED, _CACHED = 0, 1, 2, 3
_FREE_RUN = re.compile(rb"\x01+")


class OutOfBlocks(Exception):
    """More blocks were asked for than `blocks_available` offers; a mistake of the caller."""


def blocks_for(tokens: int, block_tokens: int) -> int:
    """How many blocks hold `tokens` tokens."""
    return -(-tokens // block_tokens)


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a full block that follows the block hashed `parent` (b"" for the first)."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """Hands out blocks, counts their users, and remembers which prefix a block holds."""

    def __init__(self, blocks_total: int, block_tokens: int, *, prefix_cache: bool = True) -> None:
        self.blocks_total = blocks_total
        self.block_tokens = block_tokens
        self.prefix_cache = prefix_cache
        self._state = bytearray([_FREE]) * blocks_total
        self._users = [0] * blocks_total
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._used = 0

    @property
    def blocks_available(self) -> int:
        """Blocks that can be handed out: free, promised, or cached."""
        return self.blocks_total - self._used

    @property
    def blocks_cached(self) -> int:
        """Blocks in no use that still hold a prefix."""
        return len(self._cached)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest known prefix of `hashes`; changes nothing."""
        found: list[int] = []
        if self.prefix_cache:
            for value in hashes:
                block = self._block_of.get(value)
                if block is None:
                    break
                found.append(block)
        return found

    def available_beside(self, matched: Sequence[int]) -> int:
        """Blocks that could still be handed out once `matched` are taken up."""
        return self.blocks_available - sum(self._users[block] == 0 for block in matched)

    def take(self, matched: Sequence[int]) -> None:
        """Adds a user to blocks that `match` found."""
        for block in matched:
            if self._users[block] == 0:
                self._cached.pop(block, None)
                self._state[block] = _USED
                self._used += 1
            self._users[block] += 1

    def allocate(self, count: int, *, after: int | None = None, room: int = 0) -> list[int]:
        """`count` blocks, the first behind `after` if that is free, as few runs as may be.

        Cached ones are given up only as far as free ones do not suffice, those unused longest
        first. `room` blocks behind the last are promised to it. Raises OutOfBlocks.
        """
        if count > self.blocks_available:
            raise OutOfBlocks(f"{count} blocks asked for, {self.blocks_available} available")
        taken: list[int] = []
        at = -1 if after is None else after + 1
        # What is promised behind `after` was promised to it.
        open_ones = (_FREE, _PROMISED)
        while len(taken) < count:
            if not (0 <= at < self.blocks_total and self._state[at] in open_ones):
                at = self._start_of_run(count - len(taken), room)
                open_ones = (_FREE,)
            self._seize(at)
            taken.append(at)
            at += 1
        self._promise(at, room)
        return taken

    def release(self, blocks: Sequence[int]) -> None:
        """Takes one user off each block; those without users are free, or cached if hashed."""
        if blocks:
            self._unpromise(blocks[-1] + 1)
        # The tail of a chain is useless without its head, so it is cached as the older one.
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] > 0:
                continue
            self._used -= 1
            if block in self._hash_of:
                self._state[block] = _CACHED
                self._cached[block] = None
            else:
                self._state[block] = _FREE

    def remember(self, block: int, value: bytes) -> None:
        """Notes that a block in use holds the full prefix hashed `value`."""
        if self.prefix_cache and value not in self._block_of and block not in self._hash_of:
            self._hash_of[block] = value
            self._block_of[value] = block

    def forget(self, blocks: Sequence[int]) -> None:
        """No later prompt takes these blocks up: what they hold is spoiled."""
        for block in blocks:
            value = self._hash_of.pop(block, None)
            if value is not None:
                del self._block_of[value]

    def _seize(self, block: int) -> None:
        self._state[block] = _USED
        self._users[block] = 1
        self._used += 1

    def _start_of_run(self, want: int, room: int) -> int:
        """The best place to start: a free run that is long enough, else the longest."""
        self._give_up_cached(want - self._state.count(_FREE))
        longest, start = 0, self._state.find(_PROMISED)
        for run in _FREE_RUN.finditer(self._state):
            length = run.end() - run.start()
            if length >= want + room:
                return run.start()
            if length > longest:
                longest, start = length, run.start()
        if start < 0:
            raise OutOfBlocks("no block is available")
        return start

    def _give_up_cached(self, count: int) -> None:
        """Makes so many cached blocks free, where there are as many: those unused longest."""
        for _ in range(min(count, len(self._cached))):
            block, _ = self._cached.popitem(last=False)
            self.forget([block])
            self._state[block] = _FREE

    def _promise(self, at: int, room: int) -> None:
        end = min(at + room, self.blocks_total)
        while at < end and self._state[at] == _FREE:
            self._state[at] = _PROMISED
            at += 1

    def _unpromise(self, at: int) -> None:
        while at < self.blocks_total and self._state[at] == _PROMISED:
            self._state[at] = _FREE
            at += 1
