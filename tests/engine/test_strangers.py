"""Strangers at the doors: whatever they send, nobody gets a byte and the next request is served."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import os
import random
import struct
import threading
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import zmq
from homesplit_engine.config import Keys
from homesplit_engine.keys import make_keys
from homesplit_engine.router.answer import Reader
from homesplit_engine.router.door_log import MOST_LINES
from homesplit_engine.router.door_log import NAME as DOOR
from homesplit_engine.router.uncarried import UNCARRIED
from homesplit_engine.router.unpack import _unpack  # pyright: ignore[reportPrivateUsage]
from homesplit_engine.wire.messages import Cancel, Hello, encode
from homesplit_engine.wire.sockets import connecting_socket

from tests.engine.router_kit import PATIENCE_S, Rig, rig

PLAIN = "/v1/completions"
CHAT = "/v1/chat/completions"
SECRET = "sesame"


@contextlib.asynccontextmanager
async def open_door(folder: Path, **config: Any) -> AsyncGenerator[Rig]:
    """A router that must answer as usual when the test is over."""
    async with rig(folder, boxes=("left",), **config) as running:
        yield running
        assert await running.complete("ab", 3) == running.expected("ab", 3)


def wild(value: random.Random, depth: int = 0) -> Any:
    """Any JSON value that a careless or hostile client may put anywhere."""
    kinds = 9 if depth < 3 else 7
    match value.randrange(kinds):
        case 0:
            return None
        case 1:
            return value.choice([True, False])
        case 2:
            return value.choice([0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400])
        case 3:
            return value.choice([0.5, -1e308, 1e308, 1e-320])
        case 4:
            return "".join(chr(value.randrange(0x20)) for _ in range(8))
        case 5:
            return value.choice(["../../etc/passwd", "%2e%2e%2f", "\x00", "a\r\nX: y", "\ud7ff"])
        case 6:
            return "x" * value.randrange(2000)
        case 7:
            return [wild(value, depth + 1) for _ in range(value.randrange(4))]
        case _:
            return {str(wild(value, depth + 2)): wild(value, depth + 1) for _ in range(3)}


FIELDS = (
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature"),
    *("top_p", "top_k", "min_p", "seed", "n", "stop", "stop_token_ids", "ignore_eos"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stream"),
    *("stream_options", "logprobs", "top_logprobs", "tools", "chat_template_kwargs"),
    *("tool_choice", "reasoning_effort", "min_tokens", "best_of", *UNCARRIED),
)


async def test_any_value_in_any_field_is_an_answer_or_a_named_refusal(tmp_path: Path) -> None:
    value = random.Random(8)
    async with open_door(tmp_path) as running:
        for turn in range(300):
            door = (PLAIN, CHAT)[turn % 2]
            body: dict[str, Any] = {"max_tokens": 2, "prompt": "ab"}
            body["messages"] = [{"role": "user", "content": "ab"}]
            for field in value.sample(FIELDS, 2):
                body[field] = wild(value)
            async with running.http.post(running.url + door, json=body) as answer:
                raw = await answer.read()
                assert answer.status in (200, 400, 404), (answer.status, body, raw[:300])
                if answer.status != 200:
                    assert set(json.loads(raw)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xfe",
        b"{" * 200_000,
        b"[" * 2_000_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "temperature": -1e999}',
        b'{"prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"prompt": "\\ud800\\udfff"}\xff',
        b'{"prompt": [' + b"9" * 30 + b"]}",
        b'{"prompt": [' + b"[1]," * 100 + b"[1]]}",
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_a_body_that_is_no_request_is_a_400(tmp_path: Path, body: bytes) -> None:
    async with open_door(tmp_path) as running:
        for door in (PLAIN, CHAT, "/homesplit/mode", "/homesplit/cancel"):
            async with running.http.post(running.url + door, data=body) as answer:
                assert answer.status == 400, (door, await answer.text())


async def test_a_prompt_of_megabytes_is_too_long_and_a_larger_body_is_not_read(
    tmp_path: Path,
) -> None:
    async with open_door(tmp_path) as running:
        status, answer = await running.post(PLAIN, {"prompt": "word " * 400_000})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        status, answer = await running.post(PLAIN, {"prompt": "x" * (17 * 2**20)})
        assert (status, answer["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "tiny/../x", "a" * 5000]
)
async def test_a_path_in_a_models_name_opens_nothing(tmp_path: Path, name: str) -> None:
    async with open_door(tmp_path) as running:
        status, answer = await running.post(PLAIN, {"prompt": "a", "model": name})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        line = f"GET /v1/models/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        told = await _raw(running, line.encode())
        assert b" 404 " in told.splitlines()[0] or b" 400 " in told.splitlines()[0]
        assert b"root:" not in told


async def _raw(running: Rig, data: bytes, *, lines: int | None = None) -> bytes:
    """What the door answers to these very bytes: so many lines, or all until it closes."""
    address = urlsplit(running.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            if lines is not None:
                return b"".join([await reader.readline() for _ in range(lines)])
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS greeting
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\r\n" * 10 + b"\x00" * 100 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_turned_away(tmp_path: Path, data: bytes) -> None:
    async with open_door(tmp_path) as running:
        told = await _raw(running, data)
        assert not told or b" 400 " in told.splitlines()[0]


async def test_no_http_is_a_line_in_the_log_each_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What others sent in the last minute counts too; a new filter takes this one's place.
    monkeypatch.setattr(logging.getLogger(DOOR), "filters", [])
    async with open_door(tmp_path) as running:
        with caplog.at_level("INFO"):
            for _ in range(2 * MOST_LINES):
                await _raw(running, b"GET / HTTP/1.1\r\nHost : x\r\n\x00\r\n\r\n")
    lines = [one for one in caplog.records if one.name == DOOR]
    assert 0 < len(lines) <= MOST_LINES
    assert all(one.exc_info is None and "\n" not in one.getMessage() for one in lines)


BODY = b'{"prompt": "ab", "max_tokens": 3}'
BOMB = gzip.compress(b'{"prompt": "' + bytes(17 * 2**20))
"""17 kB of a body that is larger than any that is read."""
PACKED: list[tuple[str, bytes, int]] = [
    ("gzip", gzip.compress(BODY), 200),
    ("deflate", zlib.compress(BODY), 200),
    ("deflate", zlib.compress(BODY, wbits=-15), 200),
    ("identity", BODY, 200),
    ("gzip", BOMB, 413),
    ("gzip", b"no such thing at all", 400),
    ("deflate", b"no such thing at all", 400),
    ("gzip", gzip.compress(b"{}")[:12] + b"\x00" * 9, 400),
    ("gzip", gzip.compress(BODY)[:-9], 400),
    ("gzip", gzip.compress(BODY) + b"more", 400),
    ("br", BODY, 415),
    ("gzip, gzip", gzip.compress(gzip.compress(BODY)), 415),
]


async def test_a_packed_body_is_unpacked_to_a_bound_beside_the_loop_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def unpack(*given: Any) -> bytes:
        threads.add(threading.get_ident())
        return _unpack(*given)

    monkeypatch.setattr("homesplit_engine.router.unpack._unpack", unpack)
    async with open_door(tmp_path) as running:
        for packing, body, status in PACKED:
            head = (
                "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Encoding: {packing}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            told = await _raw(running, head.encode() + body)
            assert f" {status} ".encode() in told.splitlines()[0], (packing, body[:20], told)
            document = json.loads(told.partition(b"\r\n\r\n")[2])
            assert ("choices" in document) if status == 200 else (set(document) == {"error"})
    assert threads and threading.get_ident() not in threads
    assert not [one for one in caplog.records if one.exc_info]


async def test_a_thousand_idle_connections_and_slow_senders_keep_nobody_out(
    tmp_path: Path,
) -> None:
    async with open_door(tmp_path) as running:
        address = urlsplit(running.url)
        writers: list[asyncio.StreamWriter] = []
        begun = (
            b"",
            b"GET /v1/mo",
            b"POST /v1/completions HTTP/1.1\r\nContent-Length: 900\r\n\r\n{",
        )
        try:
            for number in range(1000):
                _, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.write(begun[number % len(begun)])
                writers.append(writer)
            assert await running.complete("abc", 4) == running.expected("abc", 4)
        finally:
            for writer in writers:
                writer.close()


async def test_a_body_or_head_that_never_comes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit_engine.router.server.IDLE_S", 0.3)
    async with open_door(tmp_path) as running:
        slow = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{"
        with monkeypatch.context() as impatient:
            impatient.setattr("homesplit_engine.router.doors.BODY_S", 0.3)
            assert b" 408 " in await _raw(running, slow, lines=1)
        for head in (b"", b"GET /v1/models HTTP/1.1\r\nHost: "):
            assert b" 200 " not in await _raw(running, head)


async def test_without_the_key_no_door_gives_a_byte_of_the_deployment(tmp_path: Path) -> None:
    key = tmp_path / "api.key"
    key.write_text(SECRET)
    key.chmod(0o600)
    paths = ("/v1/models", "/v1/models/tiny", "/homesplit/status", "/homesplit/records")
    async with rig(tmp_path, api_key_file=str(key), wait=False) as running:
        for path in (*paths, "/homesplit/events", "//homesplit/status", "/health/../v1/models"):
            for given in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "Bearer "}):
                async with running.http.get(running.url + path, headers=given) as answer:
                    assert answer.status in (401, 404)
                    assert b"left" not in await answer.read()
        for path in (PLAIN, CHAT, "/homesplit/mode", "/homesplit/cancel"):
            async with running.http.post(running.url + path, data=b"x" * 100) as answer:
                assert answer.status == 401


# ------------------------------------------------------------------ the worker's doors


def _talk(endpoint: str, server_key: str, keys: Keys | None, data: list[bytes]) -> bytes | None:
    """Send frames as a stranger; what comes back within a while, None for nothing."""
    context = zmq.Context()
    try:
        if keys is None:
            socket: Any = context.socket(zmq.DEALER)
            socket.linger = 0
        else:
            socket = connecting_socket(
                context, keys=keys, server_key=server_key, max_bytes=2**26, hwm=100
            )
        socket.connect(endpoint)
        with contextlib.suppress(zmq.Again):
            socket.setsockopt(zmq.SNDTIMEO, 300)
            for frame in data:
                socket.send(frame)
        return socket.recv() if socket.poll(300) else None
    finally:
        context.destroy(linger=0)


async def test_without_the_right_key_no_worker_door_says_a_byte(tmp_path: Path) -> None:
    stranger = make_keys(("left",))["router"]
    async with open_door(tmp_path) as running:
        address = running.stubs["left"].address
        for endpoint in (address.control_endpoint, address.kv_endpoint):
            for keys in (None, stranger):
                told = await asyncio.to_thread(
                    _talk, endpoint, address.public_key, keys, [encode(Hello())]
                )
                assert told is None


async def test_raw_noise_at_a_worker_door_changes_nothing(tmp_path: Path) -> None:
    value = random.Random(8)
    async with open_door(tmp_path) as running:
        address = running.stubs["left"].address
        greeting = b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00CURVE" + b"\x00" * 48
        pieces = [
            os.urandom(64),
            greeting,
            greeting + value.randbytes(5000),
            b"GET / HTTP/1.1\r\n\r\n",
        ]
        pieces.append(greeting + b"\x06" + struct.pack(">Q", 2**62))
        for endpoint in (address.control_endpoint, address.kv_endpoint):
            host, port = endpoint.removeprefix("tcp://").split(":")
            for piece in pieces:
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(piece)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(0.3):
                        told = await reader.read(4096)
                        # ZeroMQ greets whoever connects; nothing of ours is in it.
                        assert b"left" not in told and b"ready" not in told
                writer.close()


async def test_a_replayed_recording_of_the_routers_words_is_not_heard(tmp_path: Path) -> None:
    async with open_door(tmp_path) as running:
        stub = running.stubs["left"]
        host, port = stub.address.control_endpoint.removeprefix("tcp://").split(":")
        before = [message for message in stub.received if isinstance(message, Cancel)]
        greeting = b"\xff" + b"\x00" * 8 + b"\x7f\x03\x01CURVE" + b"\x00" * 15 + b"\x00" * 32
        frame = encode(Cancel(request_id="replayed"))
        for _ in range(20):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(greeting + b"\x00" + bytes([len(frame)]) + frame)
            await writer.drain()
            writer.close()
        assert [m for m in stub.received if isinstance(m, Cancel)] == before


async def test_more_choices_than_are_ever_let_in_are_no_matter_of_trying_again(
    tmp_path: Path,
) -> None:
    async with open_door(tmp_path, max_waiting=10) as running:
        status, answer = await running.post(PLAIN, {"prompt": ["a", "b"], "n": 6})
        assert status == 400 and "12 requests" in answer["error"]["message"]


async def test_a_text_that_no_context_holds_is_refused_before_it_is_tokenised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    async with open_door(tmp_path) as running:
        whole = Reader.encode

        def encode(self: Reader, text: str, *about: Any, **more: Any) -> list[int]:
            found = whole(self, text, *about, **more)
            if len(text) > 1000:  # the router's own question is short
                lengths.append(len(text))
            return found

        monkeypatch.setattr(Reader, "encode", encode)
        status, answer = await running.post(PLAIN, {"prompt": "word " * 400_000})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert lengths == []
        status, answer = await running.post(PLAIN, {"prompt": "a " * 5_000, "max_tokens": 1})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert lengths == [10_000]
