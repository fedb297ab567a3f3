"""The block allocator: nothing lost, nothing given twice, prefixes found again."""

from __future__ import annotations

import pytest
from homesplit_engine.pages import BlockPool, OutOfBlocks, blocks_for, chain_hash
from hypothesis import given
from hypothesis import strategies as st


def test_blocks_for_rounds_up() -> None:
    assert [blocks_for(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_request_gets_neighbouring_blocks_and_grows_into_its_promised_room() -> None:
    pool = BlockPool(16, 4)
    first = pool.allocate(2, room=2)
    second = pool.allocate(2)
    grown = pool.allocate(1, after=first[-1])
    assert first == [0, 1]
    assert second == [4, 5]
    assert grown == [2]


def test_promised_room_is_handed_out_when_nothing_else_is_left() -> None:
    pool = BlockPool(4, 4)
    pool.allocate(1, room=3)
    assert sorted(pool.allocate(3)) == [1, 2, 3]


def test_asking_for_too_much_is_refused_and_takes_nothing() -> None:
    pool = BlockPool(4, 4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="2 blocks asked for, 1 available"):
        pool.allocate(2)
    assert pool.blocks_available == 1


def test_a_released_prefix_is_found_again_until_its_block_is_needed() -> None:
    pool = BlockPool(2, 4)
    value = chain_hash(b"", [1, 2, 3, 4])
    blocks = pool.allocate(1)
    pool.remember(blocks[0], value)
    pool.release(blocks)
    assert pool.match([value]) == blocks
    assert (pool.blocks_available, pool.blocks_cached) == (2, 1)
    pool.allocate(2)
    assert pool.match([value]) == []


def test_the_block_unused_longest_is_evicted_first() -> None:
    pool = BlockPool(3, 4)
    values = [chain_hash(b"", [n] * 4) for n in range(3)]
    for value in values:
        (block,) = pool.allocate(1)
        pool.remember(block, value)
    for value in (values[1], values[0], values[2]):
        pool.release(pool.match([value]))
    pool.allocate(1)
    assert [bool(pool.match([value])) for value in values] == [True, False, True]


@pytest.mark.parametrize(("fresh", "room"), [(1, 0), (2, 0), (2, 2), (2, 9)])
def test_a_prefix_used_lately_stays_whatever_lies_beside_the_oldest(fresh: int, room: int) -> None:
    pool = BlockPool(8, 4)
    served = {name: serve(pool, name, 2) for name in "abcd"}
    for name in "acd":
        assert serve(pool, name, 2) == 2
    assert served == dict.fromkeys("abcd", 0)
    serve(pool, "e", fresh, room=room)
    # Of the oldest the end goes first: what is left of it is still a prefix.
    left = {name: len(pool.match(prefix_of(name, 2))) for name in "abcd"}
    assert left == {"a": 2, "b": 2 - fresh, "c": 2, "d": 2}


def test_an_answer_grows_into_free_blocks_before_a_cached_one_is_given_up() -> None:
    pool = BlockPool(4, 4)
    first = pool.allocate(1)
    serve(pool, "a", 1)
    assert pool.allocate(2, after=first[-1]) == [2, 3]
    assert len(pool.match(prefix_of("a", 1))) == 1
    assert pool.allocate(1, after=3) == [1]
    assert pool.match(prefix_of("a", 1)) == []


def prefix_of(name: str, blocks: int) -> list[bytes]:
    hashes = [chain_hash(name.encode(), [0])]
    while len(hashes) < blocks:
        hashes.append(chain_hash(hashes[-1], [0]))
    return hashes


def serve(pool: BlockPool, name: str, blocks: int, *, room: int = 0) -> int:
    """A prompt of so many blocks comes and goes; how many of them were known."""
    hashes = prefix_of(name, blocks)
    known = pool.match(hashes)
    pool.take(known)
    after = known[-1] if known else None
    held = known + pool.allocate(blocks - len(known), after=after, room=room)
    for block, value in zip(held, hashes, strict=True):
        pool.remember(block, value)
    pool.release(held)
    return len(known)


def test_a_shared_block_stays_until_its_last_user_leaves() -> None:
    pool = BlockPool(2, 4)
    value = chain_hash(b"", [1, 2, 3, 4])
    blocks = pool.allocate(1)
    pool.remember(blocks[0], value)
    pool.take(blocks)
    pool.release(blocks)
    assert pool.blocks_available == 1
    pool.release(blocks)
    assert pool.blocks_available == 2


def test_without_prefix_cache_nothing_is_remembered() -> None:
    pool = BlockPool(2, 4, prefix_cache=False)
    value = chain_hash(b"", [1])
    blocks = pool.allocate(1)
    pool.remember(blocks[0], value)
    pool.release(blocks)
    assert pool.match([value]) == []


def test_the_hash_of_a_block_depends_on_what_comes_before() -> None:
    assert chain_hash(chain_hash(b"", [1]), [2]) != chain_hash(chain_hash(b"", [3]), [2])


_OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["new", "grow", "free", "share"]), st.integers(0, 30)), max_size=60
)


@given(_OPERATIONS, st.integers(1, 24))
def test_blocks_are_never_lost_or_given_twice(
    operations: list[tuple[str, int]], total: int
) -> None:
    pool = BlockPool(total, 2)
    held: list[list[int]] = []
    for kind, number in operations:
        if kind == "new" and number % 7 + 1 <= pool.blocks_available:
            blocks = pool.allocate(number % 7 + 1, room=number % 3)
            pool.remember(blocks[0], chain_hash(b"", [number]))
            held.append(blocks)
        elif kind == "grow" and held and pool.blocks_available:
            chain = held[number % len(held)]
            chain += pool.allocate(1, after=chain[-1])
        elif kind == "free" and held:
            pool.release(held.pop(number % len(held)))
        elif kind == "share":
            matched = pool.match([chain_hash(b"", [number])])
            pool.take(matched)
            if matched:
                held.append(matched)
        in_use = {block for chain in held for block in chain}
        assert pool.blocks_available == total - len(in_use)
        assert all(0 <= block < total for block in in_use)
        for chain in held:
            assert len(set(chain)) == len(chain)
    for chain in held:
        pool.release(chain)
    assert pool.blocks_available == total


def test_a_spoiled_prefix_is_not_found_again() -> None:
    pool = BlockPool(2, 4)
    value = chain_hash(b"", [1, 2, 3, 4])
    blocks = pool.allocate(1)
    pool.remember(blocks[0], value)
    pool.forget(blocks)
    pool.release(blocks)
    assert pool.match([value]) == []
    assert (pool.blocks_available, pool.blocks_cached) == (2, 0)
