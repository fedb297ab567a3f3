"""The strips line up steps, hand-offs and the stalls that they cause."""

from __future__ import annotations

from functools import reduce

from homesplit_engine.records import PrefillSlice, StepEvent, TransferEvent

from homesplit.core import events
from homesplit.core.state import Engine, RunState, apply
from homesplit.view import timeline
from homesplit.view.spans import plain


def engine(*told: events.Event) -> Engine:
    return reduce(apply, told, RunState()).engine


def decode(start_s: float, end_s: float, *requests: str, box: str = "a") -> events.StepSeen:
    running = len(requests)
    return events.StepSeen(
        event=StepEvent(
            box=box, step=0, start_s=start_s, end_s=end_s, decode=requests, running=running
        )
    )


def prefill(start_s: float, end_s: float, request: str, tokens: int) -> events.StepSeen:
    piece = PrefillSlice(request_id=request, start=0, tokens=tokens, last=True)
    event = StepEvent(box="a", step=0, start_s=start_s, end_s=end_s, prefill=(piece,), running=1)
    return events.StepSeen(event=event)


def found(told: Engine, now_s: float = 10.0) -> tuple[timeline.Stall, ...]:
    return timeline.stalls(told, timeline.moved_steps(told, 0.0), 0.1, now_s)


def test_a_long_prefill_between_two_tokens_is_the_cause_of_the_stall() -> None:
    told = engine(decode(0, 1, "r1"), prefill(1, 3, "r2", 500), decode(3, 3.05, "r1", "r2"))
    (stall,) = found(told, 3.05)
    assert (stall.box, stall.start_s, stall.answers) == ("a", 1, 1)
    assert "reading a prompt of 500 tokens" in stall.cause


def test_tokens_within_the_target_are_no_stall() -> None:
    assert found(engine(decode(0, 1, "r1"), decode(1, 1.05, "r1")), 1.05) == ()


def test_a_gap_that_is_still_open_counts_until_now() -> None:
    told = engine(decode(0, 1, "r1"), prefill(1, 2, "r2", 500))
    assert [stall.end_s for stall in found(told, 2.5)] == [2.5]


def test_a_request_that_the_box_no_longer_decodes_waits_for_nothing() -> None:
    told = engine(decode(0, 1, "r1"), decode(1, 1.05, "r2"), decode(1.05, 1.1, "r2"))
    assert found(told, 1.1) == ()


def test_a_hand_off_on_its_way_is_the_cause_when_no_prompt_was_read() -> None:
    moved = TransferEvent(
        box_from="b",
        box_to="a",
        request_id="r1",
        start_s=1,
        end_s=2,
        bytes=2**20,
        tokens=40,
        exposed_s=1,
    )
    told = engine(decode(0, 1, "r1"), events.TransferSeen(event=moved), decode(2, 2.05, "r1"))
    (stall,) = found(told, 2.05)
    assert "the KV of 40 tokens was on its way from b to a" in stall.cause


def test_the_strip_shows_prefill_where_it_was_and_decode_beside_it() -> None:
    told = engine(decode(0, 5, "r1", "r2", "r3", "r4"), prefill(5, 10, "r5", 7))
    rows = plain(
        timeline.timeline(
            told, now_s=10, window_s=10, width=timeline.LABEL + 10, target_s=None, boxes=("a",)
        )
    ).split("\n")
    assert rows[0][timeline.LABEL :] == "·····█ 7 █"
    assert rows[1][timeline.LABEL :] == "█████·····"


def test_every_row_fits_the_width() -> None:
    told = engine(decode(0, 5, "r1"), prefill(5, 10, "r5", 700))
    for width in (40, 80, 200):
        rows = timeline.timeline(told, now_s=10, window_s=10, width=width, target_s=0.1)
        assert max(len(row) for row in plain(rows).split("\n")) <= width
