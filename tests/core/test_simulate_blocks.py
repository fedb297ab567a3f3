"""The simulator's cheap blocks behave as the engine's own."""

from __future__ import annotations

import pytest
from homesplit_engine.pages import BlockPool, OutOfBlocks
from homesplit_engine.request import Request
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.counted_blocks import CountedBlocks, PrefixNames
from homesplit.core.load import plan_load
from homesplit.core.simulate import simulate
from homesplit.core.workload import Arrivals
from tests.core.test_decide import ask, load

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
    # However a prompt's parts are cut, it is the same prompt.
    assert names.of_runs((token, 1) for token in second) == made[1]
    assert PrefixNames(4).of_runs((token, 1) for token in first) == PrefixNames(4).of(first)


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


@pytest.mark.parametrize("tokens", [700, 1300, 2500])
@pytest.mark.parametrize("which", range(6))
def test_every_request_is_answered_in_full_where_blocks_are_short(which: int, tokens: int) -> None:
    """Room is taken by others in the middle of a leap, and the last answer gives up its blocks."""
    work = structs.replace(load(400, 120), arrivals=Arrivals(rate_requests_per_s=6.0))
    asked = ask(rate=3e7, work=work)
    scene = build_scene(asked)
    boxes = tuple(structs.replace(box, kv_tokens=tokens) for box in scene.boxes)
    plan = plan_load(work, seed=4, seconds=8.0)
    chosen = arrangements(asked, scene)[which]
    records = simulate(structs.replace(scene, boxes=boxes), chosen, plan).records
    assert {record.timeline.outcome for record in records} == {"completed"}
    assert {len(record.timeline.token_s) for record in records} == {120}
