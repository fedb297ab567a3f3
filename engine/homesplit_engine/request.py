"""One request as the scheduler sees it: token ids, blocks and where it stands. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from homesplit_engine.pages import chain_hash
from homesplit_engine.wire.messages import SamplingParams


class Phase(Enum):
    """Where a request stands on one worker."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    RESERVED = "reserved"
    """Blocks are kept; a peer is sending the KV of the prompt."""
    HANDING_OVER = "handing over"
    """The prompt is read; blocks are kept until the peer has committed."""
    ENDED = "ended"


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A request on one worker. Only the scheduler changes it.

    `tokens` are the prompt and every output token known; the KV of the first `computed` of
    them is in `blocks`. Times are seconds on the caller's clock.
    """

    request_id: str
    tokens: list[int]
    prompt_tokens: int
    max_tokens: int
    arrived_s: float
    deadline_s: float
    """When it is given up, on the same clock as `arrived_s`."""
    chunk_tokens: int | None = 256
    """Most prompt tokens that one step reads; None reads the whole prompt in a step of its own."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer (they count as output)."""
    hand_over: bool = False
    """Read the prompt and sample one token only; a peer writes the rest."""

    phase: Phase = Phase.WAITING
    computed: int = 0
    cached_tokens: int = 0
    """Prompt tokens whose KV was there when the request was admitted."""
    blocks: list[int] = field(default_factory=list[int])
    hashes: list[bytes] = field(default_factory=list[bytes])
    """Chained hashes of the leading full blocks, as far as they were needed."""
    remembered: int = 0
    """Leading blocks whose hashes the pool knows."""
    admitted_s: float | None = None
    first_admitted_s: float | None = None
    prefill_told: bool = False
    preemptions: int = 0
    kv_salt: bytes = b""
    """Goes into every block's hash: KV that came with a loss is no prefix for other requests."""
    sampling: SamplingParams | None = None
    """How tokens are chosen; the scheduler does not look at it, a simulator needs none."""
    place: object | None = None
    """The runner's note of where `blocks` lie in its tensors; void once they are taken back."""

    @property
    def output_tokens(self) -> int:
        """Output tokens known, counted over the whole answer (also before a move)."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def uncomputed(self) -> int:
        """Tokens whose KV is still to be computed."""
        return len(self.tokens) - self.computed

    def block_hashes(self, count: int, block_tokens: int) -> list[bytes]:
        """The chained hashes of the first `count` full blocks of `tokens`."""
        while len(self.hashes) < count:
            start = len(self.hashes) * block_tokens
            parent = self.hashes[-1] if self.hashes else self.kv_salt
            self.hashes.append(chain_hash(parent, self.tokens[start : start + block_tokens]))
        return self.hashes[:count]

    def end_reason(self) -> str | None:
        """Why the answer ends with the last token: `stop`, `length`, or None if it goes on."""
        if self.output_tokens and self.tokens[-1] in self.stop_ids:
            return "stop"
        return "length" if self.output_tokens >= self.max_tokens else None
