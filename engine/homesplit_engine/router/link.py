"""The router's connection to one worker: liveness, clock, messages both ways."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any, Protocol, cast

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from homesplit_engine.config import Keys, WorkerAddress
from homesplit_engine.records import WorkerStatus
from homesplit_engine.router.clocks import ClockOffset
from homesplit_engine.wire.messages import (
    MAX_MESSAGE_BYTES,
    WIRE_VERSION,
    Cancel,
    Hello,
    Ping,
    Pong,
    ProtocolError,
    Ready,
    ToRouter,
    ToWorker,
    decode_to_router,
    encode,
)
from homesplit_engine.wire.sockets import CONTROL_HWM, connecting_socket
from homesplit_engine.wire.tcp import TcpSeen, look

log = logging.getLogger("homesplit.router")
BEATS_PER_DETECTION = 4
"""Pings within one detection time: one or two late answers are no loss."""
UNREAD_S = 0.01
"""For what has come and is not read yet."""
MAX_OWED_CANCELS = 10_000
_CLOSED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class LinkOwner(Protocol):
    """Who hears of what one link brings."""

    def on_ready(self, link: WorkerLink) -> None:
        """The worker answers (again), and says who it is."""
        ...

    def on_lost(self, link: WorkerLink, why: str) -> None:
        """The worker no longer answers."""
        ...

    def on_message(self, link: WorkerLink, message: ToRouter) -> None:
        """Anything else that it says."""
        ...


class WorkerLink:
    """One worker behind an encrypted, authenticated socket that outlives the worker's restarts."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: WorkerAddress,
        keys: Keys,
        owner: LinkOwner,
        detection_s: float,
    ) -> None:
        self.address = address
        self.alive = False
        self.ready: Ready | None = None
        self.status: WorkerStatus | None = None
        self.clock = ClockOffset()
        self.why: str | None = f"{address.control_endpoint} has not answered yet"
        self._owner = owner
        self._detection_s = detection_s
        self._heard_s = time.monotonic()
        self._pings: dict[int, float] = {}
        self._next_ping = 0
        self._owed_cancels: list[str] = []
        self._fd: int | None = None
        """The connection's, while there is one."""
        self._reached = asyncio.Event()
        """Set when a connection is made: who is there is greeted at once."""
        self._socket = _client_socket(context, address, keys)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | _CLOSED
        )
        self._connect()
        self._tasks = [
            asyncio.create_task(work, name=f"{name} {address.box}")
            for name, work in (
                ("receive", self._receive()),
                ("beat", self._beat()),
                ("watch", self._watch()),
            )
        ]

    @property
    def box(self) -> str:
        """The worker's name."""
        return self.address.box

    def tcp(self) -> TcpSeen | None:
        """What the kernel knows of the connection; None where it doesn't tell."""
        return look(self._fd)

    def send(self, message: ToWorker) -> bool:
        """Hand a message to the socket without waiting; False when it takes none now."""
        sent = cast("asyncio.Future[Any]", self._socket.send(encode(message), zmq.NOBLOCK))
        if sent.done() and sent.exception() is None:
            return True
        sent.cancel()
        return False

    def cancel(self, wire_id: str) -> None:
        """Tell the worker to forget a request: now, and once more when it is back."""
        told = self.send(Cancel(request_id=wire_id))
        if not (told and self.alive) and len(self._owed_cancels) < MAX_OWED_CANCELS:
            self._owed_cancels.append(wire_id)

    async def close(self) -> None:
        """End the tasks and the socket."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    # -------------------------------------------------------------- hearing

    async def _receive(self) -> None:
        while True:
            raw: bytes = await self._socket.recv()
            self._heard_s = time.monotonic()
            try:
                message = decode_to_router(raw)
            except ProtocolError as error:
                log.warning("%s: a message that can't be read was dropped: %s", self.box, error)
                continue
            try:
                self._take(message)
            except Exception:  # one bad message must not deafen the router
                log.exception("%s: %s could not be dealt with", self.box, type(message).__name__)

    def _take(self, message: ToRouter) -> None:
        match message:
            case Ready():
                self._welcome(message)
            case Pong():
                self._note(message)
                self._owner.on_message(self, message)
            case _ if self.alive:
                self._owner.on_message(self, message)
            case _:
                # Late words of a worker that was given up: its requests live elsewhere now.
                log.info("%s: late %s dropped", self.box, type(message).__name__)

    def _welcome(self, ready: Ready) -> None:
        if ready.wire_version != WIRE_VERSION or ready.box != self.box:
            self.why = _stranger(self.box, ready)
            return
        if self.alive and self.ready == ready:
            return
        self.alive, self.ready, self.why = True, ready, None
        owed, self._owed_cancels = self._owed_cancels, []
        for wire_id in owed:
            self.send(Cancel(request_id=wire_id))
        self._owner.on_ready(self)

    def _note(self, pong: Pong) -> None:
        sent_s = self._pings.pop(pong.ping_id, None)
        if sent_s is not None:
            self.clock.learn(sent_s, self._heard_s, pong.status.clock_s)
        self.status = pong.status

    # -------------------------------------------------------------- liveness

    async def _beat(self) -> None:
        """Ping, greet who is not known, and judge silence; all by the router's own clock."""
        pause_s = self._detection_s / BEATS_PER_DETECTION
        ping_s = wake_s = may_judge_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            if now_s - wake_s > pause_s:
                # A router that was itself asleep has not listened, so it may not judge yet.
                may_judge_s = now_s + pause_s
            if self.alive and now_s >= max(self._silence_s, may_judge_s):
                if self._has_unread():
                    # It has spoken; this process has not come to hear it yet.
                    await asyncio.sleep(UNREAD_S)
                    continue
                self._lose(f"silent for {now_s - self._heard_s:.1f} s; asleep, stopped or cut off?")
            if now_s >= ping_s:
                if not self.alive:
                    self._connect_anew(now_s)
                    self.send(Hello())
                self._ping()
                ping_s = now_s + pause_s
            wake_s = min(ping_s, max(self._silence_s, may_judge_s)) if self.alive else ping_s
            if await self._is_reached(wake_s - now_s):
                ping_s = 0.0

    def _connect(self) -> None:
        self._connected_s = time.monotonic()
        self._socket.connect(self.address.control_endpoint)

    def _connect_anew(self, now_s: float) -> None:
        """ZeroMQ gives a connection up for good over which came what is no message."""
        if self._fd is None and now_s - self._connected_s >= self._detection_s:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self.address.control_endpoint)
            self._connect()

    def _has_unread(self) -> bool:
        events = cast("int", self._socket.get(zmq.EVENTS))
        return bool(events & zmq.POLLIN)

    async def _is_reached(self, within_s: float) -> bool:
        """Wait so long at most; whether a connection was made meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, within_s)):
                await self._reached.wait()
        reached = self._reached.is_set()
        self._reached.clear()
        return reached

    @property
    def _silence_s(self) -> float:
        """When this worker has been silent for the detection time."""
        return self._heard_s + self._detection_s

    def _ping(self) -> None:
        self._next_ping += 1
        if self.send(Ping(ping_id=self._next_ping)):
            self._pings[self._next_ping] = time.monotonic()
        while len(self._pings) > 64:
            del self._pings[next(iter(self._pings))]

    async def _watch(self) -> None:
        """A closed connection is a loss at once: a killed worker needn't be waited out."""
        while True:
            told = await recv_monitor_message(self._monitor)
            event = told["event"]
            if event == zmq.EVENT_CONNECTED:
                self._fd = int(told["value"])
                continue
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._reached.set()
                continue
            self._fd = None
            if self.alive:
                self._lose("the connection closed; has the worker ended?")

    def _lose(self, why: str) -> None:
        self.alive, self.why = False, why
        self._pings.clear()
        self.clock.forget()
        self._owner.on_lost(self, why)


def _client_socket(
    context: zmq.asyncio.Context, address: WorkerAddress, keys: Keys
) -> zmq.asyncio.Socket:
    socket = connecting_socket(
        context,
        keys=keys,
        server_key=address.public_key,
        max_bytes=MAX_MESSAGE_BYTES,
        hwm=CONTROL_HWM,
    )
    # Nothing is queued for a peer that is not there: it would arrive long out of date.
    socket.setsockopt(zmq.IMMEDIATE, 1)
    return cast("zmq.asyncio.Socket", socket)


def _stranger(box: str, ready: Ready) -> str:
    if ready.box != box:
        return f"a worker named {ready.box!r} answered where {box!r} was expected"
    return f"speaks wire version {ready.wire_version}, this router {WIRE_VERSION}: deploy again"
