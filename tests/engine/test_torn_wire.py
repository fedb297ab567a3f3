"""Bytes that are no message in the middle of a connection that was good: it ends, answers go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from homesplit_engine.config import WorkerAddress

from tests.engine.router_kit import REPLICA, SILENCE_S, rig, stub_settings, until
from tests.engine.stub_worker import StubWorker

NOISE = [
    random.Random(8).randbytes(300),
    b"\x00" * 300,
    b"\xff" * 300,
    b"\x02" + b"\x7f" * 8 + b"a" * 40,  # a frame of so many bytes that nobody has room for them
    b"\x04\x29\x05ERROR" + b"a" * 40,  # a command where messages are due
]


class Wire:
    """A way to one worker's control door that can be made to say something else."""

    def __init__(self) -> None:
        self._ends: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._port = 0
        self._to_port = 0

    def over(self, address: WorkerAddress) -> WorkerAddress:
        """The address of this way to that one."""
        self._to_port = int(address.control_endpoint.rsplit(":", 1)[1])
        return msgspec.structs.replace(address, control_endpoint=f"tcp://127.0.0.1:{self._port}")

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Carry bytes both ways."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for end in (end for ends in self._ends for end in ends):
                end.close()

    def say(self, to: Literal["router", "worker"], data: bytes) -> None:
        """Put these bytes among those of the newest connection."""
        self._ends[-1][0 if to == "router" else 1].write(data)

    @property
    def connections(self) -> int:
        """How many there have been."""
        return len(self._ends)

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection("127.0.0.1", self._to_port)
        self._ends.append((back, forth))
        await asyncio.gather(_pump(near, forth), _pump(far, back))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


@pytest.mark.parametrize("to", ["router", "worker"])
async def test_noise_amid_a_good_connection_costs_no_answer_and_the_box_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Literal["router", "worker"]
) -> None:
    wire = Wire()
    direct: Any = StubWorker.address
    monkeypatch.setattr(
        StubWorker,
        "address",
        property(
            lambda stub: wire.over(direct.fget(stub)) if stub.box == "left" else direct.fget(stub)
        ),
    )
    settings = {box: stub_settings(step_s=0.01) for box in ("left", "right")}
    async with (
        wire.open(),
        rig(tmp_path, setting=REPLICA, settings=settings, detection_s=SILENCE_S) as running,
    ):
        for noise in NOISE:
            asked = [asyncio.create_task(running.complete("ab", 30)) for _ in range(4)]
            await until(lambda: running.stubs["left"].held > 0)
            before = wire.connections
            wire.say(to, noise)
            assert set(await asyncio.gather(*asked)) == {running.expected("ab", 30)}
            await until(lambda before=before: wire.connections > before)
            await running.until_usable("left", "right")
        await until(lambda: not any(stub.held for stub in running.stubs.values()))
