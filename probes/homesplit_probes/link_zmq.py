"""The same way measured through ZeroMQ, the hand-off's own kind of socket, plain and sealed.

Sealed is what the hand-off does: AES-256-GCM on each frame at one end, opened at the other.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any, Callable, Dict, List, Optional

from homesplit_probes.report import Figure, figure, unknown

MESSAGE_BYTES = 4 << 20
FRAME_BYTES = 512 << 10
"""A sealed message is as long as a hand-off's frame."""
_SMALLEST_BYTES = 64 << 10
_HIGH_WATER = 4
_WARM_S = 0.25
_WINDOW_S = 0.2
_NO_ZMQ = "pyzmq is not on this box yet; deployment brings it, then probe again"
_NO_CIPHER = "cryptography is not on this box yet; deployment brings it, then probe again"

Connect = Callable[[], socket.socket]
Say = Callable[[str], None]


def _zmq() -> Any:
    try:
        import zmq
    except (ImportError, OSError):
        return None
    return zmq


class _Seal:
    """AES-256-GCM as the hand-off seals its frames; for timing, so the key may be seen."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher: Any = AESGCM(key)
        self._sent = self._heard = 0

    def close(self, data: bytes) -> bytes:
        """The next message, sealed."""
        self._sent += 1
        return self._cipher.encrypt(struct.pack(">IQ", 0, self._sent), data, None)

    def open(self, sealed: Any) -> bytes:
        """The next message that came, opened."""
        self._heard += 1
        return self._cipher.decrypt(struct.pack(">IQ", 0, self._heard), sealed, None)


def _missing(sealed: bool) -> str:
    """Why this box can't, empty when it can."""
    if _zmq() is None:
        return _NO_ZMQ
    try:
        if sealed:
            _Seal(bytes(32))
    except (ImportError, OSError):
        return _NO_CIPHER
    return ""


def serve(peer: socket.socket, sealed: bool, seconds: float, piece: int) -> None:
    """The listener's side: bind on the address the peer came to, then receive, then send."""
    zmq = _zmq()
    why = _missing(sealed)
    if why:
        _tell(peer, {"why": why})
        return
    address = peer.getsockname()[0]
    context = zmq.Context()
    sock = context.socket(zmq.PAIR)
    try:
        _limits(zmq, sock)
        key = os.urandom(32)
        port = sock.bind_to_random_port("tcp://" + _zmq_address(address))
        _tell(peer, {"port": port, "key": key.hex()})
        rates = _receive(zmq, sock, seconds, _Seal(key) if sealed else None)
        _tell(peer, {"rates": rates})
        _send(zmq, sock, seconds + 0.5, piece, _Seal(key) if sealed else None)
    finally:
        sock.close(0)
        context.term()


def figures(
    connect: Connect, address: str, kind: str, seconds: float, bytes_per_s: float, say: Say
) -> Dict[str, Figure]:
    """`<kind>_out` and `<kind>_in` (kind `zmq` or `sealed`) as figures or why there are none."""
    sealed = kind == "sealed"
    piece = piece_bytes(bytes_per_s)
    if sealed:
        piece = min(piece, FRAME_BYTES)
    say("moving bytes by ZeroMQ" + (", sealed" if sealed else ""))
    try:
        out, back = _both_ways(connect, address, sealed, seconds, piece)
    except (OSError, ValueError, KeyError) as error:
        out = back = unknown("ZeroMQ failed: %s" % error)
    return {kind + "_out": out, kind + "_in": back}


def piece_bytes(bytes_per_s: float) -> int:
    """A message of at most a twentieth of a second, so that slow links give several windows."""
    if not bytes_per_s:
        return MESSAGE_BYTES
    return int(min(MESSAGE_BYTES, max(_SMALLEST_BYTES, bytes_per_s / 20)))


def _both_ways(
    connect: Connect, address: str, sealed: bool, seconds: float, piece: int
) -> "tuple[Figure, Figure]":
    zmq = _zmq()
    why = _missing(sealed)
    if why:
        return unknown(why), unknown(why)
    kind = "sealed" if sealed else "plain"
    method = "ZeroMQ %s, %d KiB messages, timed by the receiver" % (kind, piece >> 10)
    with connect() as peer:
        peer.settimeout(seconds + 4)
        wish = struct.pack("!cBHd", b"Z", int(sealed), 0, seconds)
        peer.sendall(wish + struct.pack("!I", piece))
        told = _hear(peer)
        if "why" in told:
            why = "on the other box: %s" % told["why"]
            return unknown(why), unknown(why)
        context = zmq.Context()
        sock = context.socket(zmq.PAIR)
        try:
            _limits(zmq, sock)
            key = bytes.fromhex(told["key"])
            sock.connect("tcp://%s:%d" % (_zmq_address(address), told["port"]))
            _send(zmq, sock, seconds, piece, _Seal(key) if sealed else None)
            out = _hear(peer)["rates"]
            back = _receive(zmq, sock, seconds, _Seal(key) if sealed else None)
        finally:
            sock.close(0)
            context.term()
    return figure(out, "B/s", method), figure(back, "B/s", method)


def _limits(zmq: Any, sock: Any) -> None:
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.SNDHWM, _HIGH_WATER)
    sock.setsockopt(zmq.RCVHWM, _HIGH_WATER)
    sock.setsockopt(zmq.MAXMSGSIZE, 2 * MESSAGE_BYTES)
    sock.setsockopt(zmq.IPV6, 1)


def _zmq_address(address: str) -> str:
    return "[%s]" % address if ":" in address else address


def _send(zmq: Any, sock: Any, seconds: float, piece: int, seal: Optional[_Seal]) -> None:
    data, deadline = bytes(piece), time.perf_counter() + seconds
    poller = zmq.Poller()
    poller.register(sock, zmq.POLLOUT)
    while time.perf_counter() < deadline:
        if poller.poll(100):
            sock.send(data if seal is None else seal.close(data), copy=False)


def _receive(zmq: Any, sock: Any, seconds: float, seal: Optional[_Seal]) -> List[float]:
    """Whole-message rates, each over at least a fifth of a second."""
    poller = zmq.Poller()
    poller.register(sock, zmq.POLLIN)
    begin = time.perf_counter()
    window, got, rates = 0.0, 0, []
    while time.perf_counter() - begin < seconds:
        if not poller.poll(100):
            continue
        came = sock.recv(copy=False).buffer
        count = len(came if seal is None else seal.open(came))
        now = time.perf_counter()
        if not window:
            if now - begin >= _WARM_S:
                window = now
            continue
        got += count
        if now - window >= _WINDOW_S:
            rates.append(got / (now - window))
            window, got = now, 0
    return rates


def _tell(peer: socket.socket, value: Dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    peer.sendall(struct.pack("!I", len(raw)) + raw)


def _hear(peer: socket.socket) -> Dict[str, Any]:
    size = struct.unpack("!I", _exactly(peer, 4))[0]
    if size > 1 << 16:
        raise ValueError("the other box's answer is too long")
    return json.loads(_exactly(peer, size))


def _exactly(peer: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = peer.recv(count - len(got))
        if not piece:
            raise OSError("the other box ended the connection")
        got += piece
    return got
