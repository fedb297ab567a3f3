"""The control socket's thread: answers the router at once, also while a long step computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from homesplit_engine.config import Keys
from homesplit_engine.wire import sockets
from homesplit_engine.wire.messages import (
    MAX_MESSAGE_BYTES,
    Hello,
    ProtocolError,
    ToRouter,
    ToWorker,
    decode_to_worker,
    encode,
)
from homesplit_engine.wire.wake import Waker

TICK_MS = 250
"""How often the thread looks after time's passing when nothing comes."""


class ControlDoor:
    """Receives the router's messages and sends it what any thread has to say."""

    def __init__(
        self,
        context: zmq.Context[Any],
        *,
        keys: Keys,
        host: str,
        port: int,
        heard: Callable[[ToWorker], Sequence[ToRouter]],
        router_lost: Callable[[], None],
        tick: Callable[[], None],
        reached: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`heard` answers a message at once; `tick` is called a few times a second.

        `reached` is told the descriptor of the connection that the router speaks over.
        """
        self._reached = reached
        self._heard = heard
        self._router_lost = router_lost
        self._tick = tick
        self._socket = sockets.listening_socket(
            context,
            keys=keys,
            domain=sockets.CONTROL_DOMAIN,
            max_bytes=MAX_MESSAGE_BYTES,
            hwm=sockets.CONTROL_HWM,
        )
        self.endpoint = sockets.bind(self._socket, host, port)
        # Bounded: with the router gone its oldest messages are worthless anyway.
        self._outbox: deque[ToRouter] = deque(maxlen=sockets.CONTROL_HWM)
        self._waker = Waker()
        self._router: bytes | None = None
        """Whoever said Hello last. Others are not heard: after a break the router must learn from
        our silence that what it had asked is forgotten, and greet again."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop_soon(self) -> None:
        """Asks the thread to send what is still to be sent, close its socket, and end."""
        self._stopping.set()
        self._waker.wake()

    def join(self) -> None:
        """Waits for the thread's end."""
        self._thread.join(sockets.JOIN_S)

    def tell(self, message: ToRouter) -> None:
        """Queues a message to the router; callable from any thread."""
        self._outbox.append(message)
        self._waker.wake()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.fd, zmq.POLLIN)
        while True:
            poller.poll(TICK_MS)
            self._waker.clear()
            while self._socket.poll(0):
                self._receive(self._socket.recv_multipart(copy=False))
            while self._outbox:
                self._send(self._outbox.popleft())
            self._tick()
            if self._stopping.is_set() and not self._outbox:
                break
        # What was handed to the socket still goes out; nothing waits longer than this.
        self._socket.close(linger=500)
        self._waker.close()

    def _receive(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:
            return
        identity, raw = (frame.bytes for frame in frames)
        try:
            message = decode_to_worker(raw)
        except ProtocolError:
            return
        if isinstance(message, Hello):
            self._router = identity
        if identity != self._router:
            return
        self._reached(int(frames[1].get(zmq.SRCFD)))
        for answer in self._heard(message):
            self._send(answer)

    def _send(self, message: ToRouter) -> None:
        if self._router is None:
            return
        try:
            self._socket.send_multipart([self._router, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            # Unreachable, or so far behind that it is as good as that.
            self._router = None
            self._outbox.clear()
            self._router_lost()
