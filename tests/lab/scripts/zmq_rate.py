"""Moves 256 MiB over ZeroMQ: `zmq_rate.py pull|push ADDRESS`; the puller prints bits per second."""

from __future__ import annotations

import sys
import time

import zmq

MESSAGES = 64
MESSAGE_BYTES = 4 << 20
WITHIN_MS = 60_000


def pull(socket: zmq.Socket[bytes], address: str) -> None:
    """Take everything in, and say how fast it came."""
    socket.setsockopt(zmq.RCVHWM, 8)
    socket.setsockopt(zmq.RCVTIMEO, WITHIN_MS)
    socket.bind(address)
    print("ready", flush=True)
    socket.recv()
    begin = time.monotonic()
    for _ in range(MESSAGES):
        socket.recv(copy=False)
    print(MESSAGES * MESSAGE_BYTES * 8 / (time.monotonic() - begin), flush=True)


def push(socket: zmq.Socket[bytes], address: str) -> None:
    """Send a short message to start the clock, then the rest."""
    socket.setsockopt(zmq.SNDHWM, 8)
    socket.setsockopt(zmq.SNDTIMEO, WITHIN_MS)
    socket.connect(address)
    block = bytearray(MESSAGE_BYTES)
    socket.send(b"go")
    for _ in range(MESSAGES):
        socket.send(block, copy=False)


def main() -> None:
    """Be one end."""
    end, address = sys.argv[1:3]
    context = zmq.Context()
    if end == "pull":
        with context.socket(zmq.PULL) as socket:
            pull(socket, address)
    else:
        with context.socket(zmq.PUSH) as socket:
            push(socket, address)
    context.term()


if __name__ == "__main__":
    main()
