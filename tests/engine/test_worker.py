"""Real worker processes over loopback: text, hand-off, refusals, cancelling, ending."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.keys import make_keys
from homesplit_engine.wire.messages import (
    Cancel,
    Committed,
    Failed,
    PrefillDone,
    Refused,
    SendTo,
    StepReport,
    Stop,
)
from msgspec.structs import replace

from tests.engine.client import END_S, Pair, WorkerProcess, submit
from tests.engine.tiny import CONTEXT, generate, make_model, prompt_of

CHUNK = 12
BLOCK = 8
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 45)
_numbers = itertools.count()


def name() -> str:
    return f"request-{next(_numbers)}"


def _reads(request_id: str) -> Callable[[StepReport], bool]:
    return lambda report: any(part.request_id == request_id for part in report.event.prefill)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    @cache
    def answer(length: int, seed: int = 0) -> list[int]:
        return generate(model, prompt_of(length, seed), 6)

    return answer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("pair"), model)
    yield both
    both.stop()


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
def test_one_worker_writes_what_generate_writes(pair: Pair, reference: Any, chunk: Any) -> None:
    ids = {name(): length for length in LENGTHS}
    for request_id, length in ids.items():
        pair.a.send(submit(request_id, prompt_of(length, 1), chunk_tokens=chunk))
    for request_id, length in ids.items():
        assert pair.a.finish(request_id) == reference(length, 1)
    pair.a.wait_until_free()


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_split_request_has_the_same_text(
    pair: Pair, reference: Any, chunk: Any, length: int
) -> None:
    request_id = name()
    seed = 2 if chunk is None else 3
    pair.split(request_id, prompt_of(length, seed), chunk)
    text = pair.text(request_id)
    assert text == reference(length, seed)
    assert [token.index for token in pair.b.tokens(request_id)] == list(range(1, len(text)))
    report = pair.a.handoff_report(request_id)
    assert report.event.committed and report.why is None
    assert pair.a.ready is not None
    assert report.event.bytes == report.event.tokens * pair.a.ready.kv_bytes_per_token
    committed = [m for m in pair.b.heard if isinstance(m, Committed) and m.request_id == request_id]
    assert [(m.bytes, m.tokens) for m in committed] == [(report.event.bytes, report.event.tokens)]
    pair.a.wait_until_free()
    pair.b.wait_until_free()


@pytest.mark.parametrize("when", ["at once", "while it is read", "when it is read", "twice"])
def test_a_prompt_may_be_read_before_it_is_known_where_it_goes(
    pair: Pair, reference: Any, when: str
) -> None:
    request_id, prompt = name(), prompt_of(45, 12)
    pair.a.send(submit(request_id, prompt, chunk_tokens=4, handoff_follows=True))
    if when == "while it is read":
        pair.a.wait(StepReport, _reads(request_id))
    elif when == "when it is read":
        pair.a.first_token(request_id)
    target = pair.target(pair.reserve(request_id, prompt))
    for _ in range(2 if when == "twice" else 1):
        pair.a.send(SendTo(request_id=request_id, target=target))
    assert pair.text(request_id) == reference(45, 12)
    event = pair.a.handoff_report(request_id).event
    assert event.committed and event.tokens == 45 - target.cached_tokens
    if when == "when it is read":
        assert event.exposed_s >= event.end_s - event.start_s
    pair.a.wait_until_free()
    pair.b.wait_until_free()


@pytest.mark.parametrize("moment", ["before", "reading", "read"])
@pytest.mark.parametrize("end", ["cancelled", "its deadline", "another's kind", "a wrong range"])
def test_a_prompt_that_is_never_sent_leaves_no_block_behind(
    pair: Pair, moment: str, end: str
) -> None:
    request_id, prompt = name(), prompt_of(100, 13)
    reserved = pair.reserve(request_id, prompt)
    deadline_s = 0.5 if end == "its deadline" else 60.0
    pair.a.send(
        submit(request_id, prompt, chunk_tokens=1, handoff_follows=True, deadline_s=deadline_s)
    )
    if moment == "reading":
        pair.a.wait(StepReport, _reads(request_id))
    elif moment == "read" and end != "its deadline":
        pair.a.first_token(request_id)
    target = pair.target(reserved)
    if end == "cancelled":
        pair.a.send(Cancel(request_id=request_id))
    elif end == "another's kind":
        pair.a.send(SendTo(request_id=request_id, target=replace(target, fingerprint="x")))
    elif end == "a wrong range":
        pair.a.send(SendTo(request_id=request_id, target=replace(target, cached_tokens=100)))
    if end != "cancelled":
        failed = pair.a.wait(Failed, lambda m: m.request_id == request_id)
        assert failed.kind == ("deadline" if end == "its deadline" else "handoff")
    pair.a.wait_until_free()
    # Told now, it is nobody's any more.
    pair.a.send(SendTo(request_id=request_id, target=target))
    pair.b.send(Cancel(request_id=request_id))
    pair.a.wait_until_free()
    pair.b.wait_until_free()


def test_an_answer_of_its_first_token_alone_goes_nowhere(pair: Pair) -> None:
    request_id = name()
    pair.a.send(submit(request_id, prompt_of(30, 14), handoff_follows=True, max_tokens=1))
    assert len(pair.a.finish(request_id)) == 1
    pair.a.wait_until_free()


def test_only_what_the_decode_box_lacks_is_sent(pair: Pair, reference: Any) -> None:
    first, second = name(), name()
    pair.split(first, prompt_of(45, 5), CHUNK)
    pair.b.finish(first)
    pair.a.handoff_report(first)
    reserved = pair.reserve(second, prompt_of(45, 5))
    pair.a.send(submit(second, prompt_of(45, 5), handoff=pair.target(reserved), chunk_tokens=CHUNK))
    text = pair.text(second)
    report = pair.a.handoff_report(second)
    assert (reserved.cached_tokens, report.event.tokens) == (40, 5)
    done = [
        p
        for m in pair.a.heard
        if isinstance(m, StepReport)
        for p in m.prefilled
        if p.request_id == second
    ]
    assert [p.cached_tokens for p in done] == [40]
    assert isinstance(done[0], PrefillDone)
    assert text == reference(45, 5)


def test_many_split_requests_at_once_keep_their_texts(pair: Pair, reference: Any) -> None:
    ids = {name(): 20 + 3 * n for n in range(6)}
    for request_id, length in ids.items():
        pair.split(request_id, prompt_of(length, 6), CHUNK)
    for request_id, length in ids.items():
        assert pair.text(request_id) == reference(length, 6)
    pair.b.wait_until_free()
    pair.a.wait_until_free()


def test_an_answer_that_ends_with_its_first_token_needs_no_hand_off(pair: Pair) -> None:
    request_id = name()
    pair.split(request_id, prompt_of(30, 7), CHUNK, max_tokens=1)
    assert len(pair.a.finish(request_id)) == 1
    pair.b.wait(Failed, lambda m: m.request_id == request_id)
    pair.a.wait_until_free()
    pair.b.wait_until_free()


def test_a_resumed_request_goes_on_where_it_was(pair: Pair, reference: Any) -> None:
    request_id = name()
    prompt = prompt_of(20, 8)
    so_far = reference(20, 8)[:3]
    pair.a.send(submit(request_id, prompt + so_far, prompt_tokens=20))
    assert pair.a.finish(request_id) == reference(20, 8)[3:]
    assert [token.index for token in pair.a.tokens(request_id)] == [3, 4, 5]


def test_a_cancelled_hand_off_frees_both_boxes_and_leaves_others_alone(
    pair: Pair, reference: Any
) -> None:
    other = name()
    pair.b.send(submit(other, prompt_of(30, 9)))
    for _ in range(10):
        request_id = name()
        pair.split(request_id, prompt_of(100, 9), 1)
        pair.a.wait(StepReport, _reads(request_id))
        pair.a.send(Cancel(request_id=request_id))
        pair.b.send(Cancel(request_id=request_id))
    assert pair.b.finish(other) == reference(30, 9)
    pair.a.wait_until_free()
    pair.b.wait_until_free()


def test_a_hand_off_to_a_reservation_that_is_gone_is_refused(pair: Pair) -> None:
    request_id = name()
    reserved = pair.reserve(request_id, prompt_of(20, 10))
    pair.b.send(Cancel(request_id=request_id))
    pair.b.has_heard()
    pair.a.send(submit(request_id, prompt_of(20, 10), handoff=pair.target(reserved)))
    report = pair.a.handoff_report(request_id)
    assert not report.event.committed
    assert report.why is not None and "does not hold this reservation" in report.why
    pair.a.wait_until_free()
    pair.b.wait_until_free()


def test_a_reservation_nobody_fills_ends_with_its_deadline(pair: Pair) -> None:
    request_id = name()
    pair.reserve(request_id, prompt_of(20, 11), deadline_s=0.3)
    failed = pair.b.wait(Failed, lambda m: m.request_id == request_id)
    assert failed.kind == "deadline"
    pair.b.wait_until_free()


@pytest.mark.parametrize(
    ("changes", "kind", "what"),
    [
        ({"max_tokens": CONTEXT}, "too_long", "exceed the context of 128"),
        ({"temperature": float("nan")}, "bad_request", "temperature"),
        ({"deadline_s": 0.0}, "deadline", "deadline"),
        ({"chunk_tokens": 0}, "bad_request", "chunk"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_a_reason(
    pair: Pair, changes: dict[str, Any], kind: str, what: str
) -> None:
    request_id = name()
    pair.a.send(submit(request_id, prompt_of(9), **changes))
    refused = pair.a.wait(Refused, lambda m: m.request_id == request_id)
    assert refused.kind == kind and what in refused.what


def test_a_token_outside_the_vocabulary_is_refused(pair: Pair) -> None:
    request_id = name()
    pair.a.send(submit(request_id, [5, 10_000]))
    refused = pair.a.wait(Refused, lambda m: m.request_id == request_id)
    assert "vocabulary of 97" in refused.what


def test_another_models_kv_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, model: Path
) -> None:
    other = make_model(tmp_path_factory.mktemp("other"), seed=1)
    both = Pair(tmp_path, model, other)
    try:
        assert both.a.ready is not None and both.b.ready is not None
        from homesplit_engine.fingerprint import differing

        fields = differing(both.a.ready.fingerprint_fields, both.b.ready.fingerprint_fields)
        assert fields == ["weights"]
        both.split("foreign", prompt_of(9), CHUNK)
        assert both.a.wait(Refused).kind == "fingerprint"
        both.a.send(Stop())
        assert both.a.process.wait(timeout=END_S) == 0
        os.kill(both.b.process.pid, signal.SIGTERM)
        assert both.b.process.wait(timeout=END_S) == 0
    finally:
        both.stop()


def test_a_worker_ends_without_taking_its_interpreter_apart(tmp_path: Path, model: Path) -> None:
    hangs = (
        "import atexit, runpy, threading\n"
        "atexit.register(threading.Event().wait)\n"
        "runpy.run_module('homesplit_engine', run_name='__main__', alter_sys=True)"
    )
    keys = make_keys(["A"])
    worker = WorkerProcess(tmp_path, keys["A"], keys["router"], model, run=("-c", hangs))
    try:
        worker.connect()
        worker.send(Stop())
        assert worker.process.wait(timeout=END_S) == 0
    finally:
        worker.stop()
