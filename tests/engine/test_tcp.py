"""What the kernel tells of a connection, against one that is really there."""

from __future__ import annotations

import os
import socket
import struct
import sys

import pytest
from homesplit_engine.wire.tcp import cut_off, look, read

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of connections")


@only_linux
def test_what_the_peer_got_is_counted() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.create_connection(door.getsockname()) as here,
        door.accept()[0] as there,
    ):
        here.sendall(bytes(1000))
        there.recv(1000, socket.MSG_WAITALL)
        # The answer carries the acknowledgement.
        there.sendall(b"x")
        here.recv(1)
        seen = look(here.fileno())
    assert seen is not None
    assert seen.acked_bytes in (1000, 1001)  # some kernels count the greeting
    assert (seen.sent, seen.resent) == (1, 0) and seen.rtt_s > 0


@only_linux
def test_a_connection_that_is_cut_off_ends_with_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        here = socket.create_connection(door.getsockname())
        with door.accept()[0] as there:
            cut_off(here.fileno())
            here.close()
            with pytest.raises(ConnectionResetError):
                there.recv(1)


def test_nothing_is_known_of_what_is_no_connection_or_of_an_old_kernel() -> None:
    assert look(None) is None and look(10**6) is None
    with open(__file__, "rb") as file:
        assert look(file.fileno()) is None
    assert read(bytes(192)) is None


def test_what_the_peer_had_already_is_not_counted_as_lost() -> None:
    raw = bytearray(232)
    struct.pack_into("=I", raw, 100, 7)
    struct.pack_into("=I", raw, 216, 5)
    seen = read(bytes(raw))
    assert seen is not None and seen.resent == 2


@only_linux
def test_a_descriptor_that_is_no_socket_any_more_tells_nothing_and_is_not_kept() -> None:
    ends = os.pipe()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert look(ends[0]) is None
            cut_off(ends[0])
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        for end in ends:
            os.close(end)
