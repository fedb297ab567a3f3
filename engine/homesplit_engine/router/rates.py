"""Rates learnt from what the workers report, as exponentially weighted means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homesplit_engine.records import StepEvent, TransferEvent

WEIGHT = 0.2
"""Share of the newest sample."""
MIN_PREFILL_TOKENS = 16
"""Shorter pieces measure the step's fixed cost, not the rate."""
MIN_TRANSFER_BYTES = 256 * 2**10
"""Smaller hand-offs measure round trips, not the link's rate."""
SLOW_S = 30.0
"""After so long a link that was too slow for a hand-off is tried again."""
LINK_BOUND_SHARE = 0.5
"""With so much of a hand-off after prefill, it was the link that took the time."""


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)


class Rates:
    """Measured so far; None, or absent, where nothing was measured yet."""

    def __init__(self, pairs: Mapping[tuple[str, str], float] | None = None) -> None:
        self.prefill_tokens_per_s: dict[str, float] = {}
        self.decode_step_s: dict[str, float] = {}
        self.link_bytes_per_s: dict[tuple[str, str], float] = dict(pairs or {})
        """Payload rate by (from, to): told from a probe at first, then as hand-offs show."""
        self.link_can_bytes_per_s: dict[tuple[str, str], float] = dict(pairs or {})
        """The highest of them: what the link is known to carry when all is well."""
        self._slow_s: dict[tuple[str, str], float] = {}
        """When the last hand-off was given up as too slow, for links that carried none since."""
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
        """One committed hand-off: its payload bytes over its time.

        With overlap the wire also waits for prefill, so that is a lower bound of the link's
        rate: a higher one is believed, a lower one only where the hand-off went on long after
        prefill. A small hand-off is taken for want of any better.
        """
        took_s = event.end_s - event.start_s
        if not (event.committed and event.bytes > 0 and took_s > 0):
            return
        pair, seen = (event.box_from, event.box_to), event.bytes / took_s
        self.link_can_bytes_per_s[pair] = max(seen, self.link_can_bytes_per_s.get(pair, 0.0))
        was_slow = self._slow_s.pop(pair, None) is not None
        old = self.link_bytes_per_s.get(pair)
        if old is None or was_slow:
            self.link_bytes_per_s[pair] = seen
        elif event.bytes >= MIN_TRANSFER_BYTES and (
            seen > old or event.exposed_s > LINK_BOUND_SHARE * took_s
        ):
            self.link_bytes_per_s[pair] = _mean(old, seen)

    def learn_slow(self, pair: tuple[str, str], bytes_per_s: float | None, now_s: float) -> None:
        """A hand-off was given up while so much of it arrived a second, None if nobody knows."""
        if bytes_per_s is None:
            self.link_bytes_per_s.pop(pair, None)
        else:
            self.link_bytes_per_s[pair] = bytes_per_s
        self._slow_s[pair] = now_s

    def links(self, now_s: float) -> dict[tuple[str, str], float]:
        """The links' rates; one that was too slow counts as never measured after a while."""
        stale = {pair for pair, at_s in self._slow_s.items() if now_s - at_s > SLOW_S}
        return {pair: rate for pair, rate in self.link_bytes_per_s.items() if pair not in stale}

    def read_s(self, boxes: Sequence[str], tokens: int) -> float | None:
        """What the first of these boxes whose rate is known takes to read so many tokens."""
        known = [self.prefill_tokens_per_s.get(box) for box in boxes]
        return next((tokens / rate for rate in known if rate), None)

    def learn_answer(self, tokens: int) -> None:
        """One answer ended in good order with this many tokens."""
        self.output_tokens = _mean(self.output_tokens, tokens)
