"""What the way between two boxes carries: TCP both ways, small messages, ZeroMQ plain and sealed.

One box listens on named addresses of its own, the other connects and drives. A random token,
given to both on standard input, tells the peers apart from strangers. The receiving side times.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import json
import select
import socket
import struct
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from homesplit_probes.budget import OVER, Budget
from homesplit_probes.link_busy import Busy
from homesplit_probes.report import Figure, figure, unknown

_PIECE = 128 * 1024
"""As iperf3 does, so that both figures mean the same: with twice this an unshaped link of one
machine's own carried 8 to 12 % more (`tests/bench/results/probes.md`)."""
_WARM_S = 0.3
_WINDOW_S = 0.2
_TOKEN_BYTES = 64
_HELLO_S = 3.0
_CONNECT_S = 2.0
_PINGS = 400
_REST_S = 1e-3
"""Between two messages, as between the tokens of an answer: both ends sleep when one comes."""
LINK_S = 12.5
"""For all of a link's figures, from the first try of its addresses on."""

NOTHING_LONG = (
    "small messages get through and nothing longer does: something on the way may not carry "
    "packets as long as these boxes send (set the MTU of both to 1500)"
)

_groups = itertools.count(1)

Say = Callable[[str], None]


class LinkError(Exception):
    """The peer is gone, is not ours, or took too long."""


def _exactly(sock: socket.socket, count: int) -> bytes:
    """`count` bytes; raises LinkError when the peer ends before."""
    got = bytearray()
    while len(got) < count:
        piece = sock.recv(count - len(got))
        if not piece:
            raise LinkError("the other box ended the connection")
        got += piece
    return bytes(got)


def receive_rate(socks: Sequence[socket.socket], seconds: float) -> List[float]:
    """Payload bytes per second in windows over `seconds`, after a warm-up, all streams together."""
    buffer = memoryview(bytearray(_PIECE))
    poll = select.poll()
    by_handle = dict((sock.fileno(), sock) for sock in socks)
    for sock in socks:
        sock.setblocking(False)
        poll.register(sock, select.POLLIN)
    begin = time.perf_counter()
    window, got, rates = begin + _WARM_S, -1, []
    while True:
        ready = poll.poll(1000)
        now = time.perf_counter()
        if not ready and now - begin > seconds + 1:
            break
        for handle, _ in ready:
            try:
                count = by_handle[handle].recv_into(buffer)
            except BlockingIOError:
                continue
            except OSError:
                count = 0
            if count == 0:
                poll.unregister(handle)
                del by_handle[handle]
            elif got >= 0:
                got += count
        now = time.perf_counter()
        if got < 0:
            if now >= window:
                window, got = now, 0
        elif now - window >= _WINDOW_S:
            rates.append(got / (now - window))
            window, got = now, 0
        if now - begin >= seconds or not by_handle:
            break
    for sock in socks:
        sock.setblocking(True)
    return rates


def send_until_closed(sock: socket.socket, seconds: float) -> None:
    """Send as fast as the peer takes it, until it closes or `seconds` are over."""
    data = memoryview(bytes(_PIECE))
    deadline = time.perf_counter() + seconds
    sock.settimeout(seconds)
    try:
        while time.perf_counter() < deadline:
            sock.sendall(data)
    except OSError:
        return


