"""Open answers end with an error when the router dies: its supervisor holds a copy of each socket.

The router sends the supervisor a copy of a request's socket when the request comes, and a word
when it is answered. In between it notes in memory that both share how far the answer is, so that
the supervisor knows what may still be said on the socket: nothing is copied or asked for a token.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Generator
from enum import IntEnum
from typing import Protocol

from homesplit_engine.router.errors import ApiError

SLOTS = 8_192
"""Requests held at a time; further ones end without a word."""
_SLOT_BYTES = 4
_ENDED = "The router ended while it served this request; it is being started again. Ask again."
RETRY_S = 1.0
_QUEUE_BYTES = 2**20
"""Room for what the router says while the supervisor has no core."""
_UNREAD_BYTES, _UNREAD_READS = 65_536, 64
"""Of a request that is not read to its end, so that its client sees the error and no reset."""
DONE = b"data: [DONE]\n\n"


class State(IntEnum):
    """How far an answer is."""

    NONE = 0
    ASKED = 1
    """Not a byte of it has been sent."""
    EVENTS = 2
    """Its events so far are whole, each in chunks of HTTP 1.1."""
    PLAIN_EVENTS = 3
    """The same without chunks."""
    TORN = 4
    """Something was half sent, or can't be added to."""


def last_words(state: State) -> bytes:
    """What still can be said on a socket whose answer is so far."""
    error = ApiError(503, _ENDED, code="router_ended", retry_after_s=RETRY_S)
    body = error.body()
    events = b"data: " + body + b"\n\n" + DONE
    match state:
        case State.ASKED:
            head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            for name, value in error.headers().items():
                head += f"{name}: {value}\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            return head.encode() + body
        case State.EVENTS:
            return f"{len(events):x}\r\n".encode() + events + b"\r\n0\r\n\r\n"
        case State.PLAIN_EVENTS:
            return events
        case _:
            return b""


class _Transport(Protocol):
    def get_write_buffer_size(self) -> int: ...


class _Socket(Protocol):
    def fileno(self) -> int: ...


class Held:
    """One request whose socket the supervisor may have a copy of."""

    def __init__(
        self, keeper: Keeper | None, slot: int, transport: _Transport | None, *, chunked: bool
    ) -> None:
        self._keeper = keeper
        self._slot = slot
        self._transport = transport
        self._whole = State.EVENTS if chunked else State.PLAIN_EVENTS

    def end(self) -> None:
        """It is answered: nothing is noted of it any more."""
        self._keeper = None

    def torn(self) -> None:
        """What is sent from here on can't be added to."""
        if self._keeper is not None:
            self._keeper.note(self._slot, State.TORN)

    def sent(self) -> None:
        """An event was sent: the kernel has it whole, unless a slow reader leaves no room.

        In between the note stays as it is: an event goes in one call, which no signal divides.
        """
        if self._keeper is None or self._transport is None:
            return
        torn = self._transport.get_write_buffer_size() > 0
        self._keeper.note(self._slot, State.TORN if torn else self._whole)


NOT_HELD = Held(None, 0, None, chunked=True)
"""Of a router without a supervisor."""


class Keeper:
    """The router's end: which sockets are held, and how far their answers are."""

    def __init__(self, link_fd: int, table_fd: int) -> None:
        """Takes both descriptors, which the supervisor opened for this process."""
        self._link = socket.socket(fileno=link_fd)
        self._link.setblocking(False)
        self._table = mmap.mmap(table_fd, SLOTS)
        os.close(table_fd)
        self._free = deque(range(SLOTS))
        self._to_release: deque[int] = deque()

    def note(self, slot: int, state: State) -> None:
        """How far the answer of this slot is."""
        self._table[slot] = state

    @contextlib.contextmanager
    def holding(
        self, sock: _Socket | None, transport: _Transport, *, chunked: bool
    ) -> Generator[Held]:
        """While a request is answered, the supervisor has a copy of its socket."""
        slot = self._take(sock)
        if slot is None:
            yield NOT_HELD
            return
        held = Held(self, slot, transport, chunked=chunked)
        if transport.get_write_buffer_size() > 0:
            held.torn()  # the answer before it is still on its way
        try:
            yield held
        finally:
            held.end()
            self.note(slot, State.NONE)
            self._to_release.append(slot)
            self._release()

    def _take(self, sock: _Socket | None) -> int | None:
        self._release()
        if sock is None or not self._free or self._to_release:
            return None
        slot = self._free[0]
        try:
            socket.send_fds(self._link, [_packed(slot)], [sock.fileno()])
        except OSError:
            return None  # it is behind or gone: this request is served without it
        self._free.popleft()
        self.note(slot, State.ASKED)
        return slot

    def _release(self) -> None:
        while self._to_release:
            try:
                self._link.send(_packed(self._to_release[0]))
            except OSError:
                return
            self._free.append(self._to_release.popleft())


class Farewell:
    """The supervisor's end, for one life of the router."""

    def __init__(self) -> None:
        """Raises OSError where there is no room for it."""
        with tempfile.TemporaryFile() as file:
            # Written, so that a disk that fills later has no hole in it to trip over.
            file.write(bytes(SLOTS))
            file.flush()
            self._table = mmap.mmap(file.fileno(), SLOTS)
            self._child_table = os.dup(file.fileno())
        # macOS names packets with an end of file, but has none.
        kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
        self._link, self._child_link = socket.socketpair(socket.AF_UNIX, kind)
        for end in (self._link, self._child_link):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _QUEUE_BYTES)
        self._link.setblocking(False)
        self._held: dict[int, socket.socket] = {}

    @property
    def fds(self) -> tuple[int, int]:
        """What the router's process is to inherit, in the order of `Keeper`'s arguments."""
        return self._child_link.fileno(), self._child_table

    def given(self) -> None:
        """The router's process has them, or will never be."""
        self._child_link.close()
        os.close(self._child_table)

    def hear(self, within_s: float = 0.0) -> None:
        """Take in what the router says; returns with its first words, or after the time."""
        if not select.select([self._link], [], [], within_s)[0]:
            return
        while True:
            try:
                raw, fds, _, _ = socket.recv_fds(self._link, _SLOT_BYTES, 1)
            except OSError:
                return
            if len(raw) != _SLOT_BYTES:
                return  # the other end is closed
            slot = int.from_bytes(raw, "little")
            self._let_go(slot)
            if fds:
                self._held[slot] = socket.socket(fileno=fds[0])

    def say(self) -> int:
        """The router is gone: end what it was answering; how many were told an error."""
        self.hear()
        told = 0
        for slot in list(self._held):
            words = last_words(State(self._table[slot]))
            with contextlib.suppress(OSError):
                # The router's sockets never wait, nor does a copy: who reads nothing is not told.
                told += bool(words) and _said(self._held[slot], words)
            self._let_go(slot)
        self._link.close()
        self._table.close()
        return told

    def _let_go(self, slot: int) -> None:
        known = self._held.pop(slot, None)
        if known is not None:
            known.close()


def _said(sock: socket.socket, words: bytes) -> bool:
    """Say the last words and read off what the client still sends; raises OSError."""
    whole = sock.send(words) == len(words)
    sock.shutdown(socket.SHUT_WR)
    for _ in range(_UNREAD_READS):
        with contextlib.suppress(OSError):
            if sock.recv(_UNREAD_BYTES, socket.MSG_DONTWAIT):
                continue
        break
    return whole


def _packed(slot: int) -> bytes:
    return slot.to_bytes(_SLOT_BYTES, "little")
