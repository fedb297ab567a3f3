"""A split's prompt is read at once, while the decode box is asked to keep room for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.router.rooms import Rooms
from homesplit_engine.wire.messages import Reserve, SendTo, Submit

from tests.engine.router_kit import PATIENCE_S, SILENCE_S, SPLIT, Rig, rig, stub_settings, until

PROMPT = "twelve words"
ANSWER = 6


@contextlib.asynccontextmanager
async def silent(tmp_path: Path, **more: Any) -> AsyncGenerator[Rig]:
    """The decode box says nothing yet when it is asked for room."""
    right = stub_settings(reserves=False)
    async with rig(tmp_path, setting=SPLIT, settings={"right": right}, **more) as running:
        await running.get("/health")  # the router's own first question asks for room, too
        yield running


class Asked:
    """One answer as its client sees it, and the names under which the boxes know it."""

    def __init__(self, running: Rig) -> None:
        self._running = running
        self.text = ""
        self.first = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> str:
        body = {"prompt": PROMPT, "max_tokens": ANSWER, "temperature": 0}
        async for event in self._running.stream("/v1/completions", body):
            self.text += event["choices"][0]["text"]
            self.first.set()
        return self.text

    async def whole(self) -> None:
        """It comes to its end, with no token twice and none lost."""
        assert await self.task == self._running.expected(PROMPT, ANSWER)


async def nothing_held(running: Rig) -> None:
    await until(lambda: not any(stub.held for stub in running.stubs.values()))


def told(running: Rig, box: str, kind: type[Any]) -> list[Any]:
    """What a box was told for clients."""
    messages = running.stubs[box].received
    return [m for m in messages if isinstance(m, kind) and not m.request_id.startswith("health")]


async def test_the_first_token_comes_before_the_decode_box_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit_engine.router.book.LATE_REPORT_S", PATIENCE_S)
    async with silent(tmp_path) as running:
        asked = Asked(running)
        await asked.first.wait()
        (submit,) = told(running, "left", Submit)
        assert submit.handoff_follows and submit.handoff is None
        assert not told(running, "left", SendTo)
        running.stubs["right"].settings.reserves = True
        await asked.whole()
        (target,) = told(running, "left", SendTo)
        assert target.request_id == submit.request_id and target.target.box == "right"
        (record,) = await running.records(1)
        assert (record.served, record.resubmitted) == ("split", 0)
        assert record.handoff_exposed_s is not None and record.handoff_tokens == len(PROMPT)
        # What the ledger tells of the first token is on its way to it, whenever room was kept.
        parts = (record.tokenise_s, record.queue_s, record.prefill_s)
        assert sum(part or 0.0 for part in parts) <= record.token_s[0] - record.received_s
        await nothing_held(running)


async def test_a_refusal_after_the_first_token_has_the_prefill_box_write_too(
    tmp_path: Path,
) -> None:
    async with silent(tmp_path) as running:
        asked = Asked(running)
        await asked.first.wait()
        running.stubs["right"].settings.refuse = "full"
        running.stubs["right"].settings.reserves = True
        await asked.whole()
        (record,) = await running.records(1)
        assert (record.served, record.outcome, record.resubmitted) == ("colocated", "completed", 0)
        await nothing_held(running)


async def test_a_refusal_before_the_first_token_has_the_prefill_box_write_too(
    tmp_path: Path,
) -> None:
    slow = {
        "left": stub_settings(prefill_tokens_per_s=60.0),
        "right": stub_settings(refuse="full"),
    }
    async with rig(tmp_path, setting=SPLIT, settings=slow) as running:
        await Asked(running).whole()
        first, second = told(running, "left", Submit)
        assert first.handoff_follows and not second.handoff_follows
        assert first.request_id in running.stubs["left"].cancelled
        await nothing_held(running)


async def test_of_a_box_known_to_be_full_the_answer_is_waited_for_until_it_keeps_room_again(
    tmp_path: Path,
) -> None:
    async with silent(tmp_path) as running:
        right = running.stubs["right"].settings
        right.refuse, right.reserves = "full", True
        await Asked(running).whole()
        right.refuse, right.reserves = None, False
        before = len(told(running, "left", Submit))
        asked = Asked(running)
        await until(lambda: len(told(running, "right", Reserve)) == 2)
        await running.get("/homesplit/status")
        assert len(told(running, "left", Submit)) == before
        right.reserves = True
        await asked.whole()
        await Asked(running).whole()
        kinds = [one.handoff_follows for one in told(running, "left", Submit)]
        assert kinds == [True, False, False, True]  # refused, alone, room first, at once
        await nothing_held(running)


async def test_no_more_is_read_ahead_than_the_decode_box_had_room_for(tmp_path: Path) -> None:
    """Its two free blocks hold 32 tokens: two prompts of 12, which nobody has kept room for yet."""
    settings = {"right": stub_settings(blocks_total=2, reserves=False)}
    async with rig(tmp_path, setting=SPLIT, settings=settings) as running:
        await running.get("/health")  # the router's own first question asks for room, too
        all_of_them = [Asked(running) for _ in range(3)]
        await until(lambda: len(told(running, "right", Reserve)) == 3)
        for asked in all_of_them[:2]:
            await asked.first.wait()
        assert len(told(running, "left", Submit)) == 2
        running.stubs["right"].settings.reserves = True
        for asked in all_of_them:
            await asked.whole()
        kinds = [one.handoff_follows for one in told(running, "left", Submit)]
        assert kinds == [True, True, False]
        await nothing_held(running)


@pytest.mark.parametrize("how", ["killed", "never answers"])
async def test_a_decode_box_that_is_lost_before_it_keeps_room_costs_no_token(
    tmp_path: Path, how: str
) -> None:
    detection_s = 10.0 if how == "killed" else SILENCE_S
    async with silent(tmp_path, detection_s=detection_s) as running:
        asked = Asked(running)
        await asked.first.wait()
        if how == "killed":
            await asyncio.to_thread(running.stubs["right"].stop)
        await asked.whole()
        (record,) = await running.records(1)
        assert (record.served, record.resubmitted) == ("resumed", 1)
        assert ("was lost" if how == "killed" else "did not answer") in record.why
        await until(lambda: not running.stubs["left"].held)


@pytest.mark.parametrize("before", ["the first token", "room is kept"])
async def test_a_client_that_leaves_before_room_is_kept_frees_both_boxes(
    tmp_path: Path, before: str
) -> None:
    async with silent(tmp_path) as running:
        left, right = running.stubs["left"], running.stubs["right"]
        if before == "the first token":
            left.settings.pause_at = 0
        asked = Asked(running)
        await until(lambda: told(running, "right", Reserve))
        await (until(lambda: left.paused) if left.settings.pause_at == 0 else asked.first.wait())
        asked.task.cancel()
        (record,) = await running.records(1)
        assert record.outcome == "cancelled"
        right.settings.reserves = True
        running.go_on()
        await nothing_held(running)
        assert not told(running, "left", SendTo)


async def test_an_answer_of_its_first_token_alone_wants_no_room(tmp_path: Path) -> None:
    async with silent(tmp_path) as running:
        whole = running.expected(PROMPT, 1)
        assert await running.complete(PROMPT, ANSWER, stop=whole) == ""
        running.stubs["right"].settings.reserves = True
        await nothing_held(running)


@pytest.mark.parametrize(
    ("full", "wanted", "free", "has"),
    [
        (None, 10, None, True),
        (None, 10, 10, True),
        (None, 11, 10, False),
        ([True], 1, 10, False),
        ([True, False], 1, 10, True),
        ([False, True], 1, None, False),
    ],
)
def test_nothing_is_read_ahead_for_a_box_that_is_known_to_be_full(
    full: list[bool] | None, wanted: int, free: int | None, has: bool
) -> None:
    rooms = Rooms()
    for answer in full or ():
        rooms.answered("b", full=answer)
    assert rooms.probably_has("b", wanted, free) is has
    assert rooms.probably_has("c", 10, 10)
    rooms.forget("b")
    assert rooms.probably_has("b", 10, 10)
