"""The figures of the last minutes' requests for the charts, kept as the requests end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from homesplit.core.engine_state import Done, Engine
from homesplit.view.prompt_classes import PromptClass, place_by_length

SPAN_S = 180.0
FIGURES = ("ttft", "tpot")


class Trail:
    """One figure of one class: when each request ended, and the figure."""

    __slots__ = ("at_s", "values")

    def __init__(self) -> None:
        self.at_s: deque[float] = deque()
        self.values: deque[float] = deque()

    def forget_before(self, began_s: float) -> None:
        """Let go of what ended earlier."""
        while self.at_s and self.at_s[0] < began_s:
            self.at_s.popleft()
            self.values.popleft()


class Trails:
    """A trail for each class and figure; each request is looked at once, when it is new."""

    def __init__(self) -> None:
        self.classes: tuple[PromptClass, ...] = ()
        self._forget(None)

    def _forget(self, first_s: float | None) -> None:
        self._seen = 0
        self._first_s = first_s
        self._trails = {which: [Trail() for _ in self.classes] for which in FIGURES}
        self._place = place_by_length(self.classes)

    def take(self, engine: Engine, classes: Sequence[PromptClass]) -> None:
        """Look at the requests that ended since the last time; other classes part all anew."""
        told = tuple(classes)
        anew = told != self.classes or engine.first_s != self._first_s
        if anew or engine.total_requests < self._seen:
            self.classes = told
            self._forget(engine.first_s)
        new = engine.total_requests - self._seen
        self._seen = engine.total_requests
        for done in engine.requests[max(len(engine.requests) - new, 0) :]:
            if done.outcome == "completed" and self.classes:
                self._add(done)
        for trail in (trail for found in self._trails.values() for trail in found):
            trail.forget_before((engine.latest_s or 0.0) - SPAN_S)

    def _add(self, done: Done) -> None:
        place = self._place(done.prompt_tokens)
        for which, value in (("ttft", done.ttft_s), ("tpot", done.tpot_s)):
            if value is not None:
                trail = self._trails[which][place]
                trail.at_s.append(done.at_s)
                trail.values.append(value)

    def of(self, which: str) -> Sequence[Trail]:
        """The trails of one figure by class, over the last `SPAN_S` seconds."""
        return self._trails[which]
