"""A box that dies or stands still during a hand-off: named, in bounded time, all freed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from homesplit_engine.keys import make_keys
from homesplit_engine.wire.messages import (
    Committed,
    Failed,
    HandoffReport,
    HandoffSecret,
    HandoffTarget,
    Ping,
    Pong,
    Ready,
    StepReport,
    Stop,
)
from homesplit_engine.wire.seal import new_seal_key
from homesplit_engine.wire.sockets import KV_DOMAIN, Gatekeeper, bind, kv_listening_socket

from tests.engine.client import ANSWER_S, END_S, Pair, WorkerProcess, submit
from tests.engine.tiny import generate, make_model, prompt_of

HALF_READ, BEGUN = 1500, 100
"""Tokens of a prompt that is read one by one: nobody is killed so late that its end has come, nor
before the first of them are on their way."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_model(folder, num_hidden_layers=8, max_position_embeddings=2 * HALF_READ)


@pytest.fixture
def pair(tmp_path: Path, model: Path) -> Iterator[Pair]:
    both = Pair(tmp_path, model, kv_blocks=HALF_READ // 4)
    yield both
    both.stop()


def test_a_prefill_box_killed_half_way_is_named_and_everything_is_freed(pair: Pair) -> None:
    pair.split("half", prompt_of(HALF_READ, 1), 1)
    pair.a.wait(StepReport, lambda m: m.event.prefill[0].start >= BEGUN)
    pair.a.process.kill()
    failed = pair.b.wait(Failed, lambda m: m.request_id == "half")
    assert failed.kind == "handoff" and "connection to A was lost" in failed.what
    pair.b.wait_until_free()


def test_a_prefill_box_killed_before_its_first_frame_holds_nothing_past_the_deadline(
    pair: Pair,
) -> None:
    os.kill(pair.a.process.pid, signal.SIGSTOP)
    pair.split("early", prompt_of(60, 2), 1, deadline_s=2.0)
    pair.a.process.kill()
    failed = pair.b.wait(Failed, lambda m: m.request_id == "early")
    assert failed.kind == "deadline"
    pair.b.wait_until_free()


def test_a_prefill_box_killed_after_the_commit_does_not_matter(pair: Pair, model: Path) -> None:
    prompt = prompt_of(60, 3)
    pair.split("late", prompt, 12, max_tokens=30)
    pair.b.wait(Committed)
    pair.a.process.kill()
    pair.a.drain()
    rest = pair.b.finish("late")
    assert rest == generate(model, prompt, 30)[1 : 1 + len(rest)] and len(rest) >= 1
    pair.b.wait_until_free()


def test_a_decode_box_killed_half_way_is_named_and_the_prefill_box_goes_on(
    pair: Pair, model: Path
) -> None:
    pair.split("lost", prompt_of(HALF_READ, 4), 1)
    pair.a.wait(StepReport, lambda m: m.event.prefill[0].start >= BEGUN)
    pair.b.process.kill()
    report = pair.a.handoff_report("lost")
    assert not report.event.committed
    assert report.why is not None and report.why.startswith("B at tcp://")
    assert "connection was lost" in report.why
    pair.a.send(submit("own", prompt_of(30, 5)))
    assert pair.a.finish("own") == generate(model, prompt_of(30, 5), 6)
    pair.a.wait_until_free()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[WorkerProcess]:
    """A prefill box; the tests are its router and its decode box."""
    keys = make_keys(["A", "B"])
    folder = tmp_path_factory.mktemp("reader")
    worker = WorkerProcess(folder, keys["A"], keys["router"], model)
    worker.connect()
    yield worker
    worker.stop()


def _takes(messages: int, listening: zmq.Socket[Any]) -> None:
    """Take so many messages of a hand-off."""
    for number in range(messages):
        assert listening.poll(int(1000 * ANSWER_S)), f"message {number} did not come"
        listening.recv_multipart()


@pytest.mark.parametrize(
    "taken", [0, 1, 4, 7], ids=["before anything", "after the opening", "half-way", "after the end"]
)
def test_a_decode_box_that_dies_in_any_state_is_named_and_the_prefill_box_goes_on(
    reader: WorkerProcess, model: Path, taken: int
) -> None:
    context: zmq.Context[Any] = zmq.Context()
    gate = Gatekeeper(context, {}, {KV_DOMAIN: "sesame"})
    listening = kv_listening_socket(context, max_bytes=2**20, hwm=100)
    endpoint = bind(listening, "127.0.0.1", 0)
    if taken == 0:
        listening.close(linger=0)
    assert reader.ready is not None
    target = HandoffTarget(
        reservation_id=f"v{taken}",
        box="B",
        endpoint=endpoint,
        secret=HandoffSecret(password="sesame", seal_key=new_seal_key()),
        fingerprint=reader.ready.fingerprint,
        cached_tokens=0,
    )
    # Five pieces of twelve tokens: an opening, five frames and the end.
    name = f"dies after {taken}"
    reader.send(submit(name, prompt_of(60, 60 + taken), chunk_tokens=12, handoff=target))
    _takes(taken, listening)
    gate.stop()
    context.destroy(linger=0)
    report = reader.wait(HandoffReport, lambda m: m.event.request_id == name)
    assert not report.event.committed
    assert report.why is not None and report.why.startswith("B at tcp://")
    own = f"own after {taken}"
    reader.send(submit(own, prompt_of(30, 5)))
    assert reader.finish(own) == generate(model, prompt_of(30, 5), 6)
    reader.wait_until_free()


TRIES = 6
"""On a slow computer a hand-off may take as long as it takes to give up a peer."""


def test_a_peer_that_stands_still_is_given_up_and_holds_up_nobody_else(
    tmp_path: Path, model: Path
) -> None:
    keys = make_keys(["A", "B", "still"])
    a = WorkerProcess(tmp_path, keys["A"], keys["router"], model, kv_blocks=64)
    b = WorkerProcess(tmp_path, keys["B"], keys["router"], model, kv_blocks=64)
    # The system takes connections here and nobody speaks: ZeroMQ keeps the frames and tries on.
    still = socket.create_server(("127.0.0.1", 0))
    try:
        endpoint = f"tcp://127.0.0.1:{still.getsockname()[1]}"
        a.connect()
        ready: Ready = b.connect()
        pair = object.__new__(Pair)
        pair.a, pair.b = a, b
        target = HandoffTarget(
            reservation_id="none",
            box="still",
            endpoint=endpoint,
            secret=HandoffSecret(password="none", seal_key=new_seal_key()),
            fingerprint=ready.fingerprint,
            cached_tokens=0,
        )
        told: list[str] = []
        for number in range(TRIES):
            stuck, quick = f"stuck {number}", f"quick {number}"
            a.send(submit(stuck, prompt_of(120, 6), chunk_tokens=1, handoff=target))
            pair.split(quick, prompt_of(40, 7 + number), 12)
            assert len(b.finish(quick)) == 5
            report = a.handoff_report(stuck)
            assert not report.event.committed and report.why is not None and "still" in report.why
            assert a.handoff_report(quick).event.committed
            a.wait_until_free()
            told = [m.event.request_id for m in a.heard if isinstance(m, HandoffReport)]
            if told[-2:] == [quick, stuck]:
                break
        else:
            raise AssertionError(f"each time the still peer was given up first: {told}")
    finally:
        still.close()
        a.stop()
        b.stop()


def test_a_ping_is_answered_while_a_step_computes_and_a_stop_is_heard(tmp_path: Path) -> None:
    folder = make_model(
        tmp_path / "slow",
        num_hidden_layers=12,
        hidden_size=128,
        intermediate_size=512,
        max_position_embeddings=4096,
    )
    keys = make_keys(["A"])
    worker = WorkerProcess(tmp_path, keys["A"], keys["router"], folder, kv_blocks=512)
    try:
        worker.connect()
        worker.send(submit("long", prompt_of(4000), chunk_tokens=None, max_tokens=2))
        for number in range(5):
            worker.send(Ping(ping_id=number))
        pong = worker.wait(Pong, lambda m: m.ping_id == 4)
        steps = [m for m in worker.heard if isinstance(m, StepReport)]
        assert steps == [] and pong.status.running + pong.status.waiting == 1
        # Told to end it gives the step up at its next layer.
        worker.send(Stop())
        assert worker.process.wait(timeout=END_S) == 0
    finally:
        worker.stop()


def test_a_worker_ends_with_the_process_it_belongs_to(tmp_path: Path, model: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    keys = make_keys(["A"])
    worker = WorkerProcess(tmp_path, keys["A"], keys["router"], model, parent_pid=parent.pid)
    try:
        worker.connect()
        parent.kill()  # and nobody asks after it, as in a container without an init
        assert worker.process.wait(timeout=END_S) == 0
    finally:
        worker.stop()
        parent.wait()
        if parent.stdin is not None:
            parent.stdin.close()
