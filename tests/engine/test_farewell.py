"""A router that dies ends what it was answering with an error: never a hang, never a bare end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import openai
import pytest
from homesplit_engine import supervise
from homesplit_engine.config import RouterConfig, RouterEndpoints
from homesplit_engine.events import EngineEvent, FaultSeen
from homesplit_engine.farewell import Farewell, Keeper, State, last_words
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.supervise import Supervisor

from tests.engine.router_kit import PATIENCE_S, make_tokenizer, stub_settings, until
from tests.engine.stub_worker import StubWorker

ENDED = "router_ended"


@pytest.mark.parametrize(
    ("state", "start", "end"),
    [
        (State.NONE, b"", b""),
        (State.ASKED, b"HTTP/1.1 503 ", b"}}"),
        (State.EVENTS, b"", b"data: [DONE]\n\n\r\n0\r\n\r\n"),
        (State.PLAIN_EVENTS, b"data: {", b"data: [DONE]\n\n"),
        (State.TORN, b"", b""),
    ],
)
def test_what_can_still_be_said_hangs_on_how_far_the_answer_is(
    state: State, start: bytes, end: bytes
) -> None:
    words = last_words(state)
    assert words.startswith(start) and words.endswith(end)
    assert (ENDED.encode() in words) == bool(start or end)


def test_an_event_in_a_chunk_is_as_long_as_its_chunk_says() -> None:
    size, _, rest = last_words(State.EVENTS).partition(b"\r\n")
    assert rest[int(size, 16) :] == b"\r\n0\r\n\r\n"


class Ends:
    """Both ends in one process, and sockets of clients."""

    def __init__(self) -> None:
        self.farewell = Farewell()
        self.keeper = Keeper(*(os.dup(fd) for fd in self.farewell.fds))
        self.farewell.given()
        self.waiting = 0
        """Bytes that the router's transport still holds."""

    def get_write_buffer_size(self) -> int:
        return self.waiting


def client_and_server() -> tuple[socket.socket, socket.socket]:
    client, server = socket.socketpair()
    client.settimeout(PATIENCE_S)
    server.setblocking(False)
    return client, server


@pytest.mark.parametrize(
    ("waiting", "steps", "said"),
    [
        (0, (), State.ASKED),
        (0, ("torn",), State.TORN),
        (0, ("torn", "sent"), State.EVENTS),
        (9, ("torn", "sent"), State.TORN),
    ],
)
def test_only_a_stream_whose_events_are_whole_is_added_to(
    waiting: int, steps: tuple[str, ...], said: State
) -> None:
    ends = Ends()
    ends.waiting = waiting
    client, server = client_and_server()
    with client, server, ends.keeper.holding(server, ends, chunked=True) as held:
        for step in steps:
            getattr(held, step)()
        assert ends.farewell.say() == bool(last_words(said))
        server.close()
        assert client.recv(4096) == last_words(said)


def test_nothing_is_said_in_the_middle_of_the_answer_before() -> None:
    ends = Ends()
    ends.waiting = 9
    client, server = client_and_server()
    with client, server, ends.keeper.holding(server, ends, chunked=False):
        assert ends.farewell.say() == 0


def test_who_still_writes_its_request_reads_the_error_and_no_reset() -> None:
    ends = Ends()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), PATIENCE_S)
        server = listener.accept()[0]
    with client, server, ends.keeper.holding(server, ends, chunked=False):
        client.sendall(b"x" * 50_000)
        assert ends.farewell.say() == 1
        server.close()
        told = b""
        while part := client.recv(4096):
            told += part
        assert told == last_words(State.ASKED)


