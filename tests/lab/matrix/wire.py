"""A wire between two workers that damages KV frames when told to.

    python -m tests.lab.matrix.wire SETTINGS

It stands where the router believes the receiver's KV door to be, lets in whoever comes, and
goes on with the password that it was given; neither worker is changed for it. What passes is
sealed, so it can damage frames and not read them. The file `order` beside its settings names
the damage to do once: flip, lose, repeat or reorder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq
from homesplit_engine.wire.sockets import kv_connecting_socket

MAX_BYTES = 2**28
HWM = 8
CHUNK_PARTS = 3
"""Envelope, header and frame; every other message has no frame."""
_ZAP = "inproc://zeromq.zap.01"


class WireSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where it listens, and whom it reaches."""

    listen: str
    reach: str
    order_file: str


class Wire:
    """Both ends, and the damage that is asked for."""

    def __init__(self, settings: WireSettings) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._order = Path(settings.order_file)
        self._reach = settings.reach
        self._held: list[bytes] | None = None
        self._door: Any = self._context.socket(zmq.REP)
        self._door.bind(_ZAP)
        self._front: Any = self._context.socket(zmq.ROUTER)
        self._front.plain_server = True
        self._front.zap_domain = b"kv"
        self._front.router_handover = True
        self._front.maxmsgsize = MAX_BYTES
        self._front.rcvhwm = HWM
        self._front.bind(settings.listen)
        self._back: zmq.Socket[Any] | None = None
        self._password = b""
        self._identity = b""

    def run(self) -> None:
        """Pass everything on until killed."""
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        poller.register(self._door, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(1000))
            if self._door in ready:
                self._let_in(self._door.recv_multipart(), poller)
            if self._back is not None and self._back in ready and self._identity:
                self._front.send_multipart([self._identity, *self._back.recv_multipart()])
            if self._back is not None and self._front in ready:
                self._identity, *frames = self._front.recv_multipart()
                for out in self._damaged(frames):
                    self._back.send_multipart(out)

    def _let_in(self, question: list[bytes], poller: zmq.Poller) -> None:
        """Open to the sender, and reach the receiver with the same name and password."""
        version, request_id, *_, name, password = question
        self._door.send_multipart([version, request_id, b"200", b"OK", name, b""])
        if password == self._password:
            return
        if self._back is not None:
            poller.unregister(self._back)
            self._back.close(linger=0)
        self._password = password
        self._back = kv_connecting_socket(
            self._context,
            name=name.decode(),
            password=password.decode(),
            max_bytes=MAX_BYTES,
            hwm=HWM,
        )
        self._back.connect(self._reach)
        poller.register(self._back, zmq.POLLIN)

    def _damaged(self, frames: list[bytes]) -> list[list[bytes]]:
        """What becomes of one message."""
        if self._held is not None:
            held, self._held = self._held, None
            return [frames, held]
        order = self._asked() if len(frames) == CHUNK_PARTS else ""
        match order:
            case "flip":
                data = bytearray(frames[2])
                data[len(data) // 2] ^= 1
                return [[*frames[:2], bytes(data)]]
            case "lose":
                return []
            case "repeat":
                return [frames, frames]
            case "reorder":
                self._held = frames
                return []
            case _:
                return [frames]

    def _asked(self) -> str:
        """The damage to do now; each order is done once."""
        try:
            order = self._order.read_text().strip()
        except FileNotFoundError:
            return ""
        self._order.unlink()
        return order


if __name__ == "__main__":
    Wire(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=WireSettings)).run()
