"""How many connections and files a process of the engine may have open."""

from __future__ import annotations

import contextlib

MOST = 65_536
MACOS_MOST = 10_240
"""More than this is refused there, even where no limit is told."""


def allow_open_files() -> None:
    """Ask for as many as this user may have, where a login gives few (often 1,024).

    A router keeps a connection for each client. Whoever opens idle ones is thrown out in time,
    but must not be able to take the last one before that.
    """
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (MOST, MACOS_MOST):
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return
