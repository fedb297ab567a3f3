"""What a person types for a box, taken apart."""

from __future__ import annotations

import re

from homesplit.errors import UsageError


def split_target(target: str) -> tuple[str | None, str, int | None]:
    """User, host and port of `[user@]host[:port]`; IPv6 with a port stands in brackets."""
    user, _, rest = target.rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    if not host or (port and not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536)):
        raise UsageError(
            f"{target!r} is not [user@]host[:port].",
            do_next="An IPv6 address with a port stands in brackets, as [fe80::1]:22.",
        )
    return user or None, host, int(port) if port else None
