"""Follows the engine's steps as they are told: who is served, who waited, what each box did.

A screen keeps one `Watch` and has it take the state now and then. Each step is looked at
once, when it is new, so that a busy engine costs no more per second than it tells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from homesplit_engine.records import StepEvent, TransferEvent

from homesplit.core.engine_state import Engine

MAX_STEPS = 6000
"""Steps a box that strips can show."""
MAX_STALLS = 2000
MAX_ENDED = 5000
SILENT_S = 60.0
"""A request that no step has spoken of for so long is not served any more."""
LATE_S = 5.0
"""Steps and hand-offs of two boxes may be told out of their order by so much."""


class Step(NamedTuple):
    """A step boiled down to what is drawn; times on the router's clock."""

    start_s: float
    end_s: float
    writes: int
    """Answers that got a token."""
    reads: int
    """Prompt tokens computed."""
    prompts: tuple[str, ...]
    """Whose."""
    pieces: bool = False
    """Whether one of the prompts was not read whole in it."""


class Wait(NamedTuple):
    """One answer's wait: from its last token on; where that token came from."""

    request_id: str
    since_s: float
    box: str


class Stall(NamedTuple):
    """Answers whose next token came, or will come, later than the target, by one step of one box.

    The first began to wait at `start_s`; a stall that is still open ends now.
    """

    box: str
    start_s: float
    end_s: float
    waits: tuple[Wait, ...]

    @property
    def length_s(self) -> float:
        """How long the longest waited."""
        return self.end_s - self.start_s


class Live:
    """A request that steps have spoken of."""

    __slots__ = (
        "box",
        "ended",
        "last_s",
        "read_tokens",
        "reading",
        "since_s",
        "token_box",
        "token_s",
        "written_tokens",
    )

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.last_s = since_s
        self.box = ""
        self.reading = False
        self.read_tokens = 0
        self.written_tokens = 0
        self.token_s: float | None = None
        self.token_box = ""
        self.ended = False


