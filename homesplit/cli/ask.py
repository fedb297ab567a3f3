"""Questions to the person at the terminal."""

from __future__ import annotations

import asyncio
import getpass
import sys


class AskTerminal:
    """Asks on the terminal; answers of yes are typed out, secrets are not shown."""

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        """Show the fingerprint and take only a clear yes."""
        question = (
            f"{box} shows a host key that is not known here yet:\n  {fingerprint}\n"
            "Is that its key (on the box: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub)? [y/N] "
        )
        answer = await asyncio.to_thread(_ask, question)
        return answer is not None and answer.strip().lower() in ("y", "yes")

    async def secret(self, prompt: str) -> str | None:
        """A passphrase or password; None when nothing is typed."""
        try:
            return await asyncio.to_thread(getpass.getpass, prompt, sys.stderr) or None
        except (EOFError, KeyboardInterrupt):
            return None


def _ask(question: str) -> str | None:
    print(question, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line or None
