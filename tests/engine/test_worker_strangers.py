"""Whatever comes to a worker's doors, it lives, says nothing to strangers, and serves the next."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from homesplit_engine.config import Keys
from homesplit_engine.keys import make_keys
from homesplit_engine.records import WorkerStatus
from homesplit_engine.wire.messages import (
    MAX_MESSAGE_BYTES,
    Abort,
    Cancel,
    Chunk,
    Envelope,
    Failed,
    Gone,
    HandoffReport,
    HandoffSecret,
    HandoffTarget,
    Hello,
    Ping,
    Pong,
    Raw,
    Refused,
    SendTo,
    Stop,
    encode,
)
from homesplit_engine.wire.seal import Seal, new_seal_key
from homesplit_engine.wire.sockets import connecting_socket, kv_connecting_socket

from tests.engine.client import Pair, WorkerProcess, reserve, submit
from tests.engine.tiny import VOCABULARY, make_model, prompt_of

QUIET_MS = 300
NAN_TOKEN = VOCABULARY - 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for which one token of the vocabulary is no number."""
    folder = make_model(tmp_path_factory.mktemp("model"))
    _spoil_token(folder, NAN_TOKEN)
    return folder


def _spoil_token(folder: Path, token: int) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][token] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Pair]:
    both = Pair(tmp_path_factory.mktemp("pair"), model)
    yield both
    both.stop()


@pytest.fixture
def serving(pair: Pair) -> Iterator[Pair]:
    """Both workers must live, hold nothing and write the same text when the test is over."""
    before = _answers(pair)
    yield pair
    for worker in (pair.a, pair.b):
        assert worker.process.poll() is None
        worker.drain()
        worker.wait_until_free()
    assert _answers(pair) == before


_asked = iter(range(10**6))


def _answers(pair: Pair) -> list[list[int]]:
    found: list[list[int]] = []
    for worker in (pair.a, pair.b):
        name = f"known-{next(_asked)}"
        worker.send(submit(name, prompt_of(20)))
        found.append(worker.finish(name))
    return found


def doors(pair: Pair) -> list[tuple[str, str]]:
    """Every listening socket of B, with its public key."""
    ends = pair.b.endpoints
    return [(ends.control_endpoint, ends.public_key), (ends.kv_endpoint, ends.public_key)]


def _knock(
    endpoint: str, server_key: str, keys: Keys | str | None, messages: Sequence[Sequence[Raw]]
) -> bytes:
    """What comes back for these messages, sent with CURVE keys, a password, or neither."""
    context: zmq.Context[Any] = zmq.Context()
    try:
        match keys:
            case None:
                socket: Any = context.socket(zmq.DEALER)
                socket.linger = 0
            case str():
                socket = kv_connecting_socket(
                    context, name="A", password=keys, max_bytes=2**27, hwm=1000
                )
            case Keys():
                socket = connecting_socket(
                    context, keys=keys, server_key=server_key, max_bytes=2**27, hwm=1000
                )
        socket.setsockopt(zmq.SNDTIMEO, QUIET_MS)
        socket.connect(endpoint)
        for message in messages:
            try:
                socket.send_multipart(message)
            except zmq.Again:
                break
        return socket.recv() if socket.poll(QUIET_MS) else b""
    finally:
        context.destroy(linger=200)


@pytest.mark.parametrize(
    "who", ["no key", "a password", "an unknown key", "another deployment's router"]
)
def test_without_a_key_of_this_deployment_no_door_says_a_byte(serving: Pair, who: str) -> None:
    stranger = make_keys(["A", "B"])
    keys = {
        "no key": None,
        "a password": "guess",
        "an unknown key": stranger["A"],
        "another deployment's router": stranger["router"],
    }[who]
    for endpoint, public in doors(serving):
        assert _knock(endpoint, public, keys, [[encode(Hello())], [encode(Stop())]]) == b""


def test_a_peers_key_does_not_open_the_routers_door_nor_the_routers_a_peers(serving: Pair) -> None:
    control, kv = doors(serving)
    assert _knock(*control, serving.keys["A"], [[encode(Hello())], [encode(Stop())]]) == b""
    assert _knock(*kv, serving.keys["router"], [[encode(Hello())], [encode(Stop())]]) == b""


def test_bytes_that_are_no_zeromq_change_nothing(serving: Pair) -> None:
    import socket

    value = random.Random(8)
    greeting = b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00CURVE" + b"\x00" * 48
    pieces = [os.urandom(64), greeting, greeting + value.randbytes(5000)]
    pieces += [b"GET / HTTP/1.1\r\n\r\n", greeting + b"\x06" + struct.pack(">Q", 2**62)]
    for endpoint, _ in doors(serving):
        host, port = endpoint.removeprefix("tcp://").split(":")
        for piece in pieces:
            with socket.create_connection((host, int(port)), timeout=5) as raw:
                raw.sendall(piece)


