"""Brings a deployment to the moments of some cells: what is asked, and when the fault may come.

The long prompts are new for every run, so that they are really read and handed over; the short
one beside them is always the same, so that a prefix kept from a broken cell would be seen in its
text. Several moments are brought about at once where they can be: while one answer is written
another prompt is handed over, a third is read, and a fourth waits.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from homesplit_engine.events import EngineEvent, StatusSeen, StepSeen, TransferSeen
from homesplit_engine.records import ModeSetting

from tests.lab.matrix.answers import CHOICES, TOKENS
from tests.lab.matrix.cells import HIT_BOX, Cell, Moment
from tests.lab.matrix.stand import SETTINGS
from tests.lab.matrix.traffic import Stream, Traffic, wait_until

TARGET_CHARS = 640
"""One token a character: ten pieces of 64."""
HANDOFF_CHARS = 1280
"""Of a prompt that is to be met after it was read and before it was handed over: read in one
piece, so that its hand-off goes on for 4 s after it, however slowly this computer reads."""
BESIDE = "meadow lark in the morning, and nobody about to hear it "
BESIDE_TOKENS = 200
"""Long enough to be still written when the fault comes."""
AGAIN_TOKENS = 8
REACH_S = 30.0
TARGETS = 9
"""Prompts tried one after the other until one is at its moment: one more than the placements among
which `auto` tries a direction that was never measured."""
CAME_S = 2.0
LOOK_S = 0.002
COMMIT_TOKENS, DECODING_TOKENS = 5, 10
BEFORE_QUEUED = 2
READERS = 2
NUDGES = 8 - 1 - READERS - 1 - CHOICES - 1
"""`auto` tries a direction that was never measured with every eighth placement. A new router's
first are: its own question, a prompt on each box, the one beside, each sampled choice. The target
is to be the eighth."""
_numbers = itertools.count()


def fresh_prompt(words: str, length: int) -> str:
    """A prompt that differs from every earlier one from its first token on."""
    start = f"{next(_numbers):05d} {words} "
    return (start * (length // len(start) + 1))[:length]


@dataclass(slots=True)
class Reached:
    """The answers under way, and which of them was at which moment when the fault came."""

    greedy: list[Stream]
    targets: dict[Moment, Stream]
    sampled: Stream | None = None

    @property
    def last(self) -> Stream:
        """Who is judged where no moment was met."""
        return self.greedy[-1]


@dataclass(slots=True)
class _Told:
    """What the router's events have said of the requests up to now."""

    upto: int
    begun: set[str] = field(default_factory=set[str])
    read: dict[str, float] = field(default_factory=dict[str, float])
    """And when it was heard: the first token's text may wait for its character's other bytes."""
    decoded: set[str] = field(default_factory=set[str])
    handed_over: set[str] = field(default_factory=set[str])
    box: dict[str, str] = field(default_factory=dict[str, str])
    """Who read or wrote each last."""
    reserved: dict[str, float] = field(default_factory=dict[str, float])
    """When each box last told that it keeps room for a hand-off."""

    def hear(self, events: Sequence[tuple[float, EngineEvent]]) -> None:
        """Take in what came since."""
        for heard_s, event in events[self.upto :]:
            match event:
                case StepSeen():
                    self.decoded |= set(event.event.decode)
                    pieces = {piece.request_id: piece.last for piece in event.event.prefill}
                    self.begun |= set(pieces)
                    self.read |= {name: heard_s for name, last in pieces.items() if last}
                    self.box |= dict.fromkeys([*event.event.decode, *pieces], event.event.box)
                case TransferSeen():
                    self.handed_over.add(event.event.request_id)
                case StatusSeen() if event.status.reserved:
                    self.reserved[event.status.box] = heard_s
                case _:
                    pass
            self.upto += 1


