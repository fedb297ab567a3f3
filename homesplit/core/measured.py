"""What the load generator saw of each request: the raw record that every figure comes from."""

from __future__ import annotations

import itertools
from typing import Literal

from homesplit_engine.records import Outcome
from homesplit_engine.words import Timeline
from msgspec import Struct

Source = Literal["usage", "per-chunk usage", "one a chunk", "estimated", "none"]
"""Where a token count comes from. `usage`: the server's total, shared over its chunks."""

CUT = "no answer before the wait of a stopped run ended"
"""The `error` of a request that the person who stopped the run left: `cancelled`, no failure."""


class RequestLog(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One offered request as the client saw it; seconds count from the start of the run."""

    id: int
    request_id: str
    class_: str
    due_s: float
    """When it was to be sent."""
    sent_s: float
    """When it was handed to the network: TTFT as the client sees it starts here."""
    outcome: Outcome
    arrival_s: tuple[float, ...] = ()
    """When each chunk with content came; empty and role-only chunks are not counted."""
    arrival_tokens: tuple[int, ...] = ()
    """Tokens in each of these chunks; empty where they can't be told apart."""
    arrival_characters: tuple[int, ...] = ()
    """Characters of `text` in each of these chunks."""
    ended_s: float | None = None
    prompt_tokens_asked: int
    output_tokens_asked: int
    prompt_tokens: int | None = None
    """As the server's `usage` says, None when it says nothing."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    tokens_from: Source = "none"
    finish_reason: str | None = None
    text: str = ""
    streamed: bool = True
    reasoning: bool = False
    """Whether some of the content was `reasoning_content`; it counts as content."""
    status: int | None = None
    error: str | None = None

    @property
    def lateness_s(self) -> float:
        """How much later than planned it was sent: the generator's own delay."""
        return self.sent_s - self.due_s


def timeline(log: RequestLog) -> Timeline:
    """The record in the form that the measuring words read.

    Chunks that came in one read came at one moment: whatever held them back on the way (a
    proxy's buffer), that is what the reader saw.
    """
    return Timeline(
        request_id=log.request_id,
        outcome=log.outcome,
        start_s=log.sent_s,
        token_s=log.arrival_s,
        prompt_tokens=log.prompt_tokens,
        output_tokens=log.output_tokens,
        class_name=log.class_,
        arrival_tokens=log.arrival_tokens,
        end_s=log.ended_s if log.outcome == "cancelled" else None,
        uncounted=_uncounted_piece(log),
    )


def _uncounted_piece(log: RequestLog) -> bool:
    """Whether a longer answer came as one chunk whose tokens nobody counted."""
    whole = len(log.arrival_s) == 1 and log.output_tokens_asked > 1
    return whole and log.tokens_from in ("one a chunk", "estimated")


def joined_chunks(log: RequestLog) -> int:
    """How many chunks came in the same read as the one before."""
    return sum(later == earlier for earlier, later in itertools.pairwise(log.arrival_s))


def share_tokens(total: int, characters: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens of each chunk when only their total is known; empty when it can't be told.

    As many chunks as tokens: one each. Up to half as many tokens again: a server that holds
    half characters back; the surplus is spread evenly over the later chunks. More: bundles,
    shared by length of text (an estimate). Fewer tokens than chunks can't be shared out.
    """
    chunks = len(characters)
    if chunks == 0 or total < chunks:
        return ()
    if total == chunks:
        return (1,) * chunks
    extra = total - chunks
    if chunks > 1 and extra * 2 <= chunks:
        places = {chunks - 1 - (index * (chunks - 1)) // extra for index in range(extra)}
        counts = [1 + (index in places) for index in range(chunks)]
        counts[-1] += extra - len(places)
        return tuple(counts)
    return _by_length(total, characters)


def _by_length(total: int, characters: tuple[int, ...]) -> tuple[int, ...]:
    """Cumulative rounding keeps the sum; each chunk holds at least one token."""
    whole = sum(characters)
    chunks = len(characters)
    counts: list[int] = []
    seen, given = 0, 0
    for index, length in enumerate(characters):
        seen += length
        wanted = round(total * seen / whole) - given
        still_needed = chunks - index - 1
        counts.append(max(1, min(wanted, total - given - still_needed)))
        given += counts[-1]
    return tuple(counts)
