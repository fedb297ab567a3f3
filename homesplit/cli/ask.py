"""Questions to the person at the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Generator

from homesplit.core.found import SHOW_HOST_KEYS
from homesplit.errors import HomesplitError

_LONGEST_BYTES = 4096
_WINDOWS = os.name == "nt"
_LOCAL_FLAGS = 3
"""Where termios keeps the flags that say whether what is typed is shown."""


class AskTerminal:
    """Asks on the terminal; answers of yes are typed out, secrets are not shown."""

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        """Show the fingerprint and take only a clear yes."""
        question = (
            f"{box} shows a host key that is not known here yet:\n  {fingerprint}\n"
            f"Is that its key (on the box: {SHOW_HOST_KEYS})? [y/N] "
        )
        answer = await _ask(question)
        return answer is not None and answer.strip().lower() in ("y", "yes")

    async def secret(self, prompt: str) -> str | None:
        """A passphrase or password; None when nothing is typed."""
        with contextlib.nullcontext() if _WINDOWS else _unseen(sys.stdin.fileno()):
            answer = await _ask(prompt)
        print(file=sys.stderr, flush=True)
        return answer or None


async def _ask(question: str) -> str | None:
    """The line that is typed, without its end; None at the end of input.

    No thread reads it: that could not be broken off, and Ctrl-C would hang until Enter.
    """
    if _WINDOWS:
        # Its event loop can wait for no console.
        raise HomesplitError(
            f"this has to be asked, and a Windows console can't be: {question.strip()}",
            do_next="Log in once with `ssh` so that the host key is known, and give the key to "
            "ssh-agent; or run homesplit in WSL.",
        )
    print(question, end="", file=sys.stderr, flush=True)
    terminal, typed = sys.stdin.fileno(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(terminal, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(terminal)
    line = os.read(terminal, _LONGEST_BYTES)
    return line.decode(errors="replace").rstrip("\r\n") if line else None


@contextlib.contextmanager
def _unseen(terminal: int) -> Generator[None]:
    """What is typed meanwhile is not shown; the terminal is as it was afterwards."""
    import termios  # Windows has none

    before = termios.tcgetattr(terminal)
    hidden = termios.tcgetattr(terminal)
    hidden[_LOCAL_FLAGS] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSAFLUSH, hidden)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
