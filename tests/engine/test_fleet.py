"""Which workers are used where they differ, and what it takes for another kind to be served."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence

import pytest
from homesplit_engine.config import RouterConfig, WorkerAddress
from homesplit_engine.events import FaultSeen
from homesplit_engine.keys import make_keys
from homesplit_engine.policy import Decision
from homesplit_engine.records import KvWire, ModeSetting
from homesplit_engine.router.attempt import Attempt
from homesplit_engine.router.fleet import ROUTER_ENDED, Fleet, Held
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.handover import Way
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.router.status_page import snapshot, status_of
from homesplit_engine.wire.messages import WIRE_VERSION, Ready, SamplingParams

from tests.engine.test_flight import order

BOXES = ("left", "right")
NOWHERE = "tcp://127.0.0.1:9"
AGES_S = 1e6


@contextlib.asynccontextmanager
async def fleet(detection_s: float = AGES_S) -> AsyncGenerator[Fleet]:
    """A router's fleet whose workers answer only when the test says so."""
    keys = make_keys(BOXES)
    workers = tuple(
        WorkerAddress(
            box=box, control_endpoint=NOWHERE, kv_endpoint=NOWHERE, public_key=keys[box].public
        )
        for box in BOXES
    )
    config = RouterConfig(
        model_dir="",
        model_name="tiny",
        keys_file="",
        ready_file="",
        workers=workers,
        detection_s=detection_s,
    )
    made = Fleet(config, keys["router"], Metrics("tiny", None, None))
    try:
        yield made
    finally:
        await made.close()


def answer(subject: Fleet, box: str, dtype: str, *, blocks_total: int = 10) -> None:
    """A worker says who it is."""
    link = subject.links[box]
    link.alive, link.why = True, None
    link.ready = Ready(
        box=box,
        wire_version=WIRE_VERSION,
        fingerprint=f"dtype={dtype}",
        fingerprint_fields={"dtype": dtype},
        model="stub",
        max_context=200,
        block_tokens=16,
        blocks_total=blocks_total,
        kv_bytes_per_token=1,
        kv_endpoint=NOWHERE,
        public_key=link.address.public_key,
        device="none",
        dtype=dtype,
        eos_token_ids=(),
        kv_wire_bytes_per_token={"same": 384, "fp16": 192, "int8": 144},
    )
    subject.on_ready(link)


def lose(subject: Fleet, box: str) -> None:
    """A worker no longer answers."""
    subject.links[box].alive = False
    subject.on_lost(subject.links[box], "killed")


def used(subject: Fleet) -> list[str]:
    return [link.box for link in subject.usable()]


KINDS = {"left": "float32", "right": "float16"}


@pytest.mark.parametrize("first_to_answer", [BOXES, BOXES[::-1]], ids=["left", "right"])
async def test_of_workers_that_differ_the_settings_first_is_used_whoever_answers_first(
    first_to_answer: Sequence[str],
) -> None:
    async with fleet() as subject:
        for box in first_to_answer:
            answer(subject, box, KINDS[box])
        assert used(subject) == ["left"]
        why = subject.why_not(subject.links["right"])
        assert why == "never paired with left: dtype is float16 here and float32 there"


async def test_once_a_client_was_served_what_is_served_stays() -> None:
    async with fleet() as subject:
        answer(subject, "right", "float16")
        assert subject.place(Flight(subject, order())) is not None
        answer(subject, "left", "float32")
        assert used(subject) == ["right"]


async def test_the_routers_own_question_settles_nothing() -> None:
    async with fleet() as subject:
        answer(subject, "right", "float16")
        assert subject.place(Flight(subject, order(internal=True))) is not None
        answer(subject, "left", "float32")
        assert used(subject) == ["left"]


async def test_who_answers_after_the_detection_time_changes_nothing() -> None:
    async with fleet(detection_s=1e-9) as subject:
        answer(subject, "right", "float16")
        answer(subject, "left", "float32")
        assert used(subject) == ["right"]