class Listener:
    """Waits for the peer on exactly the given addresses, serves its wishes, and ends."""

    def __init__(self, addresses: Sequence[str], token: bytes, seconds: float) -> None:
        self._token = token
        self._deadline = time.monotonic() + seconds
        self._socks = [_bound(address) for address in addresses]
        self._groups: Dict[int, List[socket.socket]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()

    def ports(self) -> List[Tuple[str, int]]:
        """Where it listens."""
        return [sock.getsockname()[:2] for sock in self._socks]

    def serve(self) -> None:
        """Accept until the peer says that it is done, or the deadline."""
        while not self._over.is_set() and time.monotonic() < self._deadline:
            ready, _, _ = select.select(self._socks, [], [], 0.2)
            for sock in ready:
                peer, _ = sock.accept()
                threading.Thread(target=self._serve_one, args=(peer,), daemon=True).start()
        for sock in self._socks:
            sock.close()

    def _serve_one(self, peer: socket.socket) -> None:
        try:
            with peer:
                peer.settimeout(_HELLO_S)
                if not hmac.compare_digest(_exactly(peer, _TOKEN_BYTES), self._token):
                    return
                peer.sendall(b"+")
                peer.settimeout(max(1.0, self._deadline - time.monotonic()))
                self._obey(peer)
        except (OSError, LinkError):
            return

    def _obey(self, peer: socket.socket) -> None:
        """S: send to it; R: receive from it and tell the windows; E: echo; B: be busy; Q: end."""
        wish, streams, group, seconds = struct.unpack("!cBHd", _exactly(peer, 12))
        seconds = min(seconds, 20.0)
        if wish == b"S":
            send_until_closed(peer, seconds + 2)
        elif wish == b"R":
            self._receive(peer, streams, group, seconds)
        elif wish == b"E":
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                peer.sendall(_exactly(peer, 64))
        elif wish == b"B":
            with Busy():
                peer.sendall(b"+")
                peer.settimeout(seconds)
                peer.recv(1)
        elif wish == b"Z":
            self._zmq(peer, bool(streams), seconds)
        elif wish == b"Q":
            self._over.set()

    def _receive(self, peer: socket.socket, streams: int, group: int, seconds: float) -> None:
        """The last stream of a group to come reads them all and answers on the first."""
        with self._lock:
            members = self._groups.setdefault(group, [])
            members.append(peer)
            full = len(members) == streams
        if not full:
            # The thread that reads this socket closes it; this one only keeps it open till then.
            self._over.wait(seconds + 3)
            return
        rates = receive_rate(members, seconds)
        answer = json.dumps(rates).encode()
        for member in members:
            member.settimeout(_HELLO_S)
            member.sendall(struct.pack("!I", len(answer)) + answer)
        for member in members:
            _drain(member)

    def _zmq(self, peer: socket.socket, encrypted: bool, seconds: float) -> None:
        from homesplit_probes import link_zmq

        piece = min(struct.unpack("!I", _exactly(peer, 4))[0], link_zmq.MESSAGE_BYTES)
        link_zmq.serve(peer, encrypted, seconds, piece)


def _drain(sock: socket.socket) -> None:
    """Read on until the peer has cut the stream: closing before would lose the answer to it."""
    deadline = time.monotonic() + _HELLO_S
    try:
        while time.monotonic() < deadline and sock.recv(_PIECE):
            continue
    except OSError:
        return
    finally:
        sock.close()


def _cut(sock: socket.socket) -> None:
    """Close at once and drop what is still to be sent, which would disturb what comes next."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def _bound(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    info = socket.getaddrinfo(address, 0, family, socket.SOCK_STREAM)
    sock.bind(info[0][4])
    sock.listen(16)
    return sock


def connect(address: str, port: int, token: bytes) -> socket.socket:
    """A connection to the listener that has shown itself to be ours; raises LinkError."""
    try:
        sock = socket.create_connection((address, port), _CONNECT_S)
        sock.settimeout(_HELLO_S)
        sock.sendall(token)
        if _exactly(sock, 1) != b"+":
            raise LinkError("%s is not our listener" % address)
    except OSError as error:
        raise LinkError("%s:%d: %s" % (address, port, error.strerror or error)) from error
    return sock


def _wish(sock: socket.socket, wish: bytes, streams: int, group: int, seconds: float) -> None:
    sock.settimeout(seconds + 4)
    sock.sendall(struct.pack("!cBHd", wish, streams, group, seconds))


def rate_here(address: str, port: int, token: bytes, streams: int, seconds: float) -> List[float]:
    """Windows of what arrives here from the listener."""
    socks = [connect(address, port, token) for _ in range(streams)]
    for sock in socks:
        _wish(sock, b"S", 1, 0, seconds)
    rates = receive_rate(socks, seconds)
    for sock in socks:
        sock.close()
    return rates


def rate_there(
    address: str, port: int, token: bytes, streams: int, seconds: float, group: int
) -> List[float]:
    """Windows of what arrives at the listener from here."""
    socks = [connect(address, port, token) for _ in range(streams)]
    for sock in socks:
        _wish(sock, b"R", streams, group, seconds)
    answer: List[bytes] = []
    senders = [threading.Thread(target=_send_and_hear, args=(s, seconds, answer)) for s in socks]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    for sock in socks:
        _cut(sock)
    if not answer:
        raise LinkError("the other box told no rate")
    return [float(rate) for rate in json.loads(answer[0])]


def _send_and_hear(sock: socket.socket, seconds: float, answer: List[bytes]) -> None:
    """Send until the answer comes the other way."""
    data, deadline = memoryview(bytes(_PIECE)), time.perf_counter() + seconds + 2
    sock.setblocking(False)
    try:
        while time.perf_counter() < deadline:
            readable, writable, _ = select.select([sock], [sock], [], 1.0)
            if readable:
                break
            if writable:
                sock.send(data)
        sock.settimeout(3.0)
        answer.append(_exactly(sock, struct.unpack("!I", _exactly(sock, 4))[0]))
    except (OSError, LinkError, struct.error):
        return


def round_trips(address: str, port: int, token: bytes, count: int = _PINGS) -> List[float]:
    """Seconds from sending 64 bytes to having them back, one at a time, at most 1.2 s of them.

    A rest lies between them. Without it the bare link would be timed with both ends awake, a slow
    one with both asleep.
    """
    with connect(address, port, token) as sock:
        _wish(sock, b"E", 1, 0, 10.0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took: List[float] = []
        data, deadline = bytes(64), time.perf_counter() + 1.2
        while len(took) < count + 10 and time.perf_counter() < deadline:
            begin = time.perf_counter()
            sock.sendall(data)
            _exactly(sock, 64)
            took.append(time.perf_counter() - begin)
            time.sleep(_REST_S)
    return took[10:] or took


def percentile(samples: Sequence[float], share: float) -> Optional[float]:
    """The sample below which `share` of them lie (nearest rank), None of none."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def quick_rate(address: str, port: int, token: bytes) -> Optional[float]:
    """A first look at one way: what arrives here in under a second."""
    rates = rate_here(address, port, token, 1, _WARM_S + 2 * _WINDOW_S)
    return max(rates) if rates else None


def drive(
    peers: Sequence[Tuple[str, int]], token: bytes, say: Say, seconds: float = LINK_S
) -> Dict[str, Any]:
    """Try each way to the listener, take the fastest, measure it in full; a JSON-like answer."""
    budget = Budget(seconds)
    ways: List[Dict[str, Any]] = [{"peer": host, "port": port} for host, port in peers]
    tries = [threading.Thread(target=_try_way, args=(way, token)) for way in ways]
    for one in tries:
        one.start()
    for one in tries:
        one.join()
    open_ways = [way for way in ways if way["why"] is None]
    if not open_ways:
        return {"ways": ways, "why": "no address of the other box answers"}
    if len(open_ways) > 1:
        say("trying %d ways to the other box" % len(open_ways))
        for way in open_ways:
            _look(way, token, budget, seconds / 3)
    best = max(open_ways, key=lambda way: way["rate"] or 0.0)
    answer = measure(best["peer"], best["port"], token, say, budget)
    answer.update({"ways": ways, "local": best["local"], "peer": best["peer"]})
    # Who can't be told that it is over ends by its own deadline.
    with (
        contextlib.suppress(OSError, LinkError),
        connect(best["peer"], best["port"], token) as sock,
    ):
        _wish(sock, b"Q", 1, 0, 1.0)
    return answer


def _look(way: Dict[str, Any], token: bytes, budget: Budget, reserve: float) -> None:
    """A first rate of one way, as long as enough time is left for the figures themselves."""
    if budget.left() < 2 * reserve:
        return
    try:
        way["rate"] = quick_rate(way["peer"], way["port"], token)
    except LinkError as error:
        way["why"] = str(error)


def _try_way(way: Dict[str, Any], token: bytes) -> None:
    way.update({"local": None, "rate": None, "why": None})
    try:
        with connect(way["peer"], way["port"], token) as sock:
            way["local"] = sock.getsockname()[0]
    except LinkError as error:
        way["why"] = str(error)


def measure(address: str, port: int, token: bytes, say: Say, budget: Budget) -> Dict[str, Any]:
    """Round trips, then rates both ways, what matters most first; late ones are left out."""
    say("timing small messages")
    method = "64-byte TCP echo, %g ms of rest between" % (_REST_S * 1e3)
    answer: Dict[str, Any] = {}
    try:
        answer["round_trip"] = _latency(round_trips(address, port, token), method)
    except (OSError, LinkError) as error:
        none = unknown(str(error))
        answer["round_trip"] = {"p50": none, "p99": none}
    before = interface_counters()
    _tcp_pair(answer, "1", (address, port), token, 1, budget.take(1.6), say)
    rates = [answer["out_1"]["value"], answer["in_1"]["value"]]
    if not any(rates) and answer["round_trip"]["p50"]["value"] is not None:
        # All else would wait, too, and for as long.
        why = answer["out_1"]["why"]
        if why == NOTHING_LONG:
            why = "not tried: already one stream carried nothing"
        others = ("out_4", "in_4", "out_busy", "in_busy", "zmq_out", "zmq_in")
        for key in (*others, "sealed_out", "sealed_in"):
            answer[key] = unknown(why)
        return answer
    slowest = min([rate for rate in rates if rate] or [0.0])
    answer.update(_zmq_figures("sealed", address, port, token, slowest, budget, say))
    answer.update(_busy_figures(address, port, token, budget, say))
    _tcp_pair(answer, "4", (address, port), token, 4, budget.take(0.9), say)
    answer["interface"] = busiest(before, interface_counters())
    answer.update(_zmq_figures("zmq", address, port, token, slowest, budget, say))
    return answer


def _tcp_pair(
    answer: Dict[str, Any],
    key: str,
    where: Tuple[str, int],
    token: bytes,
    streams: int,
    seconds: float,
    say: Say,
    while_: str = "",
) -> None:
    """`out_<key>` and `in_<key>`: `seconds` each way, or the reason why there is none."""
    name = "one stream" if streams == 1 else "%d streams" % streams
    method = "TCP, %s, timed by the receiver%s" % (name, while_)
    for way, label in (("out", "sending to"), ("in", "receiving from")):
        if not seconds:
            answer["%s_%s" % (way, key)] = unknown(OVER)
            continue
        say("%s the other box by %s%s" % (label, name, while_))
        try:
            if way == "out":
                group = next(_groups) & 0xFFFF
                rates = rate_there(where[0], where[1], token, streams, seconds, group)
            else:
                rates = rate_here(where[0], where[1], token, streams, seconds)
            if not any(rates):
                raise LinkError(NOTHING_LONG)
            answer["%s_%s" % (way, key)] = figure(rates, "B/s", method)
        except (OSError, LinkError, ValueError) as error:
            answer["%s_%s" % (way, key)] = unknown(str(error))


def _busy_figures(
    address: str, port: int, token: bytes, budget: Budget, say: Say
) -> Dict[str, Any]:
    """`out_busy` and `in_busy`: one stream while every core of both boxes works."""
    answer: Dict[str, Any] = {}
    seconds = budget.take(1.0)
    where = ", while all cores of both boxes work"
    try:
        with connect(address, port, token) as far:
            _wish(far, b"B", 1, 0, 2 * seconds + 4)
            _exactly(far, 1)
            with Busy():
                _tcp_pair(answer, "busy", (address, port), token, 1, seconds, say, where)
    except (OSError, LinkError) as error:
        answer = {"out_busy": unknown(str(error)), "in_busy": unknown(str(error))}
    return answer


def _latency(trips: Sequence[float], method: str) -> Dict[str, Figure]:
    median, late = percentile(trips, 0.5), percentile(trips, 0.99)
    if median is None or late is None:
        none = unknown("no message came back")
        return {"p50": none, "p99": none}
    count = len(trips)
    return {
        "p50": dict(figure([median], "s", "%s, median of %d" % (method, count)), samples=[]),
        "p99": dict(figure([late], "s", "%s, p99 of %d" % (method, count)), samples=[]),
    }


def _zmq_figures(
    kind: str,
    address: str,
    port: int,
    token: bytes,
    bytes_per_s: float,
    budget: Budget,
    say: Say,
) -> Dict[str, Any]:
    """`<kind>_out` and `<kind>_in`; the pieces are sized to the rate that TCP showed."""
    from homesplit_probes import link_zmq

    seconds = budget.take(1.0)
    if not seconds:
        return {kind + "_out": unknown(OVER), kind + "_in": unknown(OVER)}
    try:
        return link_zmq.figures(
            lambda: connect(address, port, token), address, kind, seconds, bytes_per_s, say
        )
    except (OSError, LinkError) as error:
        return {kind + "_out": unknown(str(error)), kind + "_in": unknown(str(error))}


def interface_counters() -> Dict[str, int]:
    """Bytes sent and received so far by each interface, where Linux tells them."""
    found: Dict[str, int] = {}
    try:
        with open("/proc/net/dev") as file:
            lines = file.read().splitlines()[2:]
    except OSError:
        return found
    for line in lines:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) >= 9:
            found[name.strip()] = int(fields[0]) + int(fields[8])
    return found


def busiest(before: Dict[str, int], after: Dict[str, int]) -> Optional[str]:
    """The interface that carried most bytes in between."""
    grown = dict((name, after[name] - before.get(name, 0)) for name in after)
    best = max(grown, key=lambda name: grown[name]) if grown else None
    return best if best is not None and grown[best] > _PIECE else None


def listen(addresses: Sequence[str], token: bytes, seconds: float) -> None:
    """Listen until done; tells its ports as one JSON line first."""
    before = interface_counters()
    listener = Listener(addresses, token, seconds)
    print(json.dumps({"listening": listener.ports()}), flush=True)
    listener.serve()
    print(json.dumps({"interface": busiest(before, interface_counters())}), flush=True)
    sys.stdout.flush()
