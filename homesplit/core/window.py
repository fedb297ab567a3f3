"""Which requests of a run count and what its rates are over: warm-up and drain are left out."""

from __future__ import annotations

from msgspec import Struct

EDGE_SHARE = 0.1
"""Of a run, what is left out at its beginning (warm-up) and at its end (drain)."""
EDGE_MOST_S = 5.0


class Window(Struct, frozen=True, kw_only=True):
    """Which requests of a run count, by when they were due; seconds from its start."""

    warm_up_s: float
    drain_s: float
    offered_s: float
    """How long requests were offered."""

    def counts(self, due_s: float) -> bool:
        """Whether a request that was due then counts."""
        left_at_the_end = self.drain_s > 0 and due_s >= self.offered_s - self.drain_s
        return due_s >= self.warm_up_s and not left_at_the_end

    def length_s(self, last_answer_s: float) -> float:
        """What rates are over, when the last counted answer ended at `last_answer_s`.

        Answers that needed longer than the offering lasted prolong it: what was not worked off
        in time is no rate. 0 where warm-up and drain leave nothing.
        """
        late_s = max(0.0, last_answer_s - self.offered_s)
        return max(0.0, self.offered_s - self.warm_up_s - self.drain_s + late_s)

    @property
    def rule(self) -> str:
        """In a sentence."""
        edges = (("first", self.warm_up_s, "warm-up"), ("last", self.drain_s, "drain"))
        out = [f"the {end} {span_s:.3g} s ({name})" for end, span_s, name in edges if span_s > 0]
        left = (
            f"Requests due in {' and in '.join(out)} are left out" if out else "All requests count"
        )
        return (
            f"{left}; every answer is waited for. Rates are over the time in which counted "
            "requests were due, and what their answers needed beyond the end of the offering."
        )


def window(
    offered_s: float, warm_up_s: float | None = None, drain_s: float | None = None
) -> Window:
    """What counts of a run by rule: all but a tenth at each end, at most 5 s.

    What is given in seconds overrides the rule; 0 leaves nothing out.
    """
    edge_s = min(EDGE_MOST_S, EDGE_SHARE * offered_s)
    return Window(
        warm_up_s=edge_s if warm_up_s is None else warm_up_s,
        drain_s=edge_s if drain_s is None else drain_s,
        offered_s=offered_s,
    )