async def test_when_all_that_were_used_are_lost_the_others_serve() -> None:
    async with fleet(detection_s=1e-9) as subject:
        answer(subject, "left", "float32")
        answer(subject, "right", "float16")
        lose(subject, "left")
        assert used(subject) == ["right"]
        answer(subject, "left", "float32")
        assert used(subject) == ["right"]


async def test_a_request_goes_only_where_all_of_it_is_held() -> None:
    """Boxes of 32 and 160 tokens, and prompts of 3."""
    async with fleet() as subject:
        answer(subject, "left", "float32", blocks_total=2)
        answer(subject, "right", "float32")
        short, long = (
            Flight(subject, order(sampling=SamplingParams(max_tokens=tokens)))
            for tokens in (29, 30)
        )
        boxes = [(one.prefill_box if one else None) for one in map(subject.place, (short, long))]
        assert boxes == ["left", "right"]
        assert [subject.boxes_for(flight) for flight in (short, long)] == [2, 1]
        again = subject.place_again(long, "it was lost", "right")
        assert again is not None and again.prefill_box == "right"
        assert subject.held() == Held(least=32, now=160, most=160)
        lose(subject, "right")
        assert subject.place_again(long, "it was lost", None) is None
        assert subject.held() == Held(least=32, now=32, most=160)
        lose(subject, "left")
        assert subject.held() is None


def reads(subject: Fleet, box: str, name: str, tokens: int) -> Flight:
    """A request whose prompt waits to be read there."""
    flight = Flight(subject, order(request_id=name, token_ids=[1] * tokens))
    decision = Decision(
        kind="colocated",
        prefill_box=box,
        decode_box=box,
        prefill="whole",
        chunk_tokens=None,
        why="",
    )
    flight.attempt = Attempt(name, decision, 0, tokens)
    subject.board.add(flight)
    return flight


@pytest.mark.parametrize(("wire", "whole_bytes"), [("same", 38_400), ("fp16", 19_200)])
async def test_a_hand_offs_way_is_that_between_its_two_boxes(
    wire: KvWire, whole_bytes: int
) -> None:
    decision = Decision(
        kind="split",
        prefill_box="left",
        decode_box="right",
        prefill="whole",
        chunk_tokens=None,
        why="",
    )
    async with fleet() as subject:
        asked = order(token_ids=[1] * 100, setting=ModeSetting(kv_wire=wire))
        flight = Flight(subject, asked)
        unknown = subject.way(flight, decision)
        assert unknown == Way(whole_bytes=None, link_bytes_per_s=None, read_s=None)
        for box in BOXES:
            answer(subject, box, "fp32")
        subject.rates.link_can_bytes_per_s |= {("left", "right"): 1e3, ("right", "left"): 7.0}
        subject.rates.prefill_tokens_per_s["left"] = 50.0
        known = Way(whole_bytes=whole_bytes, link_bytes_per_s=1e3, read_s=2.0)
        assert subject.way(flight, decision) == known
        # It would go on where fewer are, behind the prompts that wait there.
        subject.rates.prefill_tokens_per_s["right"] = 10.0
        left = reads(subject, "left", "first", 50)
        assert subject.way(flight, decision).read_s == 10.0
        reads(subject, "right", "second", 30)
        subject.board.remove(left)
        assert subject.way(flight, decision).read_s == 2.0
        reads(subject, "left", "third", 50)
        assert subject.way(flight, decision).read_s == 3.0


async def test_what_lasts_is_told_until_it_is_over_and_an_end_of_the_router_for_a_while() -> None:
    async with fleet() as subject:
        subject.stand("left", "disk_full", "left: its disk is full")
        subject.stand(None, ROUTER_ENDED, "the router was ended")
        now_s = time.monotonic()

        def told(after_s: float) -> list[str]:
            return [fault.kind for fault in subject.lasting(now_s + after_s)]

        assert told(1.0) == ["disk_full", ROUTER_ENDED]
        assert told(600.0) == ["disk_full"]
        assert [fault.kind for fault in status_of(subject).faults] == told(0.0)
        first = [event.fault.kind for event in snapshot(subject) if isinstance(event, FaultSeen)]
        assert first == told(0.0)
        subject.stand_down("left", "disk_full")
        assert told(600.0) == []
