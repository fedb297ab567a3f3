"""What every stage is given: where to tell events, whom to ask, where files live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from homesplit.core.events import Event
from homesplit.io.paths import Paths, user_paths


class Ask(Protocol):
    """Questions that only the person can answer; the terminal app and the command line differ."""

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        """Whether this unknown SSH host key is right."""
        ...

    async def secret(self, prompt: str) -> str | None:
        """A passphrase or password; None when the person declines or there is no terminal."""
        ...


class AskNobody:
    """Declines everything: for scripts and `--json` without a terminal."""

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        """Unknown keys are not trusted."""
        return False

    async def secret(self, prompt: str) -> str | None:
        """There is no secret."""
        return None


def _drop(event: Event) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Handed to each stage function; stages hold no state of their own."""

    emit: Callable[[Event], None] = _drop
    ask: Ask = field(default_factory=AskNobody)
    paths: Paths = field(default_factory=user_paths)
