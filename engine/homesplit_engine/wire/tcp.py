"""What the kernel knows of a TCP connection: what the peer has acknowledged, what was sent again.

`struct tcp_info` of Linux (include/uapi/linux/tcp.h); elsewhere nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from msgspec import Struct

_RTT, _TOTAL_RETRANS, _BYTES_ACKED, _DATA_SEGS_OUT, _DSACK_DUPS = 68, 100, 120, 156, 216
_BYTES = _DSACK_DUPS + 4
"""Kernels before 5.4 give less."""


class TcpSeen(Struct, frozen=True, kw_only=True):
    """One connection's counters since it was made."""

    acked_bytes: int
    sent: int
    """Segments with data, those sent again included."""
    resent: int
    """Of them those sent again, less those that the peer says it had already."""
    rtt_s: float
    """There and back, smoothed by the kernel; no process has to be awake for it."""


def look(fd: int | None) -> TcpSeen | None:
    """The counters of the connection at a descriptor; None where they are not known."""
    if fd is None or not hasattr(socket, "TCP_INFO"):
        return None
    with contextlib.suppress(OSError), _copy(fd) as copy:
        return read(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES))
    return None


def read(raw: bytes) -> TcpSeen | None:
    """The counters in a `struct tcp_info`; None when the kernel is too old to give them."""
    if len(raw) < _BYTES:
        return None
    (acked_bytes,) = struct.unpack_from("=Q", raw, _BYTES_ACKED)
    rtt_us, resent, sent, known = (
        struct.unpack_from("=I", raw, offset)[0]
        for offset in (_RTT, _TOTAL_RETRANS, _DATA_SEGS_OUT, _DSACK_DUPS)
    )
    return TcpSeen(
        acked_bytes=acked_bytes, sent=sent, resent=max(0, resent - known), rtt_s=rtt_us / 1e6
    )


def cut_off(fd: int | None) -> None:
    """Have a connection's close throw away what has not been sent yet."""
    if fd is None:
        return
    with contextlib.suppress(OSError), _copy(fd) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _copy(fd: int) -> socket.socket:
    """A copy for the moment: its owner may close the descriptor meanwhile. Raises OSError."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)  # by now it is something else's, and no socket
        raise
