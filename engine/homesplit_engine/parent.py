"""The process that this one lives with: a supervisor, or a demo that started it."""

from __future__ import annotations

import psutil

from homesplit_engine.config import ConfigError


class Parent:
    """A process by its number and the time at which it was started."""

    def __init__(self, pid: int) -> None:
        """Raises ConfigError when there is none."""
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise ConfigError(f"parent_pid {pid}: there is no such process") from error

    @property
    def lives(self) -> bool:
        """Whether it is still there; one of the same number that was started later is not it.

        One that has ended and that nobody asked after is not either: in a container whose first
        process is no init that is what becomes of every one that loses its own parent.
        """
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.Error:
            return True  # somebody else's, and there