def wild(value: random.Random, depth: int = 0) -> Any:
    """Any value that a damaged or hostile peer may put into a field."""
    match value.randrange(10 if depth < 3 else 8):
        case 0:
            return None
        case 1:
            return value.choice([True, False])
        case 2:
            return value.choice([0, -1, 1, 7, 2**31, 2**63 - 1, -(2**63), 2**64 - 1])
        case 3:
            return value.choice([0.0, -1.0, 0.5, 1e308, 1e-320, float("nan"), float("inf")])
        case 4:
            return value.choice(
                ["", "A", "B", "same", "int8", "../../etc/passwd", "\x00", "x" * 999]
            )
        case 5:
            return value.randbytes(20)
        case 6:
            return [value.choice([0, 5, -1, 10**6, 2**40]) for _ in range(value.randrange(6))]
        case 7:
            return {}
        case 8:
            return [wild(value, depth + 1) for _ in range(value.randrange(4))]
        case _:
            return {str(wild(value, 3)): wild(value, depth + 1) for _ in range(3)}


def _bent(value: random.Random, message: msgspec.Struct) -> bytes:
    """The message with one or two fields, maybe of what lies in it, put to anything."""
    plain: dict[str, Any] = msgspec.to_builtins(message, builtin_types=(bytes,))
    for _ in range(value.randrange(1, 3)):
        place = plain
        while nested := [one for one in place.values() if isinstance(one, dict) and one]:
            if value.random() < 0.4:
                break
            place = value.choice(nested)
        place[value.choice(sorted(place))] = wild(value)
    return msgspec.msgpack.encode(plain)


@pytest.mark.parametrize("seed", range(3))
def test_the_routers_words_with_anything_in_any_field_cost_at_most_their_own_request(
    serving: Pair, seed: int
) -> None:
    value = random.Random(seed)
    worker = serving.b
    target = nowhere(serving, seal_key=new_seal_key())
    for number in range(150):
        prompt = prompt_of(value.randrange(1, 40))
        sampled: dict[str, Any] = {"temperature": value.choice([0.0, 1.0]), "max_tokens": 3}
        name, follows = f"bent-{seed}-{number}", value.random() < 0.5
        one = submit(name, prompt, deadline_s=5.0, handoff_follows=follows, **sampled)
        other = reserve(f"kept-{seed}-{number}", prompt, deadline_s=5.0, **sampled)
        kinds = [one, other, Ping(ping_id=1), Cancel(request_id="x")]
        raws = [_bent(value, value.choice(kinds))]
        if follows:
            raws = [encode(one), _bent(value, SendTo(request_id=name, target=target))]
        for raw in raws:
            if b"stop" not in raw:
                worker.socket.send(raw)
    worker.send(Hello())  # forgets whatever was taken
    worker.send(Ping(ping_id=4242))
    worker.wait(Pong, lambda pong: pong.ping_id == 4242)


def test_a_hand_off_whose_key_is_none_costs_at_most_its_own_request(serving: Pair) -> None:
    worker = serving.b
    worker.send(submit("keyless", prompt_of(30), handoff_follows=True))
    target = nowhere(serving, seal_key=bytes(20))
    worker.send(SendTo(request_id="keyless", target=target))
    worker.send(Cancel(request_id="keyless"))
    worker.send(Ping(ping_id=4243))
    worker.wait(Pong, lambda pong: pong.ping_id == 4243)


def nowhere(serving: Pair, seal_key: bytes) -> HandoffTarget:
    """Where no hand-off from box B arrives."""
    return HandoffTarget(
        reservation_id="none",
        box="A",
        endpoint="tcp://127.0.0.1:9",
        secret=HandoffSecret(password="none", seal_key=seal_key),
        fingerprint=serving.b.endpoints.fingerprint,
        cached_tokens=0,
    )


def test_noise_and_odd_frames_from_the_router_are_dropped(serving: Pair) -> None:
    value = random.Random(8)
    socket = serving.b.socket
    whole = encode(submit("cut", prompt_of(30)))
    for _ in range(200):
        socket.send(value.randbytes(value.randrange(200)))
        socket.send(whole[: value.randrange(len(whole))])
    socket.send_multipart([b""])
    socket.send_multipart([b"", whole, b"more"])
    socket.send(b"\x91" * 100_000)
    socket.send(encode(Ping(ping_id=77)))
    assert isinstance(serving.b.wait(Pong, lambda p: p.ping_id == 77).status, WorkerStatus)