class Watch:
    """What was seen of the steps until now."""

    def __init__(self) -> None:
        self._target_s: float | None = None
        self._forget(Engine())

    def _forget(self, engine: Engine) -> None:
        self._first_s = engine.first_s
        self._seen_steps = self._seen_requests = 0
        self.steps: dict[str, deque[Step]] = {}
        self.stalls: deque[Stall] = deque(maxlen=MAX_STALLS)
        self.live: dict[str, Live] = {}
        self._ended: dict[str, None] = {}
        self._moved_on_s: dict[str, float] = {}
        """Per box: the end of its last step that decoded, or after which nothing ran."""
        self._swept_s = 0.0

    def take(self, engine: Engine, target_s: float | None) -> None:
        """Look at what is new; a wait beyond `target_s` seconds is a stall."""
        anew = engine.first_s != self._first_s or engine.total_steps < self._seen_steps
        if anew or target_s != self._target_s:
            self._forget(engine)
            self._target_s = target_s
        new = engine.total_steps - self._seen_steps
        if new > len(engine.steps) and self._seen_steps:
            # Some were never seen: gaps across them would be no gaps.
            self.live.clear()
        for seen in engine.steps[max(len(engine.steps) - new, 0) :]:
            self._take_step(seen.event, seen.offset_s)
        self._seen_steps = engine.total_steps
        self._take_ended(engine)
        if engine.latest_s is not None and engine.latest_s - self._swept_s > 1:
            self._sweep(engine.latest_s)

    # ------------------------------------------------------------------------ one step

    def _take_step(self, event: StepEvent, offset_s: float) -> None:
        start_s, end_s = event.start_s + offset_s, event.end_s + offset_s
        kept = self.steps.get(event.box)
        if kept is None:
            kept = self.steps[event.box] = deque(maxlen=MAX_STEPS)
        reads = sum(piece.tokens for piece in event.prefill)
        prompts = tuple(piece.request_id for piece in event.prefill)
        pieces = any(piece.start or not piece.last for piece in event.prefill)
        kept.append(Step(start_s, end_s, len(event.decode), reads, prompts, pieces))
        waits: list[Wait] = []
        for piece in event.prefill:
            one = self._spoken_of(piece.request_id, event.box, start_s, end_s)
            one.reading = True
            one.read_tokens += piece.tokens
            if piece.last:
                self._token(piece.request_id, one, event.box, end_s, waits)
        for request in event.decode:
            one = self._spoken_of(request, event.box, start_s, end_s)
            one.reading = False
            one.written_tokens += 1
            self._token(request, one, event.box, end_s, waits)
        if event.decode or event.running == 0:
            self._moved_on_s[event.box] = max(self._moved_on_s.get(event.box, end_s), end_s)
        if waits:
            first_s = min(wait.since_s for wait in waits)
            self.stalls.append(Stall(event.box, first_s, end_s, tuple(waits)))

    def _spoken_of(self, request: str, box: str, start_s: float, end_s: float) -> Live:
        one = self.live.get(request)
        if one is None:
            one = self.live[request] = Live(start_s)
            one.ended = request in self._ended
        one.box = box
        one.last_s = max(end_s, one.last_s)
        return one

    def _token(self, request: str, one: Live, box: str, end_s: float, waits: list[Wait]) -> None:
        since_s = one.token_s
        if since_s is not None:
            if self._target_s is not None and end_s - since_s > self._target_s:
                waits.append(Wait(request, since_s, one.token_box))
            end_s = max(since_s, end_s)
        one.token_s = end_s
        one.token_box = box

    # ------------------------------------------------------------------------- the end

    def _take_ended(self, engine: Engine) -> None:
        new = engine.total_requests - self._seen_requests
        self._seen_requests = engine.total_requests
        for done in engine.requests[max(len(engine.requests) - new, 0) :]:
            self._ended[done.request_id] = None
            one = self.live.get(done.request_id)
            if one is not None:
                one.ended = True
        while len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def _sweep(self, latest_s: float) -> None:
        """Forget who ended some seconds ago: their last steps have been told by then."""
        self._swept_s = latest_s
        for request, one in list(self.live.items()):
            if one.last_s < latest_s - (LATE_S if one.ended else SILENT_S):
                del self.live[request]

    # ----------------------------------------------------------------------- what is known

    def open_stalls(self, now_s: float) -> list[Stall]:
        """Waits that go on: no token for longer than the target, and the answer has not ended."""
        target_s = self._target_s
        if target_s is None:
            return []
        waits: dict[str, list[Wait]] = {}
        for request, one in self.live.items():
            since_s = one.token_s
            if one.ended or since_s is None or not target_s < now_s - since_s < SILENT_S:
                continue
            # The box has written others since, or rested: then this one waits for nothing.
            if self._moved_on_s.get(one.token_box, since_s) > since_s:
                continue
            waits.setdefault(one.token_box, []).append(Wait(request, since_s, one.token_box))
        return [
            Stall(box, min(wait.since_s for wait in found), now_s, tuple(found))
            for box, found in waits.items()
        ]

    def stalls_since(self, since_s: float, now_s: float) -> list[Stall]:
        """The stalls that end after `since_s`, the newest last."""
        found: list[Stall] = []
        for stall in reversed(self.stalls):
            if stall.end_s <= since_s - LATE_S:
                break
            if stall.end_s > since_s:
                found.append(stall)
        return sorted([*found, *self.open_stalls(now_s)], key=lambda stall: stall.end_s)

    def steps_since(self, box: str, since_s: float) -> list[Step]:
        """A box's steps that end after `since_s`, in their order."""
        found: list[Step] = []
        for step in reversed(self.steps.get(box, ())):
            if step.end_s < since_s:
                break
            found.append(step)
        found.reverse()
        return found


def moved_transfers(engine: Engine, since_s: float) -> Iterator[tuple[TransferEvent, float, float]]:
    """Hand-offs that end after `since_s`, newest first: start and end on the router's clock."""
    for seen in reversed(engine.transfers):
        end_s = seen.event.end_s + seen.offset_s
        if end_s < since_s - LATE_S:
            break
        if end_s >= since_s:
            yield seen.event, seen.event.start_s + seen.offset_s, end_s
