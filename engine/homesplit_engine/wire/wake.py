"""Wakes a thread that waits on sockets: queue something for it, then `wake`."""

from __future__ import annotations

import contextlib
import os
import threading


class Waker:
    """A pipe whose reading end stands among the sockets that a thread polls."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        self._open = True

    def wake(self) -> None:
        """Ends the thread's wait, or its next one; callable from any thread."""
        with self._lock:
            if self._open:
                # A full pipe wakes just as well.
                with contextlib.suppress(BlockingIOError):
                    os.write(self._write, b"x")

    def clear(self) -> None:
        """Forgets all wakes so far; what was queued must be looked at after this."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 65536)

    def close(self) -> None:
        """Closes the pipe; a later `wake` does nothing."""
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)
                os.close(self._write)
