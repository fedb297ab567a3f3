"""Whether an address leads to this very machine, so that no network lies between."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

RESOLVE_S = 5.0


async def is_own_machine(url: str) -> bool | None:
    """Whether every address of the URL's host is one of this machine; None where it has none.

    A tunnel that begins here and leads to another machine can't be seen from here.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if not host:
            return None
        async with asyncio.timeout(RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port or 80, type=socket.SOCK_DGRAM
            )
    except (OSError, TimeoutError, ValueError):
        return None
    return all(_own(family, address) for family, _, _, _, address in found) if found else None


def _own(family: int, address: tuple[str | int | bytes, ...]) -> bool:
    """Loopback, or where the system would send from the very address that it sends to."""
    where = ipaddress.ip_address(str(address[0]).split("%", 1)[0])
    mapped = getattr(where, "ipv4_mapped", None) or where
    if mapped.is_loopback or mapped.is_unspecified:
        return True
    try:
        # Nothing is sent: connecting such a socket only looks the way up.
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0] == address[0]
    except OSError:
        return False
