"""What the kernel knows of a TCP connection: what the peer has acknowledged, what was sent again.

`struct tcp_info` of Linux (include/uapi/linux/tcp.h); elsewhere nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from msgspec import Struct

_BYTES = 232
"""Up to and with `tcpi_rcv_ooopack`; kernels before 5.4 give less."""
_RTT, _TOTAL_RETRANS, _BYTES_ACKED, _DATA_SEGS_OUT, _DSACK_DUPS = 68, 100, 120, 156, 216


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
    # A copy for the moment: the descriptor may be closed by its owner meanwhile.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
        return read(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES))
    return None


def read(raw: bytes) -> TcpSeen | None:
    """The counters in a `struct tcp_info`; None when the kernel is too old to give them."""
    if len(raw) < _DSACK_DUPS + 4:
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
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
