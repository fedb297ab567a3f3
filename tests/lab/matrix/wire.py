"""A wire between two workers that damages KV frames when told to.

    python -m tests.lab.matrix.wire SETTINGS

It holds both workers' keys, so that to each it is the other; neither is changed for it. The
file `order` beside its settings names the damage to do once: flip, lose, repeat or reorder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import zmq
from homesplit_engine.config import Keys
from homesplit_engine.wire.messages import Chunk, ProtocolError, decode_kv_message
from homesplit_engine.wire.sockets import connecting_socket

MAX_BYTES = 2**28
HWM = 8


class WireSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whose keys it holds, where it listens, and whom it reaches."""

    sender: Keys
    receiver: Keys
    listen: str
    reach: str
    order_file: str


class Wire:
    """Both ends, and the damage that is asked for."""

    def __init__(self, settings: WireSettings) -> None:
        context = zmq.Context()
        self._order = Path(settings.order_file)
        self._held: list[bytes] | None = None
        self._front: Any = context.socket(zmq.ROUTER)
        self._front.curve_server = True
        self._front.curve_secretkey = settings.receiver.secret.encode()
        self._front.maxmsgsize = MAX_BYTES
        self._front.rcvhwm = HWM
        self._front.bind(settings.listen)
        self._back: Any = connecting_socket(
            context,
            keys=settings.sender,
            server_key=settings.receiver.public,
            max_bytes=MAX_BYTES,
            hwm=HWM,
        )
        self._back.connect(settings.reach)
        self._identity = b""

    def run(self) -> None:
        """Pass everything on until killed."""
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        poller.register(self._back, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(1000))
            if self._back in ready and self._identity:
                self._front.send_multipart([self._identity, *self._back.recv_multipart()])
            if self._front in ready:
                self._identity, *frames = self._front.recv_multipart()
                for out in self._damaged(frames):
                    self._back.send_multipart(out)

    def _damaged(self, frames: list[bytes]) -> list[list[bytes]]:
        """What becomes of one message."""
        if self._held is not None:
            held, self._held = self._held, None
            return [frames, held]
        order = self._asked() if _is_chunk(frames) else ""
        match order:
            case "flip":
                data = bytearray(frames[1])
                data[len(data) // 2] ^= 1
                return [[frames[0], bytes(data)]]
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


def _is_chunk(frames: list[bytes]) -> bool:
    try:
        return len(frames) == 2 and isinstance(decode_kv_message(frames[0]), Chunk)
    except ProtocolError:
        return False


if __name__ == "__main__":
    Wire(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=WireSettings)).run()
