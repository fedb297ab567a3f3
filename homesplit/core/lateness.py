"""Whether a load generator that was itself late could have turned what a run showed."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.words import Timeline
from msgspec import Struct
from msgspec.structs import replace

from homesplit.core.capacity import Trial
from homesplit.core.summary import inside
from homesplit.core.workload import Targets

WAKES = 4
"""So often the generator has to wake until it has seen a first token: to connect, to send, to read
the head of the answer, and its beginning."""
ALLOWED = 10
"""A generator that has no core left is late with everything at once, and its backlog grows: what
did not hold is only believed where it would not have with so many times its lateness allowed."""
SENT_SHARE = 0.1
"""Of a run: requests that were sent later than that were not offered at its rate."""
SENT_LEAST_S = 0.5
"""Less is a moment without a core, however short the run."""


class Lateness(Struct, frozen=True, kw_only=True):
    """How late the generator was in one run (p99), seconds."""

    woke_s: float
    """Its event loop: each moment that it noted may be late by as much."""
    sent_s: float
    """Its requests, after their time."""

    @property
    def most_s(self) -> float:
        """The worse of both."""
        return max(self.woke_s, self.sent_s)


def could_turn(
    trial: Trial, lines: Sequence[Timeline], targets: Targets, late: Lateness, seconds: float
) -> bool:
    """Whether the run of `seconds` shows what it shows by the generator's lateness alone.

    `lines` are the trial's counted requests. What held must hold within shorter targets too; what
    did not must not within longer ones.
    """
    if late.sent_s > max(SENT_SHARE * seconds, SENT_LEAST_S):
        return True
    if trial.holds is None:
        return False
    if trial.holds:
        first_s, last_s = -WAKES * late.woke_s, -late.woke_s
    else:
        first_s = last_s = ALLOWED * late.woke_s
    found = sum(inside(line, _moved(targets, first_s, last_s, line.tokens)) for line in lines)
    return replace(trial, inside=found).holds is not trial.holds


def _moved(targets: Targets, first_s: float, last_s: float, tokens: int) -> Targets:
    """The targets of one answer whose first and last token were noted so much too late."""
    first, pace = targets.ttft_s, targets.tpot_s
    return Targets(
        ttft_s=None if first is None else max(0.0, first + first_s),
        tpot_s=None if pace is None else max(0.0, pace + last_s / max(tokens - 1, 1)),
    )
