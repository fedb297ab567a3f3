"""The requests that calibrate a box: all of them are offered, however slow it is."""

from __future__ import annotations

from homesplit.core.calibration_load import (
    PHASE_S,
    first_look,
    handoffs,
    later_phases,
    while_writing,
)

LONGEST = 600


def test_a_slow_box_gets_every_request_of_a_phase() -> None:
    plans = [first_look(1).plan, *(p.plan for p in later_phases(1, longest=LONGEST))]
    plans += [handoffs(1, longest=LONGEST), while_writing(1, longest=LONGEST)]
    for plan in plans:
        # A chain's requests are only sent while the plan lasts; a closed one ends when it is done.
        assert plan.seconds == PHASE_S >= 100 and plan.closed


def test_prompts_read_alone_wait_for_each_other() -> None:
    for plan in (first_look(1).plan, handoffs(1, longest=LONGEST)):
        assert [r.after for r in plan.requests] == [None, *range(len(plan.requests) - 1)]


def test_hand_offs_are_timed_over_several_lengths_and_need_a_second_token() -> None:
    made = handoffs(1, longest=LONGEST).requests
    assert len(made) >= 8 and all(r.output_tokens > 1 for r in made)
    # Equal text would be cached on the other box, and nothing of it be handed over.
    assert len({r.prompt[0].seed for r in made}) == len(made)


def test_prompts_that_come_while_answers_are_written_are_offered_at_once() -> None:
    made = while_writing(1, longest=LONGEST).requests
    assert len(made) >= 4 and {r.send_at_s for r in made} == {0.0}
    assert len({r.prompt[0].seed for r in made}) == len(made)
    # The first answer must go on while the second prompt is read.
    assert all(r.output_tokens >= 16 for r in made)
