"""One answer without a router around it: what it does while no box takes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from homesplit_engine.policy import Decision
from homesplit_engine.records import ModeSetting, Sending, TransferEvent
from homesplit_engine.router.attempt import BoxLost, Cancelled, GivenToken, Order, Stopping
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.handover import Way
from homesplit_engine.wire.messages import (
    Committed,
    HandoffReport,
    HandoffSecret,
    HandoffTarget,
    PrefillDone,
    Reserve,
    Reserved,
    SamplingParams,
    SendTo,
    Submit,
    Token,
    ToWorker,
)

FAR_S = 1e9
ON_A = Decision(
    kind="colocated", prefill_box="a", decode_box="a", prefill="whole", chunk_tokens=None, why="a"
)


class OneBox:
    """A router with one box `a`, which takes messages or does not."""

    detection_s = 60.0

    def __init__(self, takes: Callable[[], bool], *, usable: bool = True) -> None:
        self.usable = usable
        self.tries = 0
        self.sent: asyncio.Queue[Submit] = asyncio.Queue()
        self.faults: list[str] = []
        self.kinds: list[tuple[str | None, str]] = []
        self.cancelled: list[tuple[str, str]] = []
        self._takes = takes

    def place(self, flight: Flight) -> Decision | None:
        return ON_A if self.usable else None

    def place_again(self, flight: Flight, reason: str, avoid: str | None) -> Decision | None:
        return ON_A if self.usable else None

    def has_room(self, box: str, flight: Flight) -> bool:
        return True

    def asked_for_room(self, box: str, *, full: bool) -> None: ...

    def target(self, box: str, reserved: Reserved) -> HandoffTarget | None:
        return None

    def send(self, box: str, message: ToWorker) -> bool:
        self.tries += 1
        if not self._takes():
            return False
        assert isinstance(message, Submit)
        self.sent.put_nowait(message)
        return True

    def cancel(self, box: str, wire_id: str) -> None:
        self.cancelled.append((box, wire_id))

    def listen(self, wire_id: str, flight: Flight) -> None: ...

    def unlisten(self, wire_id: str) -> None: ...

    def boxes_for(self, flight: Flight) -> int:
        return 1

    async def until_usable(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    def way(self, flight: Flight, decision: Decision) -> Way:
        return Way(whole_bytes=None, link_bytes_per_s=None, read_s=None)

    def slow_handoff(self, decision: Decision, bytes_per_s: float | None) -> None: ...

    def fault(self, box: str | None, kind: str, sentence: str) -> None:
        self.faults.append(sentence)
        self.kinds.append((box, kind))


def order(**changes: Any) -> Order:
    fields: dict[str, Any] = {
        "request_id": "r",
        "token_ids": [1, 2, 3],
        "sampling": SamplingParams(max_tokens=2),
        "setting": ModeSetting(),
        "received_s": FAR_S,
        "deadline_s": FAR_S,
        "tokenise_s": None,
        "wall_time": "",
    }
    return Order(**(fields | changes))


def say(flight: Flight, wire_id: str, index: int, finish: str | None = None) -> None:
    token = Token(request_id=wire_id, index=index, token_id=10 + index)
    flight.inbox.put_nowait(("a", wire_id, GivenToken(token, finish)))


async def test_a_box_that_takes_no_message_is_tried_again_and_others_may_run_meanwhile() -> None:
    others_ran = 0

    async def other() -> None:
        nonlocal others_ran
        while True:
            others_ran += 1
            await asyncio.sleep(0)

    base = OneBox(lambda: base.tries > 3)
    flight = Flight(base, order())
    beside = asyncio.create_task(other())
    piece = asyncio.create_task(flight.next_piece())
    submit = await base.sent.get()
    say(flight, submit.request_id, 0)
    given = await piece
    assert given is not None and given.token is not None and given.token.token_id == 10
    assert others_ran > 3
    assert base.faults == ["r: a takes no message now"]
    assert flight.story.moves == 0
    beside.cancel()


@pytest.mark.parametrize(
    ("item", "code"), [(Cancelled(), "cancelled"), (Stopping(), "router_stopped")]
)
async def test_a_request_without_a_box_still_hears_that_it_is_to_end(item: Any, code: str) -> None:
    flight = Flight(OneBox(lambda: False, usable=False), order())
    piece = asyncio.create_task(flight.next_piece())
    await asyncio.sleep(0)
    flight.inbox.put_nowait(("", "", item))
    with pytest.raises(ApiError) as ended:
        await piece
    assert ended.value.code == code


async def test_a_loss_told_before_a_box_was_back_does_not_move_who_was_placed_since() -> None:
    base = OneBox(lambda: True)
    flight = Flight(base, order())
    flight.inbox.put_nowait(("a", "", BoxLost(why="it was asleep")))
    piece = asyncio.create_task(flight.next_piece())
    say(flight, (await base.sent.get()).request_id, 0)
    assert await piece is not None
    assert base.tries == 1 and base.faults == []


async def test_each_placement_has_a_wire_id_that_no_other_ever_had() -> None:
    ids: list[str] = []
    for _ in range(2):
        base = OneBox(lambda: True)
        flight = Flight(base, order())
        piece = asyncio.create_task(flight.next_piece())
        ids.append((await base.sent.get()).request_id)
        flight.inbox.put_nowait(("a", "", BoxLost(why="killed")))
        ids.append((await base.sent.get()).request_id)
        piece.cancel()
    assert len(set(ids)) == 4 and {one.partition("+")[0] for one in ids} == {"r"}


async def test_past_its_deadline_a_request_that_no_box_takes_ends_in_a_typed_error() -> None:
    flight = Flight(OneBox(lambda: False), order(deadline_s=0.0))
    with pytest.raises(ApiError) as ended:
        await flight.next_piece()
    assert ended.value.code == "deadline"


A_TO_B = Decision(
    kind="split", prefill_box="a", decode_box="b", prefill="whole", chunk_tokens=None, why="a, b"
)


class TwoBoxes(OneBox):
    """Box `a` reads and hands over to `b`; what is moved goes on on `a` alone."""

    def __init__(self, takes: Callable[[], bool] = lambda: True) -> None:
        super().__init__(takes)
        self.reserves: asyncio.Queue[Reserve] = asyncio.Queue()
        self.told: asyncio.Queue[SendTo] = asyncio.Queue()
        self.slow: list[float | None] = []

    def place(self, flight: Flight) -> Decision | None:
        return A_TO_B

    def target(self, box: str, reserved: Reserved) -> HandoffTarget | None:
        return HandoffTarget(
            reservation_id="",
            box=box,
            endpoint="",
            secret=reserved.secret,
            fingerprint="",
            cached_tokens=0,
        )

    def send(self, box: str, message: ToWorker) -> bool:
        if isinstance(message, Reserve):
            self.reserves.put_nowait(message)
            return True
        if isinstance(message, SendTo):
            self.told.put_nowait(message)
            return True
        return super().send(box, message)

    def slow_handoff(self, decision: Decision, bytes_per_s: float | None) -> None:
        self.slow.append(bytes_per_s)


async def read_on_a(base: TwoBoxes, flight: Flight) -> str:
    """Box `a` is asked to read and `b` keeps room; the wire id that both know it by."""
    wire_id = (await base.reserves.get()).request_id
    secret = HandoffSecret(password="", seal_key=b"")
    reserved = Reserved(request_id=wire_id, reservation_id="", cached_tokens=0, secret=secret)
    flight.inbox.put_nowait(("b", wire_id, reserved))
    assert (await base.sent.get()).handoff_follows
    assert (await base.told.get()).target.box == "b"
    return wire_id


async def test_room_is_given_back_where_the_prefill_box_takes_no_message() -> None:
    base = TwoBoxes(lambda: base.tries > 1)
    flight = Flight(base, order())
    piece = asyncio.create_task(flight.next_piece())
    again = await base.sent.get()
    assert not again.handoff_follows
    assert base.cancelled == [("b", base.reserves.get_nowait().request_id)]
    say(flight, again.request_id, 0)
    assert await piece is not None and flight.story.moves == 0


@pytest.mark.parametrize("told", [True, False], ids=["it stands still", "nobody knows"])
async def test_a_hand_off_of_which_nothing_arrives_is_given_up_and_read_where_it_goes_on(
    told: bool,
) -> None:
    base = TwoBoxes()
    flight = Flight(base, order(token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=9)))
    first = asyncio.create_task(flight.next_piece())
    base.detection_s = 1e-9  # nothing may stand still
    wire_id = await read_on_a(base, flight)
    sending = Sending(request_id=wire_id, left_bytes=10**6)
    if told:
        flight.inbox.put_nowait(("a", wire_id, sending))
    read(flight, wire_id, cached_tokens=1)
    say(flight, wire_id, 0)
    assert await first is not None
    second = asyncio.create_task(flight.next_piece())
    flight.inbox.put_nowait(("a", wire_id, sending))
    flight.inbox.put_nowait(("a", wire_id, sending))
    again = await base.sent.get()
    assert not again.handoff_follows and again.token_ids == [1, 2, 3, 10]
    assert "not a byte of it arrived" in base.faults[0] and len(base.slow) == 1
    read(flight, again.request_id, cached_tokens=4)
    say(flight, again.request_id, 1)
    assert await second is not None
    # What it had just read itself was no prefix of others.
    assert flight.record("completed", None).cached_tokens == 1


@pytest.mark.parametrize(
    ("room_s", "slow", "kind", "says"),
    [
        (-1.0, [None], (None, "handoff"), "from a to b was given up: it was not committed"),
        (99.0, [], ("b", "late_room"), "b answered the reservation only 99.0 s after"),
    ],
    ids=["there was room in time", "room came late"],
)
async def test_a_hand_off_for_which_room_came_late_is_not_held_against_the_link(
    room_s: float, slow: list[None], kind: tuple[str | None, str], says: str
) -> None:
    base = TwoBoxes()
    flight = Flight(base, order(sampling=SamplingParams(max_tokens=9)))
    first = asyncio.create_task(flight.next_piece())
    wire_id = await read_on_a(base, flight)
    say(flight, wire_id, 0)
    assert await first is not None
    attempt = flight.attempt
    assert attempt is not None and attempt.handover is not None
    began_s = time.monotonic() - 100.0  # as if the first token had come that long ago
    attempt.handover.first_token_came(began_s)
    attempt.handover.room_came(began_s + room_s)
    attempt.limit_s = time.monotonic()
    second = asyncio.create_task(flight.next_piece())
    assert not (await base.sent.get()).handoff_follows
    assert says in base.faults[0]
    assert base.kinds == [kind] and base.slow == slow
    second.cancel()


async def test_what_is_told_of_a_reservation_without_an_answer_is_that() -> None:
    base = TwoBoxes()
    base.detection_s = 0.0
    flight = Flight(base, order())
    piece = asyncio.create_task(flight.next_piece())
    await base.sent.get()
    assert not (await base.sent.get()).handoff_follows
    assert base.faults == ["r: b did not answer the reservation"]
    assert base.kinds == [("b", "late_room")] and base.slow == []
    piece.cancel()


def read(flight: Flight, wire_id: str, *, cached_tokens: int) -> None:
    done = PrefillDone(request_id=wire_id, queue_s=0.0, prefill_s=0.0, cached_tokens=cached_tokens)
    flight.inbox.put_nowait(("a", wire_id, done))


async def test_an_answer_that_came_in_time_is_heard_also_when_it_is_read_too_late() -> None:
    base = TwoBoxes()
    base.detection_s = 1e-9  # as if the router had slept through all of it
    flight = Flight(base, order())
    piece = asyncio.create_task(flight.next_piece())
    await read_on_a(base, flight)
    assert base.faults == []
    piece.cancel()


async def test_a_senders_account_that_comes_with_the_last_token_is_in_the_record() -> None:
    base = TwoBoxes()
    flight = Flight(base, order(token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=2)))
    first = asyncio.create_task(flight.next_piece())
    wire_id = await read_on_a(base, flight)
    say(flight, wire_id, 0)
    assert await first is not None
    flight.inbox.put_nowait(("b", wire_id, Committed(request_id=wire_id, bytes=8, tokens=3)))
    say(flight, wire_id, 1, "length")
    event = TransferEvent(
        box_from="a",
        box_to="b",
        request_id=wire_id,
        start_s=0.0,
        end_s=1.0,
        bytes=8,
        tokens=3,
        exposed_s=0.5,
    )
    flight.inbox.put_nowait(("a", wire_id, HandoffReport(event=event)))
    assert await flight.next_piece() is not None
    assert await flight.next_piece() is None
    flight.end()
    assert not flight.story.awaits_report
    assert flight.record("completed", None).handoff_bytes == 8
