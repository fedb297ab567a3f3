"""The search for capacity against a server that refuses what is too much for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace

from homesplit.core.capacity import CLOSE, Trial, capacity_of, capacity_sentence, run_s
from homesplit.core.entry import Entry
from homesplit.core.events import Event, Progress, StageStarted
from homesplit.core.load import with_load
from homesplit.core.window import EDGE_SHARE
from homesplit.core.workload import Targets
from homesplit.errors import UsageError
from homesplit.stages.bench import Target, make_load
from homesplit.stages.capacity import capacity_document, find_capacity
from homesplit.stages.notebook import list_entries, show_entry
from tests.io.fake_openai import Manners, fake_server
from tests.stages.test_compare import LOAD, context


async def test_the_highest_rate_that_a_server_held_is_found(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    load = with_load(LOAD, rate_requests_per_s=40.0, ttft_s=30.0, tpot_s=30.0)
    first = make_load(load, seconds=run_s(40.0, 2 * EDGE_SHARE), seed=1)
    # All of the first rate is served and nothing after it, however quick anybody is.
    async with fake_server(Manners(serves_first=len(first.requests))) as server:
        found = await find_capacity(ctx, Target(url=server.url), load, seconds=0.3, seed=1)
    assert found.capacity_requests_per_s == 40.0 and found.why is None
    assert found.high is not None and 40.0 < found.high <= 40.0 * CLOSE
    trials = capacity_document(found)["trials"]
    assert [trial["holds"] for trial in trials] == [True] + [False] * (len(trials) - 1)
    assert trials[0]["low"] <= trials[0]["attainment"] == 1.0 <= trials[0]["high"] + 1e-9
    assert all(trial["attainment"] is None for trial in trials[1:])
    assert list_entries(ctx)[0].sentence.startswith("Capacity 40 requests/s")


async def test_each_rate_is_in_the_notebook_before_it_is_told(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    told: list[Entry] = []

    def take(event: Event) -> None:
        if isinstance(event, Progress) and event.step == "rate":
            told.append(list_entries(ctx)[0])

    # It refuses everything, so that the search ends after two rates.
    async with fake_server(Manners(refuse_with=503)) as server:
        load = with_load(LOAD, rate_requests_per_s=200.0, ttft_s=30.0, tpot_s=30.0)
        target = Target(url=server.url)
        watched = dataclasses.replace(ctx, emit=take)
        found = await find_capacity(watched, target, load, seconds=0.3, seed=1)
    assert [len(entry.body["trials"]) for entry in told] == [1, 2]
    assert all(not entry.ended and entry.id == found.entry for entry in told)
    assert told[0].sentence.startswith("Search for capacity, not ended after 1 rate;")
    assert "no data" in told[0].sentence and told[0].body["trials"][0]["attainment"] is None
    (entry,) = list_entries(ctx)
    _, raw = show_entry(ctx, entry.id)
    assert entry.ended and "no data" in entry.sentence
    assert list(raw) == ["200 requests/s, run 1", "50 requests/s, run 1"]


async def test_users_who_give_up_in_time_take_no_capacity_away(tmp_path: Path) -> None:
    # Answers last far longer than their patience, so that all of them leave in time.
    load = with_load(LOAD, rate_requests_per_s=200.0, ttft_s=30.0, tpot_s=30.0)
    load = replace(load, cancel_share=0.4, cancel_after_s=0.001)

    def end_after_the_first(event: Event) -> None:
        if isinstance(event, Progress) and event.step == "rate":
            raise RuntimeError(event.sentence)

    async with fake_server(Manners(ttft_s=0.2)) as server:
        ctx = dataclasses.replace(context(tmp_path), emit=end_after_the_first)
        with pytest.raises(RuntimeError, match="given up before, holds"):
            await find_capacity(ctx, Target(url=server.url), load, seconds=0.5, seed=1, keep=False)
    assert list_entries(context(tmp_path)) == ()


async def test_a_load_without_a_rate_or_without_targets_is_refused(tmp_path: Path) -> None:
    target = Target(url="http://127.0.0.1:9")
    careless = replace(LOAD, targets=Targets(ttft_s=None, tpot_s=None))
    for load, word in ((with_load(LOAD, users=3), "rate"), (careless, "target")):
        with pytest.raises(UsageError, match=word):
            await find_capacity(context(tmp_path), target, load, seconds=1.0, seed=1)


async def test_how_long_a_search_takes_is_told_first_and_no_rate_is_begun_that_would_end_later(
    tmp_path: Path,
) -> None:
    told: list[Event] = []
    ctx = context(tmp_path, told)
    load = with_load(LOAD, rate_requests_per_s=1.0, ttft_s=30.0, tpot_s=30.0)
    async with fake_server() as server:
        target = Target(url=server.url)
        # At one request a second sixty that count take 75 s.
        found = await find_capacity(ctx, target, load, seconds=0.3, seed=1, within_s=60.0)
    first = next(event.sentence for event in told if isinstance(event, StageStarted))
    assert "each rate is tried for 75 s or longer" in first
    assert "no rate is begun that would end after 60 s" in first
    assert found.trials == () and found.over and found.capacity_requests_per_s is None
    assert "the search ended where its time did, 60 s (--within)" in capacity_sentence(found)
    assert list_entries(ctx)[0].about.settings["within_s"] == 60.0


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ((True,), "Capacity at least 2 requests/s: the search ended"),
        ((True, False), "Capacity at least 2 requests/s and below 4 requests/s: the search ended"),
        ((False,), "Capacity not found: the search ended"),
    ],
)
def test_a_search_whose_time_was_over_tells_what_it_has_shown(
    inside: tuple[bool, ...], said: str
) -> None:
    trials = [
        Trial(
            rate_requests_per_s=2.0 * (number + 1),
            offered=100,
            inside=100 if each else 0,
            completed=100,
        )
        for number, each in enumerate(inside)
    ]
    found = capacity_of(trials, None, 60.0)
    assert capacity_sentence(found).startswith(said)
    assert found.over and capacity_sentence(found).endswith("60 s (--within).")
