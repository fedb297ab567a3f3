"""DNS messages by hand: as much of them as an mDNS responder needs (RFC 1035, RFC 6762)."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

Labels = tuple[bytes, ...]

A = 1
PTR = 12
TXT = 16
SRV = 33

SHORT_TTL_S = 120
LONG_TTL_S = 4500

_SERVICES: Labels = (b"_services", b"_dns-sd", b"_udp", b"local")
_CACHE_FLUSH = 0x8000
_ANSWER = 0x8400
_MOST_QUESTIONS = 64
_MOST_JUMPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A resource record: whose it is, and its bytes on the wire."""

    name: Labels
    wire: bytes


def service_type(name: bytes) -> Labels:
    """`_ssh` as the labels of a TCP service on the local link."""
    return (name, b"_tcp", b"local")


def encode_name(labels: Labels) -> bytes:
    """A name without compression."""
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def record(
    name: Labels, kind: int, data: bytes, *, ttl_s: int = SHORT_TTL_S, unique: bool = True
) -> Record:
    """A record; a `unique` one replaces what others have cached."""
    group = 1 | (_CACHE_FLUSH if unique else 0)
    head = struct.pack(">HHIH", kind, group, ttl_s, len(data))
    return Record(name=name, wire=encode_name(name) + head + data)


def pointer(name: Labels, target: Labels, *, ttl_s: int = LONG_TTL_S) -> Record:
    """One of several answers to a question about a service."""
    return record(name, PTR, encode_name(target), ttl_s=ttl_s, unique=False)


def server(name: Labels, host: Labels, port: int) -> Record:
    """Which host and port a service is at."""
    return record(name, SRV, struct.pack(">HHH", 0, 0, port) + encode_name(host))


def text(*items: bytes) -> bytes:
    """The data of a TXT record."""
    return b"".join(bytes([len(item)]) + item for item in items) or b"\0"


def service(
    instance: bytes, kind: Labels, host: bytes, address: str, port: int, info: bytes = b"\0"
) -> list[Record]:
    """Every record that one service needs."""
    full, target = (instance, *kind), (host, b"local")
    return [
        pointer(_SERVICES, kind),
        pointer(kind, full),
        server(full, target, port),
        record(full, TXT, info, ttl_s=LONG_TTL_S),
        record(target, A, socket.inet_aton(address)),
    ]


def answer(wires: list[bytes], count: int | None = None) -> bytes:
    """A response message; a wrong `count` makes a broken one."""
    told = len(wires) if count is None else count
    return struct.pack(">HHHHHH", 0, _ANSWER, 0, told, 0, 0) + b"".join(wires)


def questions(packet: bytes) -> list[Labels]:
    """The names a query asks for, in lower case; none for anything that is no proper query."""
    try:
        _, flags, count = struct.unpack(">HHH", packet[:6])
        if flags & 0x8000:
            return []
        asked: list[Labels] = []
        at = 12
        for _ in range(min(count, _MOST_QUESTIONS)):
            name, at = _read_name(packet, at)
            asked.append(name)
            at += 4
        return asked
    except (IndexError, struct.error, ValueError):
        return []


def _read_name(packet: bytes, at: int) -> tuple[Labels, int]:
    """A name, and where what follows it begins."""
    labels: list[bytes] = []
    after: int | None = None
    jumps = 0
    while packet[at]:
        if packet[at] >= 192:
            after = after if after is not None else at + 2
            at = ((packet[at] & 63) << 8) | packet[at + 1]
            jumps += 1
            if jumps > _MOST_JUMPS:
                raise ValueError("a name that never ends")
        else:
            labels.append(packet[at + 1 : at + 1 + packet[at]].lower())
            at += 1 + packet[at]
    return tuple(labels), after if after is not None else at + 1
