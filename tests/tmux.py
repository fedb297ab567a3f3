"""A program in a real terminal: tmux runs it, types its keys and reads what it shows."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

POLL_S = 0.25
SOON_S = 60.0
"""A limit, not a wait: on a busy computer everything takes many times as long."""
LIMIT_S = 30.0


class Tmux:
    """One window of a tmux of its own, whose socket lies in `folder`."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        *,
        size: tuple[int, int] = (120, 40),
        terminal: str = "tmux-256color",
        at: Path | None = None,
    ) -> None:
        self._socket = str(folder / "tmux")
        # Named by its kind, for programs go by what TERM says of colours.
        kind = ("set-option", "-g", "default-terminal", terminal, ";")
        measures = ("-x", str(size[0]), "-y", str(size[1]))
        place = ("-c", str(at)) if at is not None else ()
        self._tmux(*kind, "new-session", "-d", "-s", "app", *measures, *place, *words)

    def _tmux(self, *words: str) -> str:
        done = self._run(*words)
        if done.returncode:
            raise RuntimeError(f"tmux {words[0]}: {done.stderr}")
        return done.stdout

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["tmux", "-u", "-f", os.devnull, "-S", self._socket, *words]
        return subprocess.run(command, text=True, capture_output=True, timeout=LIMIT_S)

    def press(self, *keys: str) -> None:
        """Type keys by their tmux names."""
        self._tmux("send-keys", "-t", "app", *keys)

    def resize(self, width: int, height: int) -> None:
        """Make the window another size."""
        self._tmux("resize-window", "-t", "app", "-x", str(width), "-y", str(height))

    def shown(self, *, colours: bool = False) -> str:
        """What the terminal shows; with `colours` also the codes for them."""
        return self._tmux("capture-pane", "-p", *(("-e",) if colours else ()), "-t", "app")

    def wait_for(self, *words: str, limit_s: float = SOON_S) -> str:
        """The screen once all these words are on it."""
        return self.wait_until(
            lambda shown: all(word in shown for word in words), f"{words}", limit_s
        )

    def wait_until(
        self, is_there: Callable[[str], bool], what: str, limit_s: float = SOON_S
    ) -> str:
        """The screen once it is so; raises AssertionError with what it showed instead."""
        deadline = time.monotonic() + limit_s
        while True:
            shown = self.shown()
            if is_there(shown):
                return shown
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not appear in {limit_s:g} s:\n{shown}")
            time.sleep(POLL_S)

    def wait_for_end(self, limit_s: float = SOON_S) -> None:
        """Until the program has left, and its terminal with it."""
        deadline = time.monotonic() + limit_s
        while self._run("has-session", "-t", "app").returncode == 0:
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not end in {limit_s:g} s:\n{self.shown()}")
            time.sleep(POLL_S)

    def close(self) -> None:
        """End the terminal and what runs in it."""
        self._run("kill-server")
