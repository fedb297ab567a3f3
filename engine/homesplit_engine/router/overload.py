"""Tells a burst from an overload, so that the one is queued and the other refused at the target.

A burst's queue goes away by itself. A queue that has stood above the TTFT target for ten times
that target will not, nor one in which more wait than a home has people: from then on whoever
would come after the target is refused, until the queue has been short for as long, or has been
worked off before the next request came. A few people who ask now and then are no overload,
however slow the boxes are. (The idea is that of
CoDel, which tells good queues from bad ones in network equipment: Nichols and Jacobson,
"Controlling Queue Delay", 2012.) A target that a request names and that is shorter than the
deployment's is watched for by itself: what is short for others is long for it. For a longer one
the deployment's tells whether a queue stands; refused is who would come after the longer one.
"""

from __future__ import annotations

STANDS_TARGETS = 10.0
"""A queue longer than the target for so many targets is no burst; shorter so long, it is over."""
CROWD = 32
"""So many waiting beyond the target are no household's burst."""
SHORT_SHARE = 0.5
"""Below this share of the target the queue counts as short."""
MOST_TARGETS = 16
"""Targets that are watched for at a time; of the requests' own the one named longest ago
makes room."""


class Overload:
    """Watches the queue that each newcomer finds; time comes in."""

    def __init__(self, target_s: float | None) -> None:
        self._target_s = target_s
        self._watches: dict[float, _Watch] = {}
        """By target, the one named last at the end."""
        if target_s is not None:
            self._name(target_s)
        self._empty_s: float | None = None
        """When the queue that was last seen will have been worked off."""

    def limit_s(
        self,
        ahead_s: float,
        alone_s: float,
        now_s: float,
        *,
        waiting: int = 0,
        own_s: float | None = None,
    ) -> float | None:
        """The longest wait that is let in now; None while nothing has to be refused for it.

        `ahead_s` is what those ahead take, `alone_s` the wait with nobody ahead: where that is
        no better than the target, refusing saves nobody's. `waiting` are those ahead; `own_s` is
        the request's own TTFT target, where it has one.
        """
        known_s = [one_s for one_s in (self._target_s, own_s) if one_s is not None]
        if not known_s:
            return None
        target_s, watched_s = known_s[-1], min(known_s)
        self._name(watched_s)
        is_over = ahead_s <= 0 or (self._empty_s is not None and now_s >= self._empty_s)
        self._empty_s = now_s + ahead_s
        for watch in self._watches.values():
            watch.look(ahead_s, now_s, waiting, worked_off=is_over)
        stands = self._watches[watched_s].stands
        return target_s if stands and alone_s < target_s / 2 else None

    def _name(self, target_s: float) -> None:
        """Watch for this target from now on, if it isn't already."""
        self._watches[target_s] = self._watches.pop(target_s, None) or _Watch(target_s)
        if len(self._watches) > MOST_TARGETS:
            oldest = next(known for known in self._watches if known != self._target_s)
            del self._watches[oldest]


class _Watch:
    """Whether there is more to do, for longer, than the boxes can do within one target."""

    def __init__(self, target_s: float) -> None:
        self.stands = False
        self._target_s = target_s
        self._long_since_s: float | None = None
        self._short_since_s: float | None = None

    def look(self, ahead_s: float, now_s: float, waiting: int, *, worked_off: bool) -> None:
        """A newcomer finds this queue; `worked_off`: the last one was done before it came."""
        target_s = self._target_s
        if worked_off:
            self._long_since_s, self.stands = None, False
        self._long_since_s = _since(self._long_since_s, ahead_s > target_s, now_s)
        self._short_since_s = _since(self._short_since_s, ahead_s < SHORT_SHARE * target_s, now_s)
        after_s = STANDS_TARGETS * target_s
        if self._long_since_s is not None and now_s - self._long_since_s >= after_s:
            self.stands = True
        if self._short_since_s is not None and now_s - self._short_since_s >= after_s:
            self.stands = False
        if waiting >= CROWD and ahead_s > target_s:
            self.stands = True


def _since(before_s: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if before_s is None else before_s