class Scene:
    """Sends the requests of some cells of one fault and mode, and waits for their moments."""

    def __init__(self, traffic: Traffic, cells: Sequence[Cell]) -> None:
        self._traffic = traffic
        self._cells = cells
        self._told = _Told(len(traffic.events))
        self._moments: list[Moment] = [cell.moment for cell in cells]
        self._first_handoff = any(cell.needs_first_handoff for cell in cells)
        self._two_boxes = cells[0].mode in ("replica", "auto") and not self._first_handoff
        self._late = self._moments == ["hand-off"] and not cells[0].through_wire
        """Whether a hand-off has to be met after its prompt was read."""
        self.prompts = self._fresh_prompts()
        """Asked beside the prompt that is always the same; where moments are missed, more."""

    @property
    def setting(self) -> ModeSetting:
        """The mode that is to be in force."""
        setting = SETTINGS[self._cells[0].mode]
        return (
            msgspec.structs.replace(setting, chunk_tokens=HANDOFF_CHARS) if self._late else setting
        )

    def _fresh_prompts(self) -> list[str]:
        length = HANDOFF_CHARS if self._late else TARGET_CHARS
        return [fresh_prompt("harbour", length) for _ in range(self._count())]

    def _count(self) -> int:
        """One that waits needs another in front of it on its box."""
        at_once = sum(moment != "decoding" for moment in self._moments)
        in_front = BEFORE_QUEUED + self._two_boxes if "queued" in self._moments else 0
        return max(1, at_once, in_front + 1)

    def ask_target(self) -> Reached:
        """One alone, for a fault that came while nobody asked."""
        target = self._ask(self.prompts[0], "target")
        return Reached([target], {"idle": target})

    def ask_again(self) -> Stream:
        """The last target's first tokens once more: whatever is kept of its prompt is used."""
        return self._ask(self.prompts[-1], "again", tokens=AGAIN_TOKENS)

    def reach(self) -> Reached:
        """Return as soon as the fault may come."""
        self._nudge(READERS * self._first_handoff)
        greedy = [
            self._ask(BESIDE, "beside", tokens=BESIDE_TOKENS) for _ in range(1 + self._two_boxes)
        ]
        sampled = self._ask(BESIDE, "sampled", sampled=True)
        wait_until(lambda: all(len(one.times) > 2 for one in greedy), REACH_S)
        wait_until(lambda: self._all_came(greedy, sampled), CAME_S, 0.01)
        self._nudge(NUDGES * self._first_handoff)
        found: dict[Moment, Stream] = {}
        for turn in range(TARGETS):
            if turn:
                self.prompts += self._fresh_prompts()
            beside = list(greedy)
            targets = [self._ask(prompt, "target") for prompt in self.prompts[-self._count() :]]
            greedy += targets
            found = self._met(beside, targets, sampled)
            if found or len(self._moments) > 1:
                break
        return Reached(greedy, found, sampled)

    def _met(
        self, beside: Sequence[Stream], targets: Sequence[Stream], sampled: Stream
    ) -> dict[Moment, Stream]:
        if "queued" in self._moments:
            # One that has not come yet would look like one that waits.
            wait_until(lambda: self._all_came([*beside, *targets], sampled), CAME_S, 0.01)
        # An answer of the short prompt may stand for one moment among several, not alone.
        candidates = [*targets, *beside] if len(self._moments) > 1 else targets[-1:]
        return self._wait_for_moments(candidates, targets)

    def _wait_for_moments(
        self, candidates: Sequence[Stream], targets: Sequence[Stream]
    ) -> dict[Moment, Stream]:
        """Who is at which moment, as soon as all are met or one can't be met any more."""
        end_s = time.monotonic() + REACH_S
        while True:
            self._told.hear(self._traffic.events)
            found = self._at_their_moments(candidates)
            over = time.monotonic() > end_s or self._is_over(targets)
            if over or len(found) == len(self._moments):
                return found
            time.sleep(LOOK_S)

    def _is_over(self, targets: Sequence[Stream]) -> bool:
        if len(self._moments) > 1:
            if "commit" in self._moments:
                return any(target.name in self._told.handed_over for target in targets)
            return targets[-1].name in self._told.begun
        return targets[-1].done.is_set() or self._is_past(self._moments[0], targets[-1])

    def _is_past(self, moment: Moment, stream: Stream) -> bool:
        """Whether it won't be at this moment any more."""
        told, name = self._told, stream.name
        match moment:
            case "queued":
                return name in told.begun
            case "prefill":
                return name in told.read
            case "hand-off":
                return name in told.decoded or name in told.handed_over
            case "commit":
                return len(stream.times) > COMMIT_TOKENS
            case _:
                return False

    def _at_their_moments(self, candidates: Sequence[Stream]) -> dict[Moment, Stream]:
        """Where two would do, whoever is on the box that will be hit."""
        found: dict[Moment, Stream] = {}
        hit = HIT_BOX.get(self._cells[0].fault)
        for moment in self._moments:
            for stream in sorted(candidates, key=lambda one: self._told.box.get(one.name) != hit):
                taken = any(stream is other for other in found.values())
                if not taken and not stream.done.is_set() and self._is_at(moment, stream):
                    found[moment] = stream
                    break
        return found

    def _is_at(self, moment: Moment, stream: Stream) -> bool:
        told, name = self._told, stream.name
        if moment == "hand-off" and self._cells[0].through_wire:
            # Frames leave with each piece that is read; after the first token few may be left.
            moment = "prefill"
        match moment:
            case "queued":
                return name not in told.begun
            case "prefill":
                return name in told.begun and name not in told.read
            case "hand-off":
                return (
                    name in told.read
                    and name not in told.handed_over
                    and name not in told.decoded
                    and (not self._first_handoff or self._has_room_kept(stream))
                )
            case "commit":
                return name in told.handed_over and len(stream.times) <= COMMIT_TOKENS
            case _:
                return len(stream.times) >= DECODING_TOKENS

    def _has_room_kept(self, stream: Stream) -> bool:
        """Whether another box than its reader keeps room: in `auto` not all are handed over."""
        reader = self._told.box[stream.name]
        return any(
            box != reader and heard_s > stream.asked_s
            for box, heard_s in self._told.reserved.items()
        )

    def _all_came(self, greedy: Sequence[Stream], sampled: Stream) -> bool:
        """Whether the router has every request that has not ended."""
        status = self._traffic.status()
        if status is None:
            return False
        here = sum(not stream.done.is_set() for stream in greedy)
        here += CHOICES * (not sampled.done.is_set())
        return status.requests.running + status.requests.waiting >= here

    def _nudge(self, count: int) -> None:
        """So many placements that hand nothing over: an answer of one token."""
        for _ in range(count):
            self._ask(fresh_prompt("nudge", 24), "nudge", tokens=1).done.wait(REACH_S)

    def _ask(
        self, prompt: str, kind: str, *, tokens: int = TOKENS, sampled: bool = False
    ) -> Stream:
        return self._traffic.ask(f"{kind}-{next(_numbers)}", prompt, tokens, sampled=sampled)
