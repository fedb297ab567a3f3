"""Questions that only the person can answer."""

from __future__ import annotations

from typing import Protocol


class Ask(Protocol):
    """Whom stages and connections ask; the terminal app and the command line differ."""

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        """Whether this unknown SSH host key is right."""
        ...

    async def secret(self, prompt: str) -> str | None:
        """A passphrase or password; None when the person declines or there is no terminal."""
        ...
