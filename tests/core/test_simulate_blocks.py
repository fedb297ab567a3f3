"""The simulator's cheap blocks behave as the engine's own."""

from __future__ import annotations

import pytest
from homesplit_engine.pages import BlockPool, OutOfBlocks
from homesplit_engine.request import Request
from hypothesis import given
from hypothesis import strategies as st

from homesplit.core.counted_blocks import CountedBlocks, PrefixNames

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_counted_blocks_are_as_many_as_the_engines_after_any_steps(
    steps: list[tuple[bool, int]],
) -> None:
    pools = (BlockPool(20, 16, prefix_cache=False), CountedBlocks(20, 16))
    held: list[list[list[int]]] = [[], []]
    for give_back, count in steps:
        for pool, mine in zip(pools, held, strict=True):
            if give_back and mine:
                pool.release(mine.pop())
            elif count <= pool.blocks_available:
                mine.append(pool.allocate(count))
        assert pools[0].blocks_available == pools[1].blocks_available


def test_more_blocks_than_there_are_are_refused() -> None:
    with pytest.raises(OutOfBlocks):
        CountedBlocks(2, 16).allocate(3)


@given(first=PROMPTS, second=PROMPTS)
def test_names_are_equal_where_the_engines_hashes_are(first: list[int], second: list[int]) -> None:
    names = PrefixNames(4)
    made = [names.of(tokens) for tokens in (first, second)]
    hashes = [_hashes(tokens) for tokens in (first, second)]
    assert [len(each) for each in made] == [len(each) for each in hashes]
    for at in range(min(map(len, made))):
        assert (made[0][at] == made[1][at]) == (hashes[0][at] == hashes[1][at])


def _hashes(tokens: list[int]) -> list[bytes]:
    request = Request(
        request_id="r",
        tokens=tokens,
        prompt_tokens=len(tokens),
        max_tokens=1,
        arrived_s=0.0,
        deadline_s=1.0,
    )
    return request.block_hashes(len(tokens) // 4, 4)
