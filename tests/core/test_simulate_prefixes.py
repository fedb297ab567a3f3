"""Conversations in the simulator: what is cached where, and what of it goes over the link."""

from __future__ import annotations

import itertools

import pytest
from homesplit_engine.records import Mode
from msgspec import structs

from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.load import plan_load
from homesplit.core.sim_result import SimResult
from homesplit.core.simulate import simulate
from homesplit.core.workload import Arrivals
from tests.core.test_decide import ask, load

PROMPT, ANSWER, TURNS = 320, 32, 4


def talks(mode: Mode) -> SimResult:
    """Two users who never write at once, four questions each."""
    work = structs.replace(
        load(PROMPT, ANSWER),
        arrivals=Arrivals(kind="open", rate_requests_per_s=0.01, burstiness=0.0),
        turns=TURNS,
    )
    asked = ask(work=work)
    scene = build_scene(asked)
    arrangement = next(each for each in arrangements(asked, scene) if each.mode == mode)
    return simulate(scene, arrangement, plan_load(work, seed=1, seconds=250.0))


@pytest.mark.parametrize("mode", ["colocated", "replica", "split"])
def test_a_later_turn_reads_only_what_is_new(mode: Mode) -> None:
    for turn, record in enumerate(talks(mode).records[:TURNS]):
        before = turn * (PROMPT + ANSWER)
        # In a split the answers are on the box that wrote them, not on the one that reads.
        floor = 0 if mode == "split" else before - 32
        assert floor <= record.cached_tokens <= before
        assert (record.cached_tokens > 0) == (turn > 0)


def test_replicas_keep_a_conversation_where_its_beginning_is_cached() -> None:
    cached = [record.cached_tokens for record in talks("replica").records[:TURNS]]
    assert all(later > earlier for earlier, later in itertools.pairwise(cached))


def test_a_split_hands_over_only_what_the_decode_box_lacks() -> None:
    records = talks("split").records[:TURNS]
    sent_s = [record.handoff_s or 0.0 for record in records]
    # Each turn lacks its own question only, though the prompt grows to five times that.
    assert sent_s[-1] < 2.0 * sent_s[0]
