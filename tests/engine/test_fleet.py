"""Which workers are used where they differ, and what it takes for another kind to be served."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

import pytest
from homesplit_engine.config import RouterConfig, WorkerAddress
from homesplit_engine.keys import make_keys
from homesplit_engine.router.fleet import Fleet
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.wire.messages import WIRE_VERSION, Ready

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


def answer(subject: Fleet, box: str, dtype: str) -> None:
    """A worker says who it is."""
    link = subject.links[box]
    link.alive, link.why = True, None
    link.ready = Ready(
        box=box,
        wire_version=WIRE_VERSION,
        fingerprint=f"dtype={dtype}",
        fingerprint_fields={"dtype": dtype},
        model="stub",
        max_context=100,
        block_tokens=16,
        blocks_total=10,
        kv_bytes_per_token=1,
        kv_endpoint=NOWHERE,
        public_key=link.address.public_key,
        device="none",
        dtype=dtype,
        eos_token_ids=(),
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
