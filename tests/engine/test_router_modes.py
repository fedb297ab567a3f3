"""Modes, failures and records of a live router over stub workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import aiohttp
import pytest
from homesplit_engine.records import ModeSetting, RequestRecord
from homesplit_engine.router.board import Board
from homesplit_engine.router.gate import own_id
from homesplit_engine.wire.messages import Reserve, Submit

from homesplit.core.served import Timed, server_side
from tests.engine.router_kit import (
    PATIENCE_S,
    REPLICA,
    SILENCE_S,
    SPLIT,
    Rig,
    rig,
    stub_settings,
    until,
)

PROMPT = "twelve words"


def submits(running: Rig, box: str) -> list[Submit]:
    """What a box was asked for, without the router's own health checks."""
    messages = running.stubs[box].received
    return [m for m in messages if isinstance(m, Submit) and not m.request_id.startswith("health")]


@pytest.mark.parametrize(
    "setting",
    [ModeSetting(), REPLICA, SPLIT, ModeSetting(mode="auto")],
    ids=lambda setting: setting.mode,
)
async def test_every_mode_gives_the_same_text(tmp_path: Path, setting: ModeSetting) -> None:
    async with rig(tmp_path, setting=setting) as running:
        for length in (1, 2, 9):
            assert await running.complete(PROMPT, length) == running.expected(PROMPT, length)


async def test_split_reads_on_one_box_and_writes_on_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sender's account of the hand-off comes when it comes; the record waits for it.
    monkeypatch.setattr("homesplit_engine.router.book.LATE_REPORT_S", PATIENCE_S)
    async with rig(tmp_path, setting=SPLIT) as running:
        assert await running.complete(PROMPT, 5) == running.expected(PROMPT, 5)
        (record,) = await running.records(1)
        assert (record.served, record.prefill_box, record.decode_box) == ("split", "left", "right")
        assert record.handoff_bytes == 12 * 1000
        assert record.handoff_tokens == 12
        assert record.output_tokens == len(record.token_s) == 5
        assert any(isinstance(m, Reserve) for m in running.stubs["right"].received)
        await until(lambda: not any(stub.held for stub in running.stubs.values()))


async def test_replica_takes_the_boxes_in_turn(tmp_path: Path) -> None:
    async with rig(tmp_path, setting=REPLICA) as running:
        await running.get("/health")  # the router's own first question takes a turn too
        for _ in range(4):
            await running.complete(PROMPT, 2)
        records = await running.records(4)
        assert sorted(str(record.decode_box) for record in records) == ["left"] * 2 + ["right"] * 2


async def test_a_switch_of_mode_leaves_the_request_in_flight_as_it_was(tmp_path: Path) -> None:
    async with rig(tmp_path, settings={"left": stub_settings(pause_at=5)}) as running:
        answer = asyncio.create_task(running.complete(PROMPT, 20))
        await until(lambda: running.stubs["left"].paused)
        await running.set_mode(SPLIT)
        running.go_on()
        assert await answer == running.expected(PROMPT, 20)
        assert await running.complete(PROMPT, 3) == running.expected(PROMPT, 3)
        served = [record.served for record in await running.records(2)]
        assert served == ["colocated", "split"]


@pytest.mark.parametrize("victim", ["left", "right"])
@pytest.mark.parametrize("how", ["killed", "asleep"])
@pytest.mark.parametrize("setting", [ModeSetting(), SPLIT], ids=lambda setting: setting.mode)
async def test_an_answer_outlives_the_box_that_writes_it(
    tmp_path: Path, victim: str, how: str, setting: ModeSetting
) -> None:
    paused = {box: stub_settings(pause_at=10) for box in ("left", "right")}
    async with rig(tmp_path, setting=setting, settings=paused, detection_s=SILENCE_S) as running:
        answer = asyncio.create_task(running.complete(PROMPT, 30))
        # A hand-off that had no core for the detection time was given up, and the other box writes.
        await until(lambda: any(stub.paused for stub in running.stubs.values()))
        if how == "killed":
            running.stubs[victim].stop()
        else:
            running.stubs[victim].settings.deaf = True
        running.go_on()
        assert await answer == running.expected(PROMPT, 30)
        (record,) = await running.records(1)
        assert record.output_tokens == 30
        assert record.outcome == "completed"


async def test_a_resumed_answer_says_so_and_why(tmp_path: Path) -> None:
    settings = {"left": stub_settings(mute_after=5), "right": stub_settings()}
    async with rig(tmp_path, settings=settings, detection_s=SILENCE_S) as running:
        assert await running.complete(PROMPT, 10) == running.expected(PROMPT, 10)
        (record,) = await running.records(1)
        assert record.served == "resumed"
        assert record.resubmitted == 1
        assert "left was lost" in record.why
        assert record.decode_box == "right"
        (submit,) = submits(running, "right")
        assert submit.prompt_tokens == 12
        assert len(submit.token_ids) == 12 + 6


