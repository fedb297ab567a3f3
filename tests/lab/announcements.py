"""What each kind of machine announces over mDNS, the lying ones included."""

from __future__ import annotations

import os
import socket
import struct

from tests.lab.dns import (
    PTR,
    SRV,
    TXT,
    A,
    Record,
    answer,
    pointer,
    record,
    server,
    service,
    service_type,
    text,
)

_SSH = service_type(b"_ssh")
_WORKSTATION = service_type(b"_workstation")
_PRINTER_PORTS = {b"_ipp": 631, b"_printer": 515, b"_pdl-datastream": 9100, b"_http": 80}


def of_machine(name: str, address: str, mac: str) -> list[Record]:
    """An ordinary machine, as avahi would announce it."""
    host = name.encode()
    workstation = host + b" [" + mac.encode() + b"]"
    return [
        *service(host, _SSH, host, address, 22),
        *service(workstation, _WORKSTATION, host, address, 9),
    ]


def of_printer(name: str, address: str) -> list[Record]:
    """A printer with a space, brackets and an accent in its name."""
    instance = "Inkwell Jet 3000 (étage)".encode()
    info = text(
        b"txtvers=1",
        b"rp=ipp/print",
        b"ty=Inkwell Jet 3000",
        b"pdl=application/pdf,image/urf",
        b"adminurl=http://inkwell.local/",
    )
    records: list[Record] = []
    for kind, port in _PRINTER_PORTS.items():
        records += service(instance, service_type(kind), name.encode(), address, port, info)
    return records


def of_odd_machine(name: str, address: str) -> list[Record]:
    """A working machine whose names no tool expects, and announcements that lie."""
    host = name.encode()
    nobody = address.rsplit(".", 1)[0] + ".250"
    fancy = "Zoë’s “Büro” (2). 日本 $(id) `id` ;&|<>'\"".encode()
    strange_info = text(b"novalue", b"=empty", b"k=\xff\xfe\x00\x0a", "clé=é".encode())
    records = service(fancy, _SSH, host, address, 22, strange_info)
    for instance in (
        b"\x1b[31mred\x07\r\nFAKE: all fine\x00tail",
        b"bad-utf8-\xff\xfe\xc3",
        b"x" * 63,
    ):
        records += service(instance, _SSH, host, address, 22)
    records += service(b"port-zero", _SSH, host, address, 0)
    records += service(b"claims-loopback", _SSH, b"loopy", "127.0.0.1", 22)
    records += service(b"nobody-home", _SSH, b"ghost", nobody, 22)
    records += service(b"closed-port", _SSH, host, address, 2222)
    records += service(b"option", _SSH, b"-oProxyCommand=touch pwned", address, 22)
    no_address = (b"no-address", *_SSH)
    records += [pointer(_SSH, no_address), server(no_address, (b"nowhere", b"local"), 22)]
    records += [pointer(_SSH, (b"pointer-only", *_SSH))]
    return records


def broken_packets(name: str) -> list[bytes]:
    """Packets that no reader should trip over, sent beside the answers."""
    full = (name.encode(), *_SSH)
    good = pointer(_SSH, full, ttl_s=120).wire
    name_that_points_at_itself = b"\xc0\x0c" + struct.pack(">HHIH", PTR, 1, 120, 2) + b"\xc0\x0c"
    return [
        answer([good], count=9),
        answer([good])[:-7],
        answer([name_that_points_at_itself]),
        answer([record(full, TXT, b"\xffshort").wire]),
        answer([record(full, SRV, b"\0\0").wire]),
        answer([record(full, A, socket.inet_aton("1.2.3.4")[:3]).wire]),
        b"\0" * 5,
        os.urandom(64),
    ]