def test_a_message_over_the_limit_cuts_its_sender_off_and_nobody_else(serving: Pair) -> None:
    _, kv = doors(serving)
    secret = serving.reserve("room", prompt_of(20)).secret
    big = bytes(MAX_MESSAGE_BYTES + 1)
    assert _knock(*kv, secret.password, [[bytes(80 * 2**20)]]) == b""
    assert (
        _knock(*kv, secret.password, [[encode(Envelope(reservation_id="x", number=0)), big]]) == b""
    )
    serving.b.send(Cancel(request_id="room"))
    serving.b.send(Ping(ping_id=78))
    serving.b.wait(Pong, lambda pong: pong.ping_id == 78)


def test_a_peers_words_with_anything_in_any_field_touch_no_reservation_of_others(
    serving: Pair,
) -> None:
    value = random.Random(3)
    _, kv = doors(serving)
    reserved = serving.reserve("kept", prompt_of(20))
    header = Chunk(
        reservation_id=reserved.reservation_id,
        sequence=0,
        layer=0,
        from_token=0,
        tokens=4,
        bytes=64,
    )
    seal = Seal(reserved.secret.seal_key)
    messages: list[list[Raw]] = []
    for _ in range(150):
        raw = _bent(value, value.choice([header, Abort(reservation_id="other", why="")]))
        name = value.choice([reserved.reservation_id, "other"])
        envelope = Envelope(reservation_id=name, number=value.randrange(9), asks=True)
        frame = value.randbytes(value.randrange(80))
        # Anything in a clear part, behind no seal, behind a broken one, and within a whole one.
        messages.append([_bent(value, envelope), raw, frame])
        messages.append([encode(envelope), raw])
        messages.append([encode(envelope), *seal.message(envelope, header, frame)[1:2], frame])
        messages.append(seal.raw_message(envelope, raw, frame))
        messages.append([value.randbytes(30)])
    messages.extend([[b""], [b"", b"", b"", b""], [encode(Gone(reservation_id="other")), b"", b""]])
    _knock(*kv, reserved.secret.password, messages)
    serving.b.send(Cancel(request_id="kept"))


def test_a_prompt_whose_kv_is_no_number_ends_in_a_named_error_and_its_neighbour_does_not(
    serving: Pair,
) -> None:
    worker: WorkerProcess = serving.a
    good = prompt_of(30)
    worker.send(submit("alone", good, max_tokens=12))
    alone = worker.finish("alone")
    worker.send(submit("neighbour", good, max_tokens=12))
    worker.send(submit("spoiled", [*prompt_of(20), NAN_TOKEN, 5, 6]))
    failed = worker.wait(Failed, lambda message: message.request_id == "spoiled")
    assert failed.kind == "numeric"
    assert worker.finish("neighbour") == alone


FEW_FILES = 96
"""Open files that the worker may have in all: hard, so that it can't help itself to more."""
LIMITED = f"""
import resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW_FILES}, {FEW_FILES}))
runpy.run_module("homesplit_engine", run_name="__main__", alter_sys=True)
"""


def test_idle_connections_that_take_every_file_end_nothing_and_are_thrown_out(
    tmp_path: Path, model: Path
) -> None:
    import socket

    keys = make_keys(["A", "B"])
    worker = WorkerProcess(tmp_path, keys["A"], keys["router"], model, run=("-c", LIMITED))
    idle: list[socket.socket] = []
    try:
        worker.connect()
        ready = worker.ready
        assert ready is not None
        for endpoint in (worker.endpoints.control_endpoint, worker.endpoints.kv_endpoint):
            host, port = endpoint.removeprefix("tcp://").split(":")
            idle += [socket.create_connection((host, int(port))) for _ in range(2 * FEW_FILES)]
        worker.send(submit("first", prompt_of(30)))
        first = worker.finish("first")
        target = HandoffTarget(
            reservation_id="none",
            box="B",
            endpoint="tcp://127.0.0.1:9",
            secret=HandoffSecret(password="none", seal_key=new_seal_key()),
            fingerprint=ready.fingerprint,
            cached_tokens=0,
        )
        worker.send(submit("away", prompt_of(30), handoff=target))
        ended = worker.wait(object, lambda m: isinstance(m, Refused | HandoffReport))
        if isinstance(ended, HandoffReport):
            assert not ended.event.committed
        assert worker.process.poll() is None
        for one in idle:
            one.close()
        worker.send(submit("second", prompt_of(30)))
        assert worker.finish("second") == first
        worker.wait_until_free()
    finally:
        for one in idle:
            one.close()
        worker.stop()
