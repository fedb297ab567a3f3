"""ZeroMQ sockets as every process here opens them: closed, bounded, and never waiting for ever.

The control door has CURVE: it lets in exactly the keys it was told (ZAP), and whoever connects
names the key it expects to find. The KV door has a password, which keeps strangers out before
they can send a byte; what goes through it is sealed (`wire/seal.py`). `Gatekeeper` answers
ZeroMQ's question "may this one come in?" and must be started before the first listening socket
of its context binds.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from zmq.utils import z85

from homesplit_engine.config import Keys

CONTROL_DOMAIN = "control"
KV_DOMAIN = "kv"

CONTROL_HWM = 10_000
"""Control messages queued for one peer: about a minute of steps."""
KV_HWM = 4
"""Frames queued for one peer: 4 MiB; more would only hide how fast the link is."""
HEARTBEAT_MS = 2_000
HANDSHAKE_MS = 5_000
SEND_TIMEOUT_MS = 1_000
JOIN_S = 2.0
"""How long a thread of sockets may take to end: none waits for a peer that long."""

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]


class SocketError(Exception):
    """A socket can't be opened as asked; the message says which address and why."""


class Gatekeeper:
    """Lets exactly those allowed into the listening sockets of one context (ZAP).

    `allowed` maps a domain (`control`) to peers: name to public CURVE key (Z85); the name is
    afterwards known to the receiver of a message by `peer_name`. `passwords` maps a domain (`kv`)
    to the one password that opens it.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        allowed: Mapping[str, Mapping[str, str]],
        passwords: Mapping[str, str] | None = None,
    ) -> None:
        self._names = {
            domain: {z85.decode(key): name for name, key in peers.items()}
            for domain, peers in allowed.items()
        }
        self._passwords = {name: word.encode() for name, word in (passwords or {}).items()}
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ENDPOINT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="gatekeeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes its socket."""
        self.stop_soon()
        self.join()

    def stop_soon(self) -> None:
        """Asks the thread to close its socket and end."""
        self._stopping.set()

    def join(self) -> None:
        """Waits for the thread's end."""
        self._thread.join(JOIN_S)

    def _answer(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(200):
                self._socket.send_multipart(self._verdict(self._socket.recv_multipart()))
        self._socket.close()

    def _verdict(self, question: list[bytes]) -> list[bytes]:
        version, request_id, domain, _address, _identity, mechanism, *credentials = question
        name = None
        if version == _ZAP_VERSION:
            name = self._name(domain.decode(errors="replace"), mechanism, credentials)
        if name is None:
            return [_ZAP_VERSION, request_id, b"400", b"this key is not let in here", b"", b""]
        return [_ZAP_VERSION, request_id, b"200", b"OK", name.encode(), b""]

    def _name(self, domain: str, mechanism: bytes, credentials: list[bytes]) -> str | None:
        right = self._passwords.get(domain)
        if mechanism == b"CURVE" and len(credentials) == 1:
            return self._names.get(domain, {}).get(credentials[0])
        if mechanism == b"PLAIN" and len(credentials) == 2 and right is not None:
            name, password = credentials
            if hmac.compare_digest(password, right):
                return name.decode(errors="replace")
        return None


def listening_socket(
    context: zmq.Context[Any], *, keys: Keys, domain: str, max_bytes: int, hwm: int
) -> zmq.Socket[Any]:
    """A ROUTER socket with our CURVE identity; messages over `max_bytes` cut the peer off."""
    socket = _router(context, domain, max_bytes, hwm)
    socket.curve_server = True
    socket.curve_secretkey = keys.secret.encode()
    return socket


def kv_listening_socket(context: zmq.Context[Any], *, max_bytes: int, hwm: int) -> zmq.Socket[Any]:
    """A ROUTER socket that the KV door's password opens; only what is sealed is trusted."""
    socket = _router(context, KV_DOMAIN, max_bytes, hwm)
    socket.plain_server = True
    return socket


def kv_connecting_socket(
    context: zmq.Context[Any], *, name: str, password: str, max_bytes: int, hwm: int
) -> zmq.Socket[Any]:
    """A DEALER socket that opens a peer's KV door as the box `name`."""
    socket = _bounded(context.socket(zmq.DEALER), max_bytes, hwm)
    socket.plain_username = name.encode()
    socket.plain_password = password.encode()
    socket.setsockopt(zmq.ROUTING_ID, name.encode())
    return socket


def connecting_socket(
    context: zmq.Context[Any], *, keys: Keys, server_key: str, max_bytes: int, hwm: int
) -> zmq.Socket[Any]:
    """A DEALER socket that will only talk to whoever holds `server_key`'s secret."""
    socket = _bounded(context.socket(zmq.DEALER), max_bytes, hwm)
    socket.curve_serverkey = server_key.encode()
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.setsockopt(zmq.ROUTING_ID, keys.name.encode())
    return socket


def bind(socket: zmq.Socket[Any], host: str, port: int) -> str:
    """Listens on one interface only; port 0 takes a free one. Returns the endpoint."""
    shown = f"[{host}]" if ":" in host else host
    if ":" in host:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(f"tcp://{shown}:{port or '*'}")
    except zmq.ZMQError as error:
        raise SocketError(
            f"can't listen on {shown}:{port}: {error.strerror}; choose another port or address"
        ) from error
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bytes(endpoint).rstrip(b"\0").decode()


def has_news(socket: zmq.Socket[Any]) -> bool:
    """Whether a message can be received at once; cheaper than `poll(0)`, which makes a poller."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def try_send(socket: zmq.Socket[Any], parts: Sequence[Any]) -> bool:
    """Sends a message if the peer takes one more now; long parts are not copied."""
    try:
        socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return False
    return True


def peer_name(frame: zmq.Frame) -> str:
    """The name under which the sender of a received frame was let in."""
    return str(frame.get("User-Id"))


def _router(context: zmq.Context[Any], domain: str, max_bytes: int, hwm: int) -> zmq.Socket[Any]:
    socket = _bounded(context.socket(zmq.ROUTER), max_bytes, hwm)
    socket.zap_domain = domain.encode()
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # A peer that restarts under its old name takes the place of its dead connection.
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    return socket


def _bounded(socket: zmq.Socket[Any], max_bytes: int, hwm: int) -> zmq.Socket[Any]:
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    socket.setsockopt(zmq.SNDHWM, hwm)
    socket.setsockopt(zmq.RCVHWM, hwm)
    socket.setsockopt(zmq.SNDTIMEO, SEND_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
    return socket
