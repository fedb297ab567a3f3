"""Brings a deployment to a cell's moment: the requests to send, and when the fault may come."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from homesplit_engine.events import EngineEvent, StepSeen, TransferSeen

from tests.lab.matrix.cells import Cell, Moment
from tests.lab.matrix.traffic import Stream, Traffic, wait_until

TOKENS, LONG = 120, 1000
REACH_S = 30.0
_numbers = itertools.count()


def prompt_of(kind: str) -> str:
    """A prompt of that many characters, so many tokens; each kind begins differently."""
    words = {"target": "harbour lantern ", "beside": "meadow ", "filler-": "thunder over pines "}
    word = next(word for start, word in words.items() if kind.startswith(start))
    length = 60 if kind == "beside" else LONG
    return (f"{kind} " + word * (length // len(word) + 1))[:length]


KINDS = ("target", "beside", "filler-0", "filler-1", "filler-2", "filler-3")
"""Every prompt whose undisturbed answer is known."""


@dataclass(slots=True)
class Reached:
    """The answers under way, and whether the moment was really met."""

    target: Stream
    streams: dict[str, Stream] = field(default_factory=dict[str, Stream])
    sampled: Stream | None = None
    met: bool = False


class Scene:
    """Sends a cell's requests and waits for its moment."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._since = len(traffic.events)

    def reach(self, cell: Cell) -> Reached:
        """Return as soon as the fault may come."""
        if cell.moment == "idle":
            return Reached(target=self._ask("target"), met=False)
        beside, sampled = self._ask("beside"), self._ask("beside", sampled=True)
        wait_until(lambda: len(beside.times) > 2, REACH_S)
        streams = {"beside": beside}
        if cell.moment == "queued":
            for number in range(4):
                streams[f"filler-{number}"] = self._ask(f"filler-{number}")
        target = self._ask("target")
        streams["target"] = target
        reached = Reached(target=target, streams=streams, sampled=sampled)
        # Frames leave with each piece that is read; after the first token few may be left.
        moment = "prefill" if cell.through_wire else cell.moment
        sign = self._signs(moment, reached)
        wait_until(lambda: sign() or target.done.is_set(), REACH_S)
        reached.met = sign() and not target.done.is_set()
        return reached

    def _ask(self, kind: str, *, sampled: bool = False) -> Stream:
        name = f"{kind}-{next(_numbers)}"
        return self._traffic.ask(name, prompt_of(kind), TOKENS, sampled=sampled)

    def _signs(self, moment: Moment, reached: Reached) -> Callable[[], bool]:
        target = reached.target
        match moment:
            case "queued":
                filler = reached.streams["filler-0"].name
                return lambda: self._read(filler, last=False) and not self._read(target.name)
            case "prefill":
                return lambda: self._read(target.name, last=False)
            case "hand-off":
                return lambda: bool(target.times) and not self._committed(target.name)
            case "commit":
                return lambda: self._committed(target.name)
            case _:
                return lambda: len(target.times) >= 10

    def _events(self) -> list[EngineEvent]:
        return [event for _, event in self._traffic.events[self._since :]]

    def _read(self, name: str, *, last: bool | None = None) -> bool:
        """Whether a step read some of this prompt (its end, or not its end)."""
        return any(
            piece.request_id == name and (last is None or piece.last == last)
            for event in self._events()
            if isinstance(event, StepSeen)
            for piece in event.event.prefill
        )

    def _committed(self, name: str) -> bool:
        return any(
            isinstance(event, TransferSeen) and event.event.request_id == name
            for event in self._events()
        )
