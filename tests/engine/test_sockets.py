"""Who is let in, and what a listening socket bears: real sockets over loopback."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq
from homesplit_engine.config import Keys
from homesplit_engine.wire import sockets

WAIT_MS = 60_000
QUIET_MS = 500


def keys(name: str) -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(name=name, public=public.decode(), secret=secret.decode(), allowed={})


SERVER, ROUTER, STRANGER = keys("server"), keys("router"), keys("stranger")


@contextmanager
def listening(max_bytes: int = 1000) -> Generator[tuple[zmq.Socket[Any], str]]:
    context = zmq.Context()
    gate = sockets.Gatekeeper(context, {"control": {"router": ROUTER.public}})
    server = sockets.listening_socket(
        context, keys=SERVER, domain="control", max_bytes=max_bytes, hwm=10
    )
    yield server, sockets.bind(server, "127.0.0.1", 0)
    server.close()
    gate.stop()
    context.destroy(linger=0)


@contextmanager
def connected(
    endpoint: str, who: Keys, server_key: str = SERVER.public
) -> Generator[zmq.Socket[Any]]:
    context = zmq.Context()
    client = sockets.connecting_socket(
        context, keys=who, server_key=server_key, max_bytes=1000, hwm=10
    )
    client.connect(endpoint)
    yield client
    context.destroy(linger=0)


def test_the_allowed_key_is_let_in_and_named() -> None:
    with listening() as (server, endpoint), connected(endpoint, ROUTER) as client:
        client.send(b"hello")
        assert server.poll(WAIT_MS)
        identity, frame = server.recv_multipart(copy=False)
        assert sockets.peer_name(frame) == "router"
        server.send_multipart([identity.bytes, b"welcome"])
        assert client.poll(WAIT_MS)
        assert client.recv() == b"welcome"


def test_another_key_is_not_let_in() -> None:
    with listening() as (server, endpoint), connected(endpoint, STRANGER) as client:
        client.send(b"hello")
        assert not server.poll(QUIET_MS)


def test_a_server_with_another_key_is_not_talked_to() -> None:
    with (
        listening() as (server, endpoint),
        connected(endpoint, ROUTER, server_key=STRANGER.public) as client,
    ):
        client.send(b"hello")
        assert not server.poll(QUIET_MS)


def test_an_oversized_message_never_arrives() -> None:
    with listening(max_bytes=1000) as (server, endpoint), connected(endpoint, ROUTER) as client:
        client.send(b"x" * 2000)
        # Small ones follow until one comes: those that are sent before the break go down with it.
        for _ in range(WAIT_MS // QUIET_MS):
            client.send(b"x" * 50)
            if server.poll(QUIET_MS):
                break
        assert len(server.recv_multipart(zmq.NOBLOCK)[1]) == 50


def test_a_port_that_is_taken_is_named() -> None:
    with listening() as (_, endpoint):
        port = int(endpoint.rsplit(":", 1)[1])
        other = zmq.Context().socket(zmq.ROUTER)
        with pytest.raises(sockets.SocketError, match=str(port)):
            sockets.bind(other, "127.0.0.1", port)
        other.close()
