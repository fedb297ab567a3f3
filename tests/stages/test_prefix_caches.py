"""No measurement finds the prompts of the one before in a server's prefix cache."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from homesplit.core.load import with_load
from homesplit.stages.bench import Target, bench
from homesplit.stages.capacity import find_capacity
from homesplit.stages.compare import compare
from homesplit.stages.context import Context
from homesplit.stages.notebook import show_entry
from homesplit.stages.own_targets import measure_alone
from homesplit.stages.repeat import repeat
from tests.io.fake_openai import FakeServer, Manners, fake_server
from tests.io.fake_router import fake_router
from tests.stages.test_compare import EVEN, LOAD, context

BUSY = Manners(refuse_with=503)


def prompts(server: FakeServer) -> list[str]:
    """All that it was asked to answer in a load, and to find out how it counts."""
    return [str(seen.body.get("prompt") or seen.body["messages"]) for seen in server.seen]


async def twice(server: FakeServer, measure: Callable[[], Awaitable[object]]) -> None:
    """Measured twice alike, no prompt of the second time begins as one of the first did."""
    asked: list[list[str]] = []
    for _ in range(2):
        server.seen.clear()
        await measure()
        asked.append(prompts(server))
    first, second = ({" ".join(prompt.split()[:8]) for prompt in run} for run in asked)
    assert len(asked[0]) == len(asked[1]) >= 4 and not first & second


async def test_targets_measured_again_are_not_those_of_cached_prompts(tmp_path: Path) -> None:
    load = with_load(LOAD, rate_requests_per_s=1.0)
    async with fake_server() as server:
        target = Target(url=server.url)
        await twice(server, lambda: measure_alone(context(tmp_path), target, load))


async def test_a_search_again_sends_other_words(tmp_path: Path) -> None:
    load = with_load(LOAD, rate_requests_per_s=200.0, ttft_s=30.0, tpot_s=30.0)
    async with fake_server(BUSY) as server:
        target, ctx = Target(url=server.url), context(tmp_path)
        await twice(server, lambda: find_capacity(ctx, target, load, seconds=0.3, seed=1))


async def test_a_repeated_run_sends_other_words_each_time(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    load = with_load(LOAD, rate_requests_per_s=30.0)
    async with fake_server() as server:
        target = Target(url=server.url)
        await bench(ctx, target, load, seconds=1.0, seed=1)
        entry, raw = show_entry(ctx, "1")
        await twice(server, lambda: repeat(ctx, entry, raw, target))


async def test_a_comparison_again_sends_other_words_at_the_same_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.stages.load_watch.FIRST_EVENT_S", 0.02)
    monkeypatch.setattr("homesplit.stages.load_watch.LAST_RECORDS_S", 0.02)
    monkeypatch.setattr("homesplit.stages.compare_texts.CHECK_S", 0.0)
    ctx: Context = context(tmp_path)
    async with fake_router(EVEN) as router, fake_server() as other:
        target, also = Target(url=router.url), [Target(url=other.url)]

        async def measure() -> None:
            await compare(
                ctx, target, ["colocated:whole"], LOAD, seconds=1.0, repeats=1, seed=1, also=also
            )

        await twice(other, measure)
    first, second = (show_entry(ctx, number)[0] for number in ("1", "2"))
    assert first.about.seeds["load"] == second.about.seeds["load"] == 1
    assert first.about.seeds["salt"] != second.about.seeds["salt"]
