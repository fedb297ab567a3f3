"""The door of the router's messages: whoever comes back after a break has to greet again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
import zmq
from homesplit_engine.control import ControlDoor
from homesplit_engine.keys import make_keys
from homesplit_engine.wire.messages import (
    Failed,
    Hello,
    Ping,
    ToRouter,
    ToWorker,
    decode_to_router,
    encode,
)
from homesplit_engine.wire.sockets import CONTROL_DOMAIN, Gatekeeper, connecting_socket

WAIT_MS = 60_000
SILENCE_MS = 300


class Door:
    """A control door that answers every message with its name, and routers that come to it."""

    def __init__(self) -> None:
        self.keys = make_keys(["A"])
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        allowed = {"router": self.keys["router"].public}
        self.gate = Gatekeeper(self.context, {CONTROL_DOMAIN: allowed})
        self.lost = threading.Event()
        self.door = ControlDoor(
            self.context,
            keys=self.keys["A"],
            host="127.0.0.1",
            port=0,
            heard=self._heard,
            router_lost=self.lost.set,
            tick=lambda: None,
        )
        self.door.start()

    def _heard(self, message: ToWorker) -> Sequence[ToRouter]:
        return [Failed(request_id="r", kind="engine", what=type(message).__name__)]

    def router(self) -> zmq.Socket[bytes]:
        """A connection as the router has it."""
        socket = connecting_socket(
            self.context,
            keys=self.keys["router"],
            server_key=self.keys["A"].public,
            max_bytes=2**20,
            hwm=10,
        )
        socket.connect(self.door.endpoint)
        return socket

    def stop(self) -> None:
        """End everything."""
        self.door.stop_soon()
        self.door.join()
        self.gate.stop()
        self.context.destroy(linger=0)


@pytest.fixture
def door() -> Iterator[Door]:
    running = Door()
    yield running
    running.stop()


def said(socket: zmq.Socket[bytes]) -> str:
    """What the door answered last."""
    assert socket.poll(WAIT_MS)
    answer = decode_to_router(socket.recv())
    assert isinstance(answer, Failed)
    return answer.what


def test_a_router_that_was_out_of_reach_is_not_heard_until_it_greets_again(door: Door) -> None:
    first = door.router()
    first.send(encode(Hello()))
    assert said(first) == "Hello"
    first.send(encode(Ping(ping_id=1)))
    assert said(first) == "Ping"
    first.close(linger=0)
    while not door.lost.wait(0.01):
        door.door.tell(Failed(request_id="r", kind="engine", what="for nobody"))
    again = door.router()
    again.send(encode(Ping(ping_id=2)))
    assert not again.poll(SILENCE_MS)
    again.send(encode(Hello()))
    assert said(again) == "Hello"
    again.send(encode(Ping(ping_id=3)))
    assert said(again) == "Ping"
    again.close(linger=0)
