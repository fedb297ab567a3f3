"""How long a new request would wait for its first token, from how fast the queue was drained.

One figure covers all that holds a prompt up (prefill rate, decoding beside it, batch places,
hand-offs): prompt tokens brought to their first token per second of time in which any waited.
It is kept for all boxes together, and for each box that reads.
"""

from __future__ import annotations

import math

MIN_SAMPLES = 4
"""Fewer tell nothing: a lone short prompt measures a step's fixed cost, not a queue's rate."""
HALF_LIFE_S = 5.0
"""Waiting time after which a sample counts half."""
LEAST_KEPT = 0.6
"""What one more sample leaves of those before it, however long it waited: a box that stood still
once, before a short prompt, is not one that reads so slowly."""
OLD_S = 60.0
"""A queue that ended so long ago tells nothing of the next one."""


class Pressure:
    """Measured on the router's clock; no estimate before the first prompt has been read."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._busy_s = 0.0
        self._last_s = -math.inf
        self._samples = 0

    def learn(self, *, received_s: float, prompt_tokens: int, now_s: float) -> None:
        """A prompt was read now while others waited; no time is counted for two of them."""
        self._samples += 1
        busy_s = max(0.0, now_s - max(received_s, self._last_s))
        self._last_s = max(self._last_s, now_s)
        keep = max(0.5 ** (busy_s / HALF_LIFE_S), LEAST_KEPT)
        self._tokens = self._tokens * keep + prompt_tokens
        self._busy_s = self._busy_s * keep + busy_s

    def nobody_waits(self, now_s: float) -> None:
        """A queue begins anew: what was learnt of one long ago is forgotten."""
        if now_s - self._last_s > OLD_S:
            self._tokens, self._busy_s, self._samples = 0.0, 0.0, 0

    @property
    def tokens_per_s(self) -> float | None:
        """Prompt tokens read per second of waiting; None before there are a few samples."""
        if self._samples < MIN_SAMPLES:
            return None
        return self._tokens / self._busy_s if self._tokens and self._busy_s else None

    def wait_s(self, tokens: int) -> float | None:
        """How long so many prompt tokens take to be read; None when nothing was measured."""
        rate = self.tokens_per_s
        return tokens / rate if rate else None
