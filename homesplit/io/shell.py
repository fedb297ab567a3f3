"""The one command line that any login shell understands, and what comes back through it.

The script itself travels on standard input, so that no login shell (fish, tcsh, dash)
has to understand its quoting and no process list shows it. What start files and banners
print lies before the begin marker and is dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

COMMAND = (
    'exec sh -c \'IFS=" " read -r n t; '
    'printf "\\n%s\\n" "$t"; printf "\\n%s\\n" "$t" >&2; '
    's=$(dd bs=1 count="$n" 2>/dev/null); (eval "$s"); c=$?; '
    'printf "%s %s\\n" "$t" "$c" >&2; printf "%s %s\\n" "$t" "$c"\''
)
"""Given to the login shell: no backslash before a quote, no `!`, nothing that differs by shell."""
NO_STATUS = -1
"""The exit status of a script whose end marker has none behind it: the box is not to be trusted."""
_STATUS = re.compile(rb"[0-9]{1,3}")
_LONGEST_STATUS = 3


def opening(script: str, token: str) -> bytes:
    """What is written to standard input first; the script's own input follows it."""
    raw = script.encode()
    return f"{len(raw)} {token}\n".encode() + raw


_OF_WINDOWS = re.compile(
    r"""['"\u201c\u00ab\u201e]exec['"\u201d\u00bb\u201c]|CommandNotFoundException"""
)
"""Of whatever language, cmd.exe and PowerShell put the word that they don't know in quotes."""


def what_it_needs(said: str) -> str:
    """What to do about a login shell that said this and did not start `sh`."""
    if _OF_WINDOWS.search(said):
        return (
            "It seems to be a shell of Windows: use WSL, with an SSH server of its own or as the "
            "shell of that one (DefaultShell C:\\Windows\\System32\\bash.exe)."
        )
    return (
        "Check that `ssh BOX sh -c true` works there: a start file of that user's shell must "
        "neither end it, nor read what is sent, nor hide `sh` from it."
    )


@dataclass(slots=True)
class Between:
    """Takes a stream in pieces and gives back only what lies between the two markers.

    `code` is the script's exit status once the end marker has come, else None. What follows is
    not heard.
    """

    token: str
    begun: bool = False
    code: int | None = None
    _held: bytes = b""
    before: bytearray = field(default_factory=bytearray)

    def feed(self, piece: bytes) -> bytes:
        """The payload that this piece completes; holds back what may be a marker's start."""
        if self.code is not None:
            return b""
        self._held += piece
        if not self.begun and not self._begin():
            return b""
        return self._payload()

    def unheard(self) -> str:
        """What was said by whoever came before `sh`, up to what was meant for it alone."""
        said = (bytes(self.before) + self._held).decode(errors="replace")
        return said.partition(self.token)[0].strip()

    def rest(self) -> bytes:
        """What was held back, when the stream ended without its end marker."""
        if not self.begun:
            return b""
        held, self._held = self._held, b""
        return held if self.code is None else b""

    def _begin(self) -> bool:
        marker = f"\n{self.token}\n".encode()
        at = self._held.find(marker)
        if at < 0:
            keep = len(marker) - 1
            self.before += self._held[:-keep]
            del self.before[:-4096]
            self._held = self._held[-keep:]
            return False
        self.before += self._held[:at]
        self._held = self._held[at + len(marker) :]
        self.begun = True
        return True

    def _payload(self) -> bytes:
        # No newline before it: a line that ends must not be held back as a marker's start.
        marker = f"{self.token} ".encode()
        at = self._held.find(marker)
        if at < 0:
            keep = _possible_start(self._held, marker)
            cut = len(self._held) - keep
            payload, self._held = self._held[:cut], self._held[cut:]
            return payload
        payload, self._held = self._held[:at], self._held[at:]
        status, newline, _ = self._held[len(marker) :].partition(b"\n")
        if newline or len(status) > _LONGEST_STATUS:
            self.code = int(status) if _STATUS.fullmatch(status) else NO_STATUS
            self._held = b""
        return payload


def _possible_start(held: bytes, marker: bytes) -> int:
    """How many last bytes of `held` could be the beginning of `marker`."""
    for size in range(min(len(marker) - 1, len(held)), 0, -1):
        if held.endswith(marker[:size]):
            return size
    return 0