@pytest.mark.parametrize("last", range(2, 7))
async def test_a_stop_string_over_the_border_of_a_move_is_cut_off_as_ever(
    tmp_path: Path, last: int
) -> None:
    settings = {"left": stub_settings(mute_after=last), "right": stub_settings()}
    async with rig(tmp_path, settings=settings, detection_s=SILENCE_S) as running:
        whole = running.expected(PROMPT, 12)
        text = await running.complete(PROMPT, 12, stop=whole[4:8])
        assert text == whole[: whole.index(whole[4:8])]
        (record,) = await running.records(1)
        assert (record.resubmitted, record.finish_reason) == (1, "stop")


async def test_each_choice_keeps_its_log_probabilities_over_a_move(tmp_path: Path) -> None:
    settings = {"left": stub_settings(mute_after=3), "right": stub_settings()}
    async with rig(tmp_path, settings=settings, detection_s=SILENCE_S) as running:
        body = {"prompt": PROMPT, "max_tokens": 9, "n": 2, "logprobs": 1, "seed": 3}
        texts, told = ["", ""], [0, 0]
        async for chunk in running.stream("/v1/completions", body):
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
            told[choice["index"]] += len(choice["logprobs"]["token_logprobs"])
        assert texts == [running.expected(PROMPT, 9)] * 2
        assert told == [9, 9]


async def test_a_box_that_wakes_up_is_taken_in_again_and_forgets_what_moved(
    tmp_path: Path,
) -> None:
    settings = {"left": stub_settings(mute_after=5), "right": stub_settings()}
    async with rig(tmp_path, settings=settings, detection_s=SILENCE_S) as running:
        await running.complete(PROMPT, 9)
        left = running.stubs["left"]
        left.settings.mute_after, left.settings.deaf = None, False
        await running.until_usable("left", "right")
        assert await running.complete(PROMPT, 4) == running.expected(PROMPT, 4)
        await until(lambda: left.held == 0 and left.cancelled)


async def test_with_every_box_gone_an_admitted_answer_waits_until_one_is_back(
    tmp_path: Path,
) -> None:
    paused = {"left": stub_settings(pause_at=5)}
    async with rig(tmp_path, boxes=("left",), settings=paused) as running:
        answer = asyncio.create_task(running.complete(PROMPT, 20))
        left = running.stubs["left"]
        await until(lambda: left.paused)
        left.stop()
        await running.until_usable()
        running.go_on()
        left.start()
        assert await answer == running.expected(PROMPT, 20)


async def test_without_any_box_a_new_request_gets_503_and_is_told_when_to_come_back(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, boxes=("left",), detection_s=SILENCE_S) as running:
        running.stubs["left"].stop()
        await running.until_usable()
        body = {"prompt": PROMPT}
        async with running.http.post(running.url + "/v1/completions", json=body) as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) >= 1
        (record,) = await running.records(1)
        assert record.outcome == "rejected"


def _received_s(record: RequestRecord) -> float:
    return record.received_s


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_hand_off_that_does_not_arrive_still_ends_in_the_right_text(
    tmp_path: Path, how: str
) -> None:
    async with rig(tmp_path, setting=SPLIT, detection_s=SILENCE_S) as running:
        await running.complete(PROMPT, 2)  # one good hand-off tells how long it takes
        running.stubs["left"].settings.handoff = how  # type: ignore[assignment]
        assert await running.complete(PROMPT, 9) == running.expected(PROMPT, 9)
        # A record is written when its request has ended, which the first may do later.
        record = max(await running.records(2), key=_received_s)
        assert record.served == "resumed"
        assert "hand-off" in record.why
        await until(lambda: not any(stub.held for stub in running.stubs.values()))


async def test_one_hand_off_in_twenty_that_fails_shows_in_the_share_served_as_asked(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, setting=SPLIT) as running:
        for number in range(20):
            running.stubs["left"].settings.handoff = "fails" if number == 7 else "works"
            assert await running.complete(PROMPT, 3) == running.expected(PROMPT, 3)
        side = server_side(Timed(records=tuple(await running.records(20))), tpot_target_s=None)
    assert side is not None
    assert (side.served, side.served_as_asked) == ({"split": 19, "resumed": 1}, 0.95)


async def test_tokens_said_twice_are_given_once(tmp_path: Path) -> None:
    settings = {"left": stub_settings(tokens_twice=True)}
    async with rig(tmp_path, boxes=("left",), settings=settings) as running:
        assert await running.complete(PROMPT, 12) == running.expected(PROMPT, 12)


