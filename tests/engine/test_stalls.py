"""Stalls are laid to what ran on the writing box meanwhile, and add up."""

from __future__ import annotations

import pytest
from homesplit_engine.records import PrefillSlice, RequestRecord, StepEvent
from homesplit_engine.router.stalls import StepMemory, stall_causes


def record(*token_s: float, **changes: object) -> RequestRecord:
    fields: dict[str, object] = {
        "request_id": "mine",
        "mode": "split",
        "served": "split",
        "prefill": "whole",
        "prefill_box": "left",
        "decode_box": "right",
        "why": "",
        "outcome": "completed",
        "prompt_tokens": 10,
        "output_tokens": len(token_s),
        "received_s": 0.0,
        "token_s": token_s,
    }
    return RequestRecord(**(fields | changes))  # type: ignore[arg-type]


def step(start_s: float, end_s: float, *readers: str, box: str = "right") -> StepEvent:
    pieces = tuple(PrefillSlice(request_id=one, start=0, tokens=8) for one in readers)
    return StepEvent(box=box, step=1, start_s=start_s, end_s=end_s, prefill=pieces)


def memory(*steps: StepEvent, offset_s: float = 0.0) -> StepMemory:
    found = StepMemory()
    for one in steps:
        found.remember(one, offset_s)
    return found


def test_a_steady_answer_has_no_stall() -> None:
    assert stall_causes(record(1.0, 1.1, 1.2), 0.2, memory()) == {}


def test_anothers_prompt_on_the_writing_box_is_named() -> None:
    steps = memory(step(1.0, 1.9, "other"), step(1.9, 2.0))
    causes = stall_causes(record(1.0, 2.0), 0.2, steps)
    assert causes == {"prefill": pytest.approx(0.8)}


def test_a_prompt_read_on_the_other_box_is_not_blamed() -> None:
    causes = stall_causes(record(1.0, 2.0), 0.2, memory(step(1.0, 2.0, "other", box="left")))
    assert causes == {"waiting": pytest.approx(0.8)}


def test_the_hand_off_is_blamed_for_the_first_gap_alone() -> None:
    steps = memory(step(1.5, 1.6), step(1.6, 2.6))
    causes = stall_causes(record(1.0, 1.6, 2.6, handoff_exposed_s=0.5), 0.1, steps)
    assert causes == {"handoff": pytest.approx(0.5), "decode": pytest.approx(0.9)}


def test_the_longest_gap_of_a_moved_answer_is_its_move() -> None:
    causes = stall_causes(record(1.0, 4.0, 4.1, resubmitted=1), 0.5, memory(step(3.0, 4.0)))
    assert causes == {"moved": pytest.approx(2.5)}


def test_the_boxs_clock_is_set_right_first() -> None:
    steps = memory(step(101.0, 102.0, "other"), offset_s=-100.0)
    assert stall_causes(record(1.0, 2.0), 0.5, steps) == {"prefill": pytest.approx(0.5)}
