"""A multicast DNS responder, for machines without avahi and for odd ones."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Sequence

from tests.lab.dns import Record, answer, questions

_GROUP = "224.0.0.251"
_PORT = 5353
_PACKET_BYTES = 1200
_ANSWER_AFTER_S = 0.02
_BETWEEN_ANSWERS_S = 0.3


def serve(
    address: str,
    records: Sequence[Record],
    broken: Sequence[bytes] = (),
    listeners: Sequence[socket.socket] = (),
) -> None:
    """Announce `records` and answer questions about them for ever.

    `broken` packets go out beside each answer; connections to `listeners` are closed at once.
    """
    sock = _open(address)
    packets = [*_packets(records), *broken]
    names = {tuple(label.lower() for label in each.name) for each in records}
    due = [time.monotonic() + after_s for after_s in (0.0, 1.0, 3.0)]
    last = 0.0
    while True:
        wait = max(0.0, due[0] - time.monotonic()) if due else None
        ready, _, _ = select.select([sock, *listeners], [], [], wait)
        now = time.monotonic()
        if due and due[0] <= now:
            due.pop(0)
            _send(sock, packets)
            last = now
        for source in ready:
            if source is not sock:
                connection, _ = source.accept()
                connection.close()
            elif names.intersection(questions(sock.recv(9000))) and not due:
                due = [max(now + _ANSWER_AFTER_S, last + _BETWEEN_ANSWERS_S)]


def _open(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("", _PORT))
    here = socket.inet_aton(address)
    membership = socket.inet_aton(_GROUP) + here
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, here)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    return sock


def _packets(records: Sequence[Record]) -> list[bytes]:
    """The records, each once, in packets that fit a frame."""
    packets: list[bytes] = []
    part: list[bytes] = []
    for wire in dict.fromkeys(each.wire for each in records):
        if part and sum(map(len, part)) + len(wire) > _PACKET_BYTES:
            packets.append(answer(part))
            part = []
        part.append(wire)
    return [*packets, answer(part)] if part else packets


def _send(sock: socket.socket, packets: Sequence[bytes]) -> None:
    for packet in packets:
        # A pulled cable is no reason to stop announcing.
        with contextlib.suppress(OSError):
            sock.sendto(packet, (_GROUP, _PORT))