@pytest.mark.parametrize("why", ["full", "too_long"])
async def test_a_box_without_room_is_passed_over_for_the_other(
    tmp_path: Path, why: Literal["full", "too_long"]
) -> None:
    async with rig(tmp_path, settings={"left": stub_settings(refuse=why)}) as running:
        assert await running.complete(PROMPT, 4) == running.expected(PROMPT, 4)
        (record,) = await running.records(1)
        assert record.served == "colocated"
        assert record.resubmitted == 0


async def test_with_every_box_full_a_new_request_gets_429(tmp_path: Path) -> None:
    full = {box: stub_settings(refuse="full") for box in ("left", "right")}
    async with rig(tmp_path, settings=full) as running:
        body = {"prompt": PROMPT}
        async with running.http.post(running.url + "/v1/completions", json=body) as answer:
            assert answer.status == 429
            assert answer.headers["Retry-After"] == "2"


async def test_what_no_box_has_memory_for_is_a_400(tmp_path: Path) -> None:
    small = {box: stub_settings(refuse="too_long") for box in ("left", "right")}
    async with rig(tmp_path, settings=small) as running:
        status, answer = await running.post("/v1/completions", {"prompt": PROMPT})
        assert status == 400
        assert answer["error"]["code"] == "context_length_exceeded"
        assert answer["error"]["param"] == "prompt"


async def test_an_answer_of_no_told_length_may_fill_the_box_with_the_least_memory(
    tmp_path: Path,
) -> None:
    """Boxes of 32 and 64 tokens, and prompts on both sides of what leaves too little of the 32."""
    small = {"left": stub_settings(blocks_total=2), "right": stub_settings(blocks_total=4)}
    async with rig(tmp_path, settings=small) as running:
        seen: list[tuple[str, int, int]] = []
        for prompt_tokens in (5, 16, 17, 31, 32, 63):
            messages = [{"role": "user", "content": "a" * (prompt_tokens - 3)}]
            status, _ = await running.post("/v1/chat/completions", {"messages": messages})
            asked = [(box, submit) for box in small for submit in submits(running, box)]
            box, submit = max(asked, key=lambda one: one[1].prompt_tokens)
            seen.append((box, submit.prompt_tokens, submit.sampling.max_tokens))
            assert status == 200 and len(asked) == len(seen)
    assert seen[:2] == [("left", 5, 27), ("left", 16, 16)]
    assert seen[2:] == [("right", 17, 47), ("right", 31, 33), ("right", 32, 32), ("right", 63, 1)]


async def test_what_only_one_box_holds_waits_for_it_when_it_is_lost_and_nobody_else_is_asked(
    tmp_path: Path,
) -> None:
    small = {
        "left": stub_settings(blocks_total=2, refuse="too_long"),
        "right": stub_settings(blocks_total=4, pause_at=5),
    }
    async with rig(tmp_path, settings=small, detection_s=SILENCE_S) as running:
        right = running.stubs["right"]
        asked = asyncio.create_task(running.complete(PROMPT, 40))
        await until(lambda: right.paused)
        await asyncio.to_thread(right.stop)
        await running.until_usable("left")
        # A new one is told to come again, and what nobody holds is refused for good.
        for tokens, refused in ((40, 503), (60, 400)):
            body = {"prompt": PROMPT, "max_tokens": tokens}
            assert (await running.post("/v1/completions", body))[0] == refused
        running.go_on()
        right.start()
        assert await asked == running.expected(PROMPT, 40)
        assert submits(running, "left") == []
        record = max(await running.records(2), key=lambda one: one.output_tokens)
        assert (record.outcome, record.output_tokens) == ("completed", 40)


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    paused = {"left": stub_settings(pause_at=0)}
    async with rig(tmp_path, boxes=("left",), settings=paused, max_waiting=2) as running:
        # The router's own first question takes nobody's place.
        waiting = [asyncio.create_task(running.complete(PROMPT, 2)) for _ in range(2)]

        async def both_wait() -> bool:
            status = await running.get("/homesplit/status")
            return status["requests"]["waiting"] == len(submits(running, "left")) == 2

        await until(both_wait)
        status, answer = await running.post("/v1/completions", {"prompt": PROMPT})
        assert status == 429
        assert answer["error"]["type"] == "rate_limit_error"
        running.go_on()
        assert await asyncio.gather(*waiting) == [running.expected(PROMPT, 2)] * 2


