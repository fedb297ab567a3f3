"""Rates learnt from what the workers report, as exponentially weighted means."""

from __future__ import annotations

from homesplit_engine.records import StepEvent, TransferEvent

WEIGHT = 0.2
"""Share of the newest sample."""
MIN_PREFILL_TOKENS = 16
"""Shorter pieces measure the step's fixed cost, not the rate."""


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)


class Rates:
    """Measured so far; None, or absent, where nothing was measured yet."""

    def __init__(self) -> None:
        self.prefill_tokens_per_s: dict[str, float] = {}
        self.decode_step_s: dict[str, float] = {}
        self.link_bytes_per_s: dict[tuple[str, str], float] = {}
        self.output_tokens: float | None = None

    def learn_step(self, event: StepEvent) -> None:
        """One engine step: a pure decode step, or prefill less what decode would have taken."""
        took_s = event.end_s - event.start_s
        tokens = sum(piece.tokens for piece in event.prefill)
        if not tokens and event.decode:
            old = self.decode_step_s.get(event.box)
            self.decode_step_s[event.box] = _mean(old, took_s)
        elif tokens >= MIN_PREFILL_TOKENS:
            decode_s = self.decode_step_s.get(event.box, 0.0) if event.decode else 0.0
            prefill_s = max(took_s - decode_s, took_s / 2)
            if prefill_s > 0:
                old = self.prefill_tokens_per_s.get(event.box)
                self.prefill_tokens_per_s[event.box] = _mean(old, tokens / prefill_s)

    def learn_transfer(self, event: TransferEvent) -> None:
        """One committed hand-off, as payload bytes over its whole time.

        With overlap the wire also waits for prefill, so this is a lower bound of the link.
        """
        took_s = event.end_s - event.start_s
        if event.committed and event.bytes > 0 and took_s > 0:
            pair = (event.box_from, event.box_to)
            self.link_bytes_per_s[pair] = _mean(
                self.link_bytes_per_s.get(pair), event.bytes / took_s
            )

    def learn_answer(self, tokens: int) -> None:
        """One answer ended in good order with this many tokens."""
        self.output_tokens = _mean(self.output_tokens, tokens)
