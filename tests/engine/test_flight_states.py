"""One answer over two boxes as a state machine: what they say comes late, twice, out of order.

Each box says only what is true of an attempt of the answer, but anything of it at any time, also
long after the attempt was given up; boxes are lost and come back; hand-offs fail.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from homesplit_engine.policy import Decision
from homesplit_engine.records import Sending, TransferEvent
from homesplit_engine.router.attempt import BoxLost, GivenToken, Item
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.flight import MAX_FAILED_ATTEMPTS, Flight
from homesplit_engine.router.handover import Way
from homesplit_engine.wire.messages import (
    Committed,
    Failed,
    HandoffReport,
    HandoffSecret,
    HandoffTarget,
    PrefillDone,
    Refused,
    Reserve,
    Reserved,
    SamplingParams,
    SendTo,
    Submit,
    Token,
    ToWorker,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.engine.test_flight import A_TO_B, order

PROMPT = [1, 2, 3]
ANSWER = [10 + index for index in range(8)]
SECRET = HandoffSecret(password="", seal_key=b"")
TURNS = 12
"""Of the event loop, until all that was said has been heard."""
WHICH = st.integers(0, 99)


class World:
    """Two boxes and what they were asked."""

    detection_s = 1e6

    def __init__(self, room: bool) -> None:
        self.room = room
        """Whether box b is thought to have some when the answer is placed."""
        self.alive = {"a", "b"}
        self.attempts: dict[str, int] = {}
        """The index of the first token that each attempt gives, by wire id."""
        self.busy: set[tuple[str, str]] = set()
        """Boxes and the wire ids that they hold something for."""
        self.failures = 0
        self.rooms_wanted: set[str] = set()
        """Wire ids that b was asked to keep room for."""
        self.kept: dict[str, bool] = {}
        """What b said when it was asked for room, by wire id."""
        self.reads_ahead: list[str] = []
        """Wire ids of prompts that a reads without knowing where to send them."""
        self.told: list[str] = []
        """Wire ids of those that it was told of."""

    def place(self, flight: Flight) -> Decision | None:
        return A_TO_B if len(self.alive) == 2 else self.place_again(flight, "", None)

    def place_again(self, flight: Flight, reason: str, avoid: str | None) -> Decision | None:
        box = min(self.alive - {avoid} or self.alive)
        return Decision(
            kind="colocated",
            prefill_box=box,
            decode_box=box,
            prefill="whole",
            chunk_tokens=None,
            why="",
        )

    def has_room(self, box: str, flight: Flight) -> bool:
        return self.room

    def asked_for_room(self, box: str, *, full: bool) -> None:
        assert box == "b"

    def target(self, box: str, reserved: Reserved) -> HandoffTarget | None:
        if box not in self.alive:
            return None
        return HandoffTarget(
            reservation_id="",
            box=box,
            endpoint="",
            secret=SECRET,
            fingerprint="",
            cached_tokens=0,
        )

    def send(self, box: str, message: ToWorker) -> bool:
        if box not in self.alive:
            return False
        if isinstance(message, SendTo):
            assert box == "a" and self.kept[message.request_id]
            self.told.append(message.request_id)
            return True
        assert isinstance(message, Reserve | Submit)
        if isinstance(message, Reserve):
            self.rooms_wanted.add(message.request_id)
        if isinstance(message, Submit) and message.handoff_follows:
            self.reads_ahead.append(message.request_id)
        given = message.token_ids[len(PROMPT) :]
        assert message.token_ids[: len(PROMPT)] == PROMPT and given == ANSWER[: len(given)]
        self.attempts[message.request_id] = len(given)
        self.busy.add((box, message.request_id))
        return True

    def cancel(self, box: str, wire_id: str) -> None:
        self.busy.discard((box, wire_id))

    def listen(self, wire_id: str, flight: Flight) -> None: ...

    def unlisten(self, wire_id: str) -> None: ...

    def boxes_for(self, flight: Flight) -> int:
        return len(self.alive)

    async def until_usable(self, timeout_s: float) -> None:
        raise AssertionError("a box is always there")

    def way(self, flight: Flight, decision: Decision) -> Way:
        return Way(whole_bytes=None, link_bytes_per_s=None, read_s=None)

    def slow_handoff(self, decision: Decision, bytes_per_s: float | None) -> None: ...

    def fault(self, box: str | None, kind: str, sentence: str) -> None:
        self.failures += kind != "worker_lost"


class FlightMachine(RuleBasedStateMachine):
    """The answer's reader, and everything that may be said to the flight."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()

    @initialize(room=st.booleans())
    def begin(self, room: bool) -> None:
        self.world = World(room)
        sampling = SamplingParams(max_tokens=len(ANSWER))
        self.flight = Flight(self.world, order(token_ids=PROMPT, sampling=sampling))
        self.got: list[int] = []
        self.error: ApiError | None = None
        self.reader = self.loop.create_task(self._read())
        self._settle()

    async def _read(self) -> None:
        try:
            while (piece := await self.flight.next_piece()) is not None:
                if piece.token is not None:
                    assert piece.token.index == len(self.got)
                    self.got.append(piece.token.token_id)
        except ApiError as error:
            self.error = error

    def _settle(self) -> None:
        async def pass_turns() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(pass_turns())

    def _say(self, box: str, wire_id: str, item: Item) -> None:
        self.flight.inbox.put_nowait((box, wire_id, item))
        self._settle()

    def _wire(self, which: int) -> str:
        return list(self.world.attempts)[which % len(self.world.attempts)]

    @rule(which=WHICH, index=st.integers(0, 7), box=st.sampled_from("ab"))
    def a_token(self, which: int, index: int, box: str) -> None:
        wire_id = self._wire(which)
        self._give(box, wire_id, min(len(ANSWER) - 1, self.world.attempts[wire_id] + index))

    def _give(self, box: str, wire_id: str, index: int) -> None:
        token = Token(request_id=wire_id, index=index, token_id=ANSWER[index])
        finish = "length" if index == len(ANSWER) - 1 else None
        self._say(box, wire_id, GivenToken(token, finish))

    @rule(which=WHICH)
    def room_is_kept(self, which: int) -> None:
        wire_id = self._wire(which)
        if self.world.kept.setdefault(wire_id, True):
            reserved = Reserved(
                request_id=wire_id, reservation_id="", cached_tokens=0, secret=SECRET
            )
            self._say("b", wire_id, reserved)

    @rule(which=WHICH, kind=st.sampled_from(["full", "bad_request"]))
    def room_is_refused(self, which: int, kind: Literal["full", "bad_request"]) -> None:
        wire_id = self._wire(which)
        if wire_id not in self.world.rooms_wanted or (kind == "bad_request" and not self.got):
            return  # nobody asked for it, or that ends it, as it should
        if not self.world.kept.setdefault(wire_id, False):
            self.world.busy.discard(("b", wire_id))
            self._say("b", wire_id, Refused(request_id=wire_id, kind=kind, what="no room"))

    @rule(which=WHICH)
    def the_prompt_is_read(self, which: int) -> None:
        wire_id = self._wire(which)
        self._say(
            "a",
            wire_id,
            PrefillDone(request_id=wire_id, queue_s=0.0, prefill_s=0.0, cached_tokens=0),
        )

    @rule(which=WHICH, left_bytes=st.sampled_from([0, 5, 1000]))
    def a_hand_off_goes_on(self, which: int, left_bytes: int) -> None:
        wire_id = self._wire(which)
        self._say("a", wire_id, Sending(request_id=wire_id, left_bytes=left_bytes))

    @rule(which=WHICH)
    def a_hand_off_is_committed(self, which: int) -> None:
        wire_id = self._wire(which)
        self._say("b", wire_id, Committed(request_id=wire_id, bytes=8, tokens=3))

    @rule(which=WHICH, committed=st.booleans())
    def a_hand_off_ends(self, which: int, committed: bool) -> None:
        wire_id = self._wire(which)
        event = TransferEvent(
            box_from="a",
            box_to="b",
            request_id=wire_id,
            start_s=0.0,
            end_s=1.0,
            bytes=8,
            tokens=3,
            exposed_s=0.0,
            committed=committed,
        )
        self._say("a", wire_id, HandoffReport(event=event, why=None if committed else "lost"))

    @precondition(lambda self: self.world.failures < MAX_FAILED_ATTEMPTS - 1)
    @rule(which=WHICH, box=st.sampled_from("ab"))
    def a_box_fails(self, which: int, box: str) -> None:
        wire_id = self._wire(which)
        self._say(box, wire_id, Failed(request_id=wire_id, kind="engine", what="it broke"))

    @precondition(lambda self: len(self.world.alive) == 2)
    @rule(box=st.sampled_from("ab"))
    def a_box_is_lost(self, box: str) -> None:
        self.world.alive.discard(box)
        self.world.busy = {(at, wire_id) for at, wire_id in self.world.busy if at != box}
        self._say(box, "", BoxLost(why="killed"))

    @rule(box=st.sampled_from("ab"))
    def a_box_is_back(self, box: str) -> None:
        self.world.alive.add(box)

    @invariant()
    def every_token_is_given_once_and_in_order(self) -> None:
        assert self.got == ANSWER[: len(self.got)]

    @invariant()
    def it_ends_with_its_whole_text_or_after_too_many_failures(self) -> None:
        if self.reader.done():
            assert self.reader.exception() is None
            many = self.world.failures >= MAX_FAILED_ATTEMPTS
            full = self.error is not None and self.error.status == 429 and not self.got
            assert self.got == ANSWER if self.error is None else many or full

    @invariant()
    def who_reads_ahead_is_told_once_where_it_goes_and_only_once_room_was_kept(self) -> None:
        assert len(set(self.world.told)) == len(self.world.told)
        assert set(self.world.told) <= set(self.world.reads_ahead)
        assert self.world.room or not self.world.reads_ahead

    @invariant()
    def no_box_holds_anything_for_an_attempt_that_was_given_up(self) -> None:
        attempt = self.flight.attempt
        current = set[str]() if attempt is None else {attempt.wire_id}
        assert {wire_id for _, wire_id in self.world.busy} <= current

    def teardown(self) -> None:
        """With nothing more going wrong it comes to its end."""
        for _ in range(3):
            attempt = self.flight.attempt
            if self.reader.done() or attempt is None:
                break
            wire_id = attempt.wire_id
            if self.world.kept.get(wire_id, True) is False:
                break
            self.room_is_kept(list(self.world.attempts).index(wire_id))
            for index in range(attempt.first_index, len(ANSWER)):
                self._give(attempt.decision.decode_box, wire_id, index)
        assert self.reader.done()
        self.it_ends_with_its_whole_text_or_after_too_many_failures()
        self.loop.close()


TestFlight = FlightMachine.TestCase
TestFlight.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
