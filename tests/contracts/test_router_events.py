"""What a router tells is what the desk reads: the same tags, the same fields, a live stream."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from homesplit_engine.events import EngineEvent, WorkerBack
from homesplit_engine.router import feed

from homesplit.core import events
from homesplit.errors import EngineError
from homesplit.io.engine_client import EngineClient
from homesplit.stages.context import Context
from homesplit.stages.serve import follow, read_status, set_mode
from tests.engine.router_kit import SPLIT, rig, until


def test_every_event_of_the_router_is_an_event_of_the_desk() -> None:
    assert set(get_args(EngineEvent)) <= set(get_args(events.Event))


async def test_following_a_router_tells_steps_transfers_records_and_switches(
    tmp_path: Path,
) -> None:
    seen: list[events.Event] = []
    async with rig(tmp_path) as running:
        task = asyncio.create_task(follow(Context(emit=seen.append), running.url, None))
        await until(lambda: any(isinstance(e, events.StatusSeen) for e in seen))
        await set_mode(Context(), running.url, None, SPLIT)
        await running.complete("ab", 4)
        await until(lambda: any(isinstance(e, events.TransferSeen) for e in seen))
        running.stubs["left"].stop()
        kinds = {"StepSeen", "TransferSeen", "RequestDone", "WorkerBack", "WorkerLost"}
        kinds |= {"ModeSwitched", "FaultSeen", "StatusSeen"}
        await until(lambda: kinds <= {type(event).__name__ for event in seen})
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    records = [e.record for e in seen if isinstance(e, events.RequestDone)]
    assert [record.served for record in records] == ["split"]


async def test_the_status_says_who_serves_and_how(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        status = await read_status(running.url, None)
        assert status.model_name == "tiny"
        assert [worker.box for worker in status.workers if worker.usable] == ["left", "right"]
        async with EngineClient(running.url) as client:
            await running.complete("ab", 2)
            await running.records(1)
            records, following = await client.records()
            assert len(records) == following == 1
            assert await client.records(following) == ((), 1)
            assert (await client.health()).status == "ok"


async def test_a_router_that_is_not_there_is_an_error_with_the_next_step() -> None:
    with pytest.raises(EngineError, match="homesplit up"):
        await read_status("http://127.0.0.1:9", None)


async def test_a_reader_that_is_too_slow_loses_the_oldest_and_is_told() -> None:
    told = feed.Feed()
    watcher = told.watch([])
    assert watcher is not None
    for second in range(feed.QUEUED_LINES + 5):
        told.tell(WorkerBack(box="left", at_s=float(second)))
    lines = (await watcher.take(1.0)).splitlines()
    assert b"5 oldest events" in lines[0]
    assert msgspec.json.decode(lines[1])["at_s"] == 5.0
