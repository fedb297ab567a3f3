"""The matrix's own tools do what they say: the wire that damages frames, the shifted clock."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from homesplit_engine.wire.messages import Ack, Chunk, Envelope, Open, Raw
from homesplit_engine.wire.seal import Seal, new_seal_key
from homesplit_engine.wire.sockets import (
    KV_DOMAIN,
    Gatekeeper,
    bind,
    kv_connecting_socket,
    kv_listening_socket,
)

from tests.lab.matrix.odd import slow_down, what_is_wrong
from tests.lab.matrix.traffic import Stream
from tests.lab.matrix.wire import WireSettings

WAIT_MS = 60_000
PROGRAM = "import time; print(time.time(), time.monotonic())"


class Ends:
    """A sender and a receiver with the wire between them."""

    def __init__(self, folder: Path) -> None:
        self.seal = Seal(new_seal_key())
        self._context: zmq.Context[Any] = zmq.Context()
        self._gate = Gatekeeper(self._context, {}, {KV_DOMAIN: "sesame"})
        self.receiver = kv_listening_socket(self._context, max_bytes=2**20, hwm=100)
        reach = bind(self.receiver, "127.0.0.1", 0)
        self.order_file = folder / "order"
        settings = WireSettings(
            listen=f"tcp://127.0.0.1:{_free_port()}",
            reach=reach,
            order_file=str(self.order_file),
        )
        (folder / "wire.json").write_bytes(msgspec.json.encode(settings))
        words = [sys.executable, "-m", "tests.lab.matrix.wire", str(folder / "wire.json")]
        self._process = subprocess.Popen(words)
        self.sender = kv_connecting_socket(
            self._context, name="a", password="sesame", max_bytes=2**20, hwm=100
        )
        self.sender.connect(settings.listen)

    def send(self, count: int) -> list[list[Raw]]:
        """Send an opening and so many chunks; what went out."""
        messages = [self.seal.message(_ENVELOPE, _OPEN)]
        for number in range(count):
            header = msgspec.structs.replace(_CHUNK, sequence=number)
            envelope = msgspec.structs.replace(_ENVELOPE, number=1 + number)
            messages.append(self.seal.message(envelope, header, bytes([number]) * 16))
        for message in messages:
            self.sender.send_multipart(message)
        return messages

    def received(self, count: int) -> list[list[bytes]]:
        """So many messages as they arrive."""
        found: list[list[bytes]] = []
        while len(found) < count:
            assert self.receiver.poll(WAIT_MS), found
            found.append(self.receiver.recv_multipart()[1:])
        return found

    def close(self) -> None:
        """End everything."""
        self._process.kill()
        self._process.wait()
        self._gate.stop()
        self._context.destroy(linger=0)


_OPEN = Open(
    wire_version=1,
    reservation_id="v",
    request_id="r",
    from_box="a",
    fingerprint="f",
    layers=1,
    from_token=0,
    prompt_tokens=4,
    dtype="same",
)
_CHUNK = Chunk(reservation_id="v", sequence=0, layer=0, from_token=0, tokens=1, bytes=16)
_ENVELOPE = Envelope(reservation_id="v", number=0)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def ends(tmp_path: Path) -> Generator[Ends]:
    both = Ends(tmp_path)
    yield both
    both.close()


def test_without_an_order_everything_passes_both_ways(ends: Ends) -> None:
    sent = ends.send(3)
    assert ends.receiver.poll(WAIT_MS)
    identity, *first = ends.receiver.recv_multipart()
    assert [first, *ends.received(3)] == sent
    answer = ends.seal.answer(_ENVELOPE, Ack(reservation_id="v", committed=True))
    ends.receiver.send_multipart([identity, *answer])
    assert ends.sender.poll(WAIT_MS)


@pytest.mark.parametrize(
    ("order", "numbers"),
    [("flip", [0, 1, 2]), ("lose", [1, 2]), ("repeat", [0, 0, 1, 2]), ("reorder", [1, 0, 2])],
)
def test_an_order_damages_one_frame_and_no_more(ends: Ends, order: str, numbers: list[int]) -> None:
    ends.order_file.write_text(order)
    sent = ends.send(3)
    got = ends.received(1 + len(numbers))
    assert got[0] == sent[0]
    assert [message[0] for message in got[1:]] == [sent[1 + n][0] for n in numbers]
    changed = [message[2] != sent[1 + n][2] for message, n in zip(got[1:], numbers, strict=True)]
    assert changed == [order == "flip", *[False] * (len(numbers) - 1)]
    assert not ends.order_file.exists()


def test_the_wall_clock_is_shifted_and_the_monotonic_one_is_not(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library, shift = tmp_path / "clock.so", tmp_path / "shift"
    source = Path(__file__).parent / "matrix/clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    shift.write_bytes((-3600).to_bytes(8, "little", signed=True))
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM],
        env={"LD_PRELOAD": str(library), "HOMELAB_CLOCK": str(shift)},
        capture_output=True,
        text=True,
        check=True,
    )
    wall_s, monotonic_s = (float(word) for word in done.stdout.split())
    assert wall_s == pytest.approx(time.time() - 3600, abs=60)
    assert monotonic_s == pytest.approx(time.monotonic(), abs=60)


@pytest.mark.parametrize(
    ("name", "is_right"), [("all three killed", True), ("router asleep for 10 s", False)]
)
def test_only_where_router_or_both_boxes_were_taken_away_may_an_answer_end_with_an_error(
    name: str, is_right: bool
) -> None:
    ended = Stream("a", "prompt", 8, texts=["wri"], error="router_ended: the router was ended")
    assert (what_is_wrong(ended, "written", name) is None) == is_right
    assert what_is_wrong(ended, "another", name) is not None


def test_a_process_that_ends_while_it_is_slowed_down_is_told_of() -> None:
    over = threading.Event()
    process = subprocess.Popen(["sleep", "600"])
    process.kill()
    process.wait()
    assert not slow_down(process.pid, over)
    over.set()
    assert slow_down(process.pid, over)
