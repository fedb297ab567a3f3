"""A run in the notebook while it goes on: stopped, broken off or killed, it keeps what was told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from homesplit.core.entry import LOOPBACK_LABEL, Entry
from homesplit.core.events import Event, Progress
from homesplit.core.load import with_load
from homesplit.errors import EngineError, NotebookError
from homesplit.io.notebook import Notebook
from homesplit.stages.bench import Target, bench
from homesplit.stages.capacity import find_capacity
from homesplit.stages.compare import compare
from homesplit.stages.notebook import goes_on, list_entries, show_entry
from homesplit.stages.repeat import repeatable
from tests.engine.router_kit import until
from tests.io.fake_openai import FakeServer, Manners, fake_server
from tests.io.fake_router import fake_router
from tests.stages.test_compare import EVEN, LOAD, context

STEADY = with_load(LOAD, rate_requests_per_s=30.0)


@pytest.fixture(autouse=True)
def told_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homesplit.stages.load_watch.TELL_EVERY_S", 0.1)


async def test_what_is_told_of_a_run_is_in_the_notebook_before(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    told: list[tuple[int, Entry, int]] = []
    stop = asyncio.Event()

    def take(event: Event) -> None:
        if isinstance(event, Progress) and event.step == "load":
            (entry,) = list_entries(ctx)
            raw = show_entry(ctx, entry.id)[1]
            ended = re.search(r": (\d+) request", event.sentence)
            assert ended is not None
            told.append((int(ended.group(1)), entry, len(raw.get("requests", ()))))
            if told[-1][0] >= 3:
                stop.set()

    async with fake_server() as server:
        watched = dataclasses.replace(ctx, emit=take)
        target = Target(url=server.url)
        result = await bench(watched, target, STEADY, seconds=60.0, seed=1, stop=stop)
    assert all(shown == kept for shown, _, kept in told)
    assert all(not entry.ended and goes_on(entry) for _, entry, _ in told)
    assert "against fake, not ended: " in told[-1][1].sentence
    assert ", of 60 s planned" in told[-1][1].sentence and told[-1][1].body["seconds"] == 60.0
    (entry,) = list_entries(ctx)
    assert entry.ended and entry.id == result.entry and entry.body["stopped"]
    assert re.search(
        r"; stopped after [\d.]+ of 60 s, so only a part of the run \(one machine", entry.sentence
    )
    # Rates are over the time in which requests were really offered.
    assert result.summary.window.offered_s < 60.0
    assert result.summary.figures.window_s < 60.0
    assert len(show_entry(ctx, entry.id)[1]["requests"]) == len(result.logs) >= 3


async def test_a_stop_is_heard_while_the_server_is_still_asked_who_it_is(tmp_path: Path) -> None:
    ctx, stop = context(tmp_path), asyncio.Event()
    async with fake_server(Manners(ttft_s=600.0)) as server:
        target = Target(url=server.url)
        run = asyncio.ensure_future(bench(ctx, target, STEADY, seconds=60.0, seed=1, stop=stop))
        await until(lambda: server.seen)
        stop.set()
        with pytest.raises(EngineError, match="nothing was measured"):
            await run
        assert not server.load_requests()
    assert not list_entries(ctx)


async def test_a_run_whose_server_or_whose_program_fails_says_how_it_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path)

    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr("homesplit.stages.bench.run_load", fails)
    async with fake_server() as server:
        with pytest.raises(RuntimeError):
            await bench(ctx, Target(url=server.url), STEADY, seconds=1.0, seed=1)
    (entry,) = list_entries(ctx)
    assert entry.sentence.endswith(
        f"begun, of 1 s planned. Broken off by an error: RuntimeError ({LOOPBACK_LABEL})."
    )


async def test_a_notebook_that_can_not_be_written_to_while_a_run_goes_on_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def take(event: Event) -> None:
        if isinstance(event, Progress) and event.step == "write":
            told.append(event.sentence)

    def full(*_: object, **__: object) -> None:
        raise NotebookError("the disk is full.")

    monkeypatch.setattr(Notebook, "grow", full)
    monkeypatch.setattr(Notebook, "amend", full)
    ctx = dataclasses.replace(context(tmp_path), emit=take)
    async with fake_server() as server:
        result = await bench(ctx, Target(url=server.url), STEADY, seconds=1.0, seed=1)
    assert result.entry is None and result.summary.figures.completed > 0
    assert told == [
        "This run is not in the notebook as it goes: the disk is full.",
        "This run is not in the notebook: the disk is full.",
    ]


@contextlib.asynccontextmanager
async def begun(
    tmp_path: Path, server: FakeServer
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, int], None]:
    """`homesplit bench` of a minute, once it has told of requests; and of how many it told.

    It has ended when the block does, however that comes.
    """
    words = ("--prompt-tokens", "8", "--output-tokens", "2", "--rate", "20", "--seconds", "60")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "homesplit", "bench", "--url", server.url, "--json", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "HOMESPLIT_HOME": str(tmp_path)},
    )
    try:
        yield process, await _told(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _told(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async for line in process.stderr:
        found = re.search(rb"(\d+) requests? ended", line)
        if found:
            return int(found.group(1))
    raise AssertionError(f"it ended with {await process.wait()}")


def kept(tmp_path: Path) -> tuple[Entry, dict[str, tuple[Any, ...]]]:
    (path,) = tmp_path.rglob("notebook.sqlite")
    notebook = Notebook(path)
    (entry,) = notebook.entries()
    return entry, notebook.raw(entry.id)


async def test_a_run_that_is_killed_is_in_the_notebook_with_the_requests_it_told_of(
    tmp_path: Path,
) -> None:
    async with fake_server() as server, begun(tmp_path, server) as (process, told):
        process.kill()
        await process.wait()
    entry, raw = kept(tmp_path)
    assert not entry.ended and not goes_on(entry)
    count = len(raw.get("requests", ()))
    assert count >= told and f" {count} request" in entry.sentence
    assert ", not ended: " in entry.sentence and repeatable(entry, raw) == (count > 0)


async def test_ctrl_c_stops_a_run_and_tells_what_was_measured(tmp_path: Path) -> None:
    async with fake_server() as server, begun(tmp_path, server) as (process, told):
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    document = json.loads(out)
    assert process.returncode == 1 and document["stopped"] and document["seconds"] == 60.0
    assert "Stopping: nothing more is sent" in err.decode()
    entry, raw = kept(tmp_path)
    assert entry.ended and "so only a part of the run" in entry.sentence
    assert len(raw["requests"]) >= told


async def test_ctrl_c_again_breaks_a_run_off_and_keeps_what_was_told(tmp_path: Path) -> None:
    # The answers on their way never come, so that it would wait for them.
    async with fake_server() as server, begun(tmp_path, server) as (process, told):
        server.manners = Manners(ttft_s=600.0)
        first = len(server.seen)
        await until(lambda: len(server.seen) > first)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        async for line in process.stderr:
            if line.startswith(b"Stopping"):
                break
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 1 and "homesplit: stopped" in err.decode()
    entry, raw = kept(tmp_path)
    assert not entry.ended and entry.sentence.endswith(
        f"Broken off by its user ({LOOPBACK_LABEL})."
    )
    assert len(raw.get("requests", ())) >= told


@pytest.mark.parametrize("what", ["comparison", "search"])
async def test_a_comparison_and_a_search_are_in_the_notebook_from_their_first_run_on(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.stages.load_watch.FIRST_EVENT_S", 0.02)
    ctx = context(tmp_path)
    kept: list[tuple[Entry, dict[str, tuple[Any, ...]]]] = []

    def take(event: Event) -> None:
        if isinstance(event, Progress) and event.step == "load":
            (entry,) = list_entries(ctx)
            kept.append((entry, show_entry(ctx, entry.id)[1]))
            if not event.sentence.endswith(": 0 requests ended"):
                task.cancel()

    watched = dataclasses.replace(ctx, emit=take)
    async with fake_router(EVEN) as router:
        target = Target(url=router.url)
        work = (
            compare(watched, target, ["colocated:whole", "split"], STEADY, seconds=60.0)
            if what == "comparison"
            else find_capacity(watched, target, STEADY, seconds=60.0, seed=1)
        )
        task = asyncio.ensure_future(work)
        with pytest.raises(asyncio.CancelledError):
            await task
    entry, raw = kept[-1]
    (name,) = raw
    assert len(raw[name]) > 0 and goes_on(entry) and not entry.ended
    assert name == ("colocated:whole round 1" if what == "comparison" else "30 requests/s, run 1")
    assert name in entry.sentence and "not ended" in entry.sentence
    (after,) = list_entries(ctx)
    assert (
        after.sentence.endswith(f" Broken off by its user ({LOOPBACK_LABEL}).") and not after.ended
    )
    assert name in after.sentence and "not ended" in after.sentence
    assert repeatable(after, raw) == (what == "search")
