"""A moment of the matrix is met by one prompt or another: scenes before a router that is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from homesplit_engine.events import EngineEvent, StatusSeen, StepSeen, TransferSeen
from homesplit_engine.records import PrefillSlice, StepEvent, TransferEvent, WorkerStatus

from tests.lab.matrix.cells import Cell
from tests.lab.matrix.moments import TARGETS, Scene
from tests.lab.matrix.traffic import Stream, Traffic

BEGUN, READ, DECODED, HANDED_OVER = "begun", "read", "decoded", "handed over"
KEPT, TEN_TOKENS = "room kept", "ten tokens"


_STEP = StepEvent(box="atlas", step=0, start_s=0.0, end_s=1.0)
_KEEPS_ROOM = WorkerStatus(
    box="borea", clock_s=0.0, running=1, waiting=0, reserved=1, blocks_free=1, blocks_total=9
)
_TRANSFER = TransferEvent(
    box_from="atlas",
    box_to="borea",
    request_id="",
    start_s=0.0,
    end_s=1.0,
    bytes=9,
    tokens=9,
    exposed_s=1.0,
)


class Told:
    """Stands where the router is: says of each target in turn what the test has it say."""

    def __init__(self, targets: Sequence[Sequence[str]]) -> None:
        self.events: list[tuple[float, EngineEvent]] = []
        self.asked: list[Stream] = []
        self._targets = iter(targets)
        self._clock = itertools.count(1)

    def ask(self, name: str, prompt: str, tokens: int, *, sampled: bool = False) -> Stream:
        stream = Stream(name, prompt, tokens, sampled, asked_s=float(next(self._clock)))
        if name.startswith("target"):
            self.asked.append(stream)
            for what in next(self._targets):
                self._say(stream, what)
        elif name.startswith("nudge"):
            stream.done.set()
        else:
            stream.times = [0.0] * 3
        return stream

    def status(self) -> Any:
        return SimpleNamespace(requests=SimpleNamespace(running=99, waiting=0))

    def _say(self, stream: Stream, what: str) -> None:
        if what == TEN_TOKENS:
            stream.times = [0.0] * 10
            return
        self.events.append((float(next(self._clock)), _event(stream.name, what)))


def _event(name: str, what: str) -> EngineEvent:
    if what == KEPT:
        return StatusSeen(status=_KEEPS_ROOM)
    if what == HANDED_OVER:
        return TransferSeen(event=msgspec.structs.replace(_TRANSFER, request_id=name))
    decode = (name,) if what == DECODED else ()
    piece = PrefillSlice(request_id=name, start=0, tokens=64, last=what == READ)
    prefill = () if what == DECODED else (piece,)
    return StepSeen(event=msgspec.structs.replace(_STEP, decode=decode, prefill=prefill))


@pytest.mark.parametrize(
    ("cell", "targets"),
    [
        (Cell("cut", "hand-off", "split"), [[READ]]),
        (Cell("cut", "hand-off", "split"), [[READ, HANDED_OVER], [READ, HANDED_OVER], [READ]]),
        (Cell("cut", "hand-off", "auto"), [[READ, DECODED], [READ, DECODED], [KEPT, READ]]),
        (Cell("cut", "commit", "split"), [[READ, HANDED_OVER, TEN_TOKENS], [READ, HANDED_OVER]]),
        (Cell("cut", "prefill", "colocated"), [[BEGUN, READ], [BEGUN, READ], [BEGUN]]),
    ],
    ids=[
        "at once",
        "handed over before that was seen",
        "placed on one box",
        "too many tokens by then",
        "read before that was seen",
    ],
)
def test_prompts_are_asked_until_one_is_at_the_moment(cell: Cell, targets: list[list[str]]) -> None:
    told = Told(targets)
    reached = Scene(cast(Traffic, told), [cell]).reach()
    assert reached.targets == {cell.moment: told.asked[-1]}
    assert len(told.asked) == len(targets)
    assert {stream.prompt for stream in told.asked} <= {one.prompt for one in reached.greedy}


def test_a_moment_that_no_prompt_meets_is_said_not_to_be_met() -> None:
    told = Told([[READ, HANDED_OVER]] * TARGETS)
    scene = Scene(cast(Traffic, told), [Cell("cut", "hand-off", "split")])
    reached = scene.reach()
    assert reached.targets == {}
    assert reached.last is told.asked[-1]
    assert scene.prompts == [stream.prompt for stream in told.asked]
    assert len(told.asked) == len(set(scene.prompts)) == TARGETS
