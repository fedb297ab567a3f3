"""What every stage is given: where to tell events, whom to ask, where files live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from homesplit.core.events import Event
from homesplit.io.ask import Ask
from homesplit.io.paths import Paths, user_paths


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
