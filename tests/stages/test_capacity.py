"""The search for capacity against a server that refuses what is too much for it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from homesplit.core.bench_result import BenchResult
from homesplit.core.capacity import CLOSE, Trial, capacity_of, capacity_sentence, run_s
from homesplit.core.entry import LOOPBACK_LABEL, Entry
from homesplit.core.events import Event, Progress, StageStarted
from homesplit.core.load import with_load
from homesplit.core.window import EDGE_SHARE
from homesplit.core.workload import Targets
from homesplit.errors import UsageError
from homesplit.stages.bench import Target, make_load, run_once
from homesplit.stages.capacity import capacity_document, check_search, find_capacity
from homesplit.stages.notebook import list_entries, show_entry
from homesplit.view.notebook_kinds import kind_tables
from tests.io.fake_openai import Manners, fake_server
from tests.stages.test_compare import LOAD, context


@pytest.fixture(autouse=True)
def no_lateness_of_this_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computer that has no core for the generator meanwhile is another test's matter."""
    monkeypatch.setattr("homesplit.core.lateness.SENT_LEAST_S", 60.0)


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


async def test_a_rate_that_the_generator_did_not_keep_up_with_is_told_as_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path)
    load = with_load(LOAD, rate_requests_per_s=240.0, ttft_s=30.0, tpot_s=30.0)

    async def run_late(*args: Any, **options: Any) -> BenchResult:
        run = await run_once(*args, **options)
        fast = (run.workload.arrivals.rate_requests_per_s or 0.0) > 200.0
        return replace(run, lag_p99_s=20.0) if fast else run

    monkeypatch.setattr("homesplit.stages.capacity.run_once", run_late)
    monkeypatch.setattr("homesplit.core.capacity.MOST_RATES", 2)
    async with fake_server() as server:
        found = await find_capacity(ctx, Target(url=server.url), load, seconds=0.3, seed=1)
    assert found.capacity_requests_per_s is None and found.low == 120.0
    assert found.generator_limit_requests_per_s == 240.0 and found.trials[0].late_runs == 2
    entry = list_entries(ctx)[0]
    assert entry.sentence.startswith("Capacity at least 120 requests/s (95 % confidence")
    assert "the load generator, not the server, is the limit: at 240 requests/s" in entry.sentence
    table = kind_tables({"kind": "run", "body": entry.body})[0][1]
    assert [row[-1] for row in table[1:]] == [
        "not judged: the load generator was 20 s late (p99)",
        "holds",
    ]


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


async def test_how_long_a_search_takes_is_told_first_and_no_run_is_begun_that_would_end_later(
    tmp_path: Path,
) -> None:
    told: list[Event] = []
    ctx = context(tmp_path, told)
    load = with_load(LOAD, rate_requests_per_s=240.0, ttft_s=30.0, tpot_s=30.0)
    async with fake_server() as server:
        target = Target(url=server.url)
        # At 240 requests a second sixty that count take 0.3125 s: no time is left for two runs.
        found = await find_capacity(ctx, target, load, seconds=0.2, seed=1, within_s=0.4)
    first = next(event.sentence for event in told if isinstance(event, StageStarted))
    assert "the first rate is tried for 0.31 s, higher ones shorter, lower ones longer" in first
    assert "no run is begun that would end after 0.40 s" in first
    assert [trial.runs for trial in found.trials] == [1] and found.over
    stopped = "stopped after 1 rate, the next run would have ended after 0.4 s (--within)."
    assert capacity_sentence(found).replace(f" ({LOOPBACK_LABEL})", "").endswith(stopped)
    assert list_entries(ctx)[0].about.settings["within_s"] == 0.4


@pytest.mark.parametrize(
    ("rate", "seconds", "within_s", "said"),
    [
        # Sixty requests that count, of a run whose first and last tenth don't.
        (0.02, 30.0, 1800.0, "0.02 requests/s, is tried for 62.5 min, so that 60 requests count"),
        (40.0, 90.0, 60.0, "40 requests/s, is tried for 90 s, as asked"),
    ],
)
async def test_a_search_without_time_for_its_first_run_is_refused_with_the_time_it_takes(
    tmp_path: Path, rate: float, seconds: float, within_s: float, said: str
) -> None:
    load = with_load(LOAD, rate_requests_per_s=rate)
    # Nobody listens there: it is told before anybody is asked.
    target = Target(url="http://127.0.0.1:9")
    with pytest.raises(UsageError, match=said) as refused:
        await find_capacity(
            context(tmp_path), target, load, seconds=seconds, seed=1, within_s=within_s
        )
    least = re.search(r"--within (\d+) or more", str(refused.value))
    assert least is not None
    for enough in (float(least[1]), None):
        assert check_search(load, seconds, enough) == rate
    with pytest.raises(UsageError):
        check_search(load, seconds, float(least[1]) - 1.0)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ((1.0,), "Capacity at least 2 requests/s (95 % confidence at each rate tried): stopped"),
        (
            (1.0, 0.0),
            "Capacity at least 2 requests/s (95 % confidence at each rate tried; "
            "4 requests/s was too much or not shown to hold): stopped after 2 rates, ",
        ),
        ((0.0,), "Capacity not found: stopped after 1 rate, the next run would have ended after "),
        ((None,), "Capacity not found: no data, no request was completed at any rate."),
    ],
)
def test_a_search_that_was_stopped_for_its_time_tells_what_it_has_shown(
    share: tuple[float | None, ...], said: str
) -> None:
    trials = [
        Trial(
            rate_requests_per_s=2.0 * (number + 1),
            offered=100,
            inside=int(100 * (each or 0.0)),
            completed=0 if each is None else 100,
        )
        for number, each in enumerate(share)
    ]
    found = capacity_of(trials, None, 60.0)
    assert capacity_sentence(found).startswith(said)
    assert found.over and ("60 s (--within)." in capacity_sentence(found)) == (share != (None,))