def test_without_room_a_router_runs_with_nobody_to_end_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> Farewell:
        raise OSError(28, "No space left on device")

    started: list[tuple[int, ...]] = []

    def start(_self: Supervisor, fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
        started.append(fds)
        return subprocess.Popen(["true"])

    config = tmp_path / "router.json"
    config.write_bytes(msgspec.json.encode({"ready_file": str(tmp_path / "ready")}))
    monkeypatch.setattr(supervise, "Farewell", full)
    monkeypatch.setattr(Supervisor, "_start", start)
    assert Supervisor("router", config).run() == 0
    assert started == [()]


def test_an_answered_request_is_let_go_and_nothing_is_said() -> None:
    ends = Ends()
    client, server = client_and_server()
    with client:
        with server, ends.keeper.holding(server, ends, chunked=True):
            ends.farewell.hear()
        ends.farewell.hear()
        assert client.recv(10) == b""
    assert ends.farewell.say() == 0


def test_a_supervisor_that_does_not_listen_holds_nobody_up() -> None:
    ends = Ends()
    client, server = client_and_server()
    with client, server:
        for _ in range(5_000):
            with ends.keeper.holding(server, ends, chunked=True):
                pass
        ends.farewell.hear()
        with ends.keeper.holding(server, ends, chunked=True):
            assert ends.farewell.say() == 1
        assert client.recv(4096) == last_words(State.ASKED)


# ------------------------------------------------------------------ a supervised router


class Killable:
    """A router's process under its supervisor, over a stub worker of this process."""

    def __init__(self, folder: Path, stub: StubWorker) -> None:
        self.stub = stub
        self._ready = folder / "router.ready"

    async def endpoints(self, but: int | None = None) -> RouterEndpoints:
        """Where it listens, once it is another process than `but`."""
        found: list[RouterEndpoints] = []

        def ready() -> bool:
            with contextlib.suppress(FileNotFoundError):  # a killed router's is taken away
                found[:] = [msgspec.json.decode(self._ready.read_bytes(), type=RouterEndpoints)]
            return bool(found) and found[0].pid != but

        await until(ready)
        return found[0]


@contextlib.asynccontextmanager
async def killable(folder: Path) -> AsyncGenerator[Killable]:
    make_tokenizer(folder)
    keys = make_keys(("left",))
    write_keys(folder / "router.keys", keys["router"])
    with StubWorker("left", keys["left"], stub_settings()) as stub:
        settings = RouterConfig(
            model_dir=str(folder),
            model_name="tiny",
            keys_file=str(folder / "router.keys"),
            ready_file=str(folder / "router.ready"),
            workers=(stub.address,),
            detection_s=10.0,
        )
        (folder / "router.json").write_bytes(msgspec.json.encode(settings))
        words = ["-m", "homesplit_engine", "router", "--config", str(folder / "router.json")]
        process = await asyncio.create_subprocess_exec(sys.executable, *words, "--supervised")
        try:
            yield Killable(folder, stub)
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE_S)


async def ask(
    url: str, body: dict[str, Any], version: str = "1.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Both ends of a connection that asks for a completion; it lives as long as both do."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    raw = json.dumps({"prompt": "ab", "max_tokens": 50} | body).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    await writer.drain()
    return reader, writer


def unchunked(raw: bytes) -> bytes:
    """The body of an answer in chunks; fails where a chunk is not whole."""
    body, left = b"", raw.partition(b"\r\n\r\n")[2]
    while True:
        size, _, left = left.partition(b"\r\n")
        length = int(size, 16)
        assert left[length : length + 2] == b"\r\n"
        body, left = body + left[:length], left[length + 2 :]
        if not length:
            assert left == b""
            return body


async def test_a_killed_router_ends_open_answers_with_an_error_and_tells_of_it_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with killable(tmp_path) as running:
        first = await running.endpoints()
        async with openai.AsyncOpenAI(
            base_url=first.url + "/v1", api_key="none", max_retries=0
        ) as api:

            async def usable() -> bool:
                with contextlib.suppress(openai.APIError):
                    await api.completions.create(model="tiny", prompt="a", max_tokens=1)
                    return True
                return False

            await until(usable)
            running.stub.settings.pause_at = 3
            stream = await api.completions.create(
                model="tiny", prompt="ab", max_tokens=50, stream=True
            )
            pieces = [await anext(stream) for _ in range(3)]
            (raw, _raw), (old, _old), (waiting, _waiting) = [
                await ask(first.url, body, version)
                for body, version in (
                    ({"stream": True}, "1.1"),
                    ({"stream": True}, "1.0"),
                    ({}, "1.1"),
                )
            ]
            await until(lambda: running.stub.paused == 4)
            # Each stream has its three events before the router goes.
            begun = [await one.readuntil(b"\n\n") for one in (raw, old)]
            for _ in range(2):
                begun = [
                    seen + await one.readuntil(b"\n\n")
                    for seen, one in zip(begun, (raw, old), strict=True)
                ]
            os.kill(first.pid, signal.SIGKILL)
            with pytest.raises(openai.APIError) as told:
                await anext(stream)
            assert told.value.code == ENDED and len(pieces) == 3
        async with asyncio.timeout(PATIENCE_S):
            ends = [seen + await one.read() for seen, one in zip(begun, (raw, old), strict=True)]
            whole = await waiting.read()
        assert ENDED.encode() in unchunked(ends[0])
        for end in ends:
            assert end.count(b'"text"') == 3 and end.count(ENDED.encode()) == 1
        head, _, body = whole.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1" in head
        assert json.loads(body)["error"]["code"] == ENDED
        running.stub.settings.pause_at = None
        second = await running.endpoints(but=first.pid)
        await until(lambda: running.stub.held == 0)
        assert "4 open answers ended with an error" in await first_fault(second.url)


async def first_fault(url: str) -> str:
    """The first fault that a new watcher of the router is told."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /homesplit/events HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(b"\r\n\r\n")
        while True:
            line = (await reader.readline()).strip()
            event = msgspec.json.decode(line, type=EngineEvent) if line else None
            if isinstance(event, FaultSeen):
                writer.close()
                return event.fault.sentence