async def test_workers_that_differ_are_never_paired_and_the_field_is_named(
    tmp_path: Path,
) -> None:
    # Deaf until the left one is in use, so that it is the right one that is not.
    other = stub_settings(fingerprint_fields={"dtype": "float16"}, deaf=True)
    async with rig(tmp_path, setting=SPLIT, settings={"right": other}, wait=False) as running:
        await running.until_usable("left")
        other.deaf = False
        await until(lambda: running.stubs["right"].received)

        async def named() -> bool:
            status = await running.get("/homesplit/status")
            return "dtype is float16 here and float32 there" in (status["workers"][1]["why"] or "")

        await until(named)
        assert await running.complete(PROMPT, 3) == running.expected(PROMPT, 3)
        assert not submits(running, "right")


async def test_a_client_that_leaves_frees_the_worker(tmp_path: Path) -> None:
    async with rig(
        tmp_path, setting=SPLIT, settings={"right": stub_settings(pause_at=5)}
    ) as running:
        answer = asyncio.create_task(running.complete(PROMPT, 500))
        await until(lambda: running.stubs["right"].paused)
        answer.cancel()
        await until(lambda: not any(stub.held for stub in running.stubs.values()))
        (record,) = await running.records(1)
        assert record.outcome == "cancelled"


async def test_a_request_is_cancelled_by_its_id(tmp_path: Path) -> None:
    async with rig(tmp_path, settings={"left": stub_settings(pause_at=5)}) as running:
        body = {"prompt": PROMPT, "max_tokens": 500}
        answer = asyncio.create_task(
            running.post("/v1/completions", body, **{"x-request-id": "mine-1"})
        )
        await until(lambda: running.stubs["left"].paused)
        _, told = await running.post("/homesplit/cancel", {"request_id": "mine-1"})
        assert told == {"cancelled": True}
        status, _ = await answer
        assert status == 409
        await until(lambda: not running.stubs["left"].held)


def test_two_requests_at_a_time_never_have_one_id_whatever_their_clients_say() -> None:
    board = Board()
    with own_id("always", board) as first, own_id("always", board) as second:
        assert first == "always" != second
    with own_id("always", board) as later, own_id("health-1", board) as clever:
        assert later == "always" and clever != "health-1"


async def test_who_leaves_and_asks_again_under_the_same_id_gets_the_new_answer(
    tmp_path: Path,
) -> None:
    slow = {box: stub_settings(step_s=0.005) for box in ("left", "right")}
    async with rig(tmp_path, setting=SPLIT, settings=slow) as running:
        name = {"x-request-id": "again"}
        for number in range(4):
            body = {"prompt": f"first {number}", "max_tokens": 50, "stream": True}
            url = running.url + "/v1/completions"
            async with running.http.post(url, json=body, headers=name) as answer:
                await answer.content.readline()
            prompt = f"another prompt {number}"
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
            status, whole = await running.post("/v1/completions", body, **name)
            assert status == 200, whole
            assert whole["choices"][0]["text"] == running.expected(prompt, 8)


async def test_a_numeric_failure_ends_in_a_named_error(tmp_path: Path) -> None:
    async with rig(tmp_path, settings={"left": stub_settings(fail="numeric")}) as running:
        status, answer = await running.post("/v1/completions", {"prompt": PROMPT})
        assert status == 500
        assert answer["error"]["code"] == "numeric"


async def test_a_failed_engine_is_left_for_the_other_box(tmp_path: Path) -> None:
    failing = stub_settings(fail="engine", fail_at=4)
    async with rig(tmp_path, settings={"left": failing}) as running:
        assert await running.complete(PROMPT, 9) == running.expected(PROMPT, 9)


async def test_switching_names_an_unknown_box(tmp_path: Path) -> None:
    async with rig(tmp_path) as running:
        wrong = {"mode": "split", "prefill_box": "middle", "decode_box": "left"}
        status, answer = await running.post("/homesplit/mode", wrong)
        assert status == 400
        assert "middle" in answer["error"]["message"]


def test_the_router_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import json, sys; import homesplit_engine.router.server; "
        "print(json.dumps([m for m in ('torch', 'transformers') if m in sys.modules]))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert json.loads(output) == []


async def test_an_answer_under_way_is_told_when_the_router_is_stopped(tmp_path: Path) -> None:
    settings = {"left": stub_settings(step_s=0.05)}
    async with aiohttp.ClientSession() as outliving:
        async with rig(tmp_path, boxes=("left",), settings=settings) as running:
            body = {"prompt": "ab", "max_tokens": 1000, "stream": True}
            answer = await outliving.post(running.url + "/v1/completions", json=body)
            await answer.content.readline()
        told = [line async for line in answer.content if line.startswith(b"data: {")]
    assert json.loads(told[-1][6:])["error"]["code"] == "router_stopped"
