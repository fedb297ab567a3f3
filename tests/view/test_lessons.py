"""Which moment of a recorded run is drawn: the one whose strips show the mode's lesson best."""

from __future__ import annotations

from homesplit.view.watch import Stall, Step, Wait
from screenshots import lessons
from screenshots.lessons import Strips

NOW_S = 100.0
PROMPT = "borea was reading a prompt of 400 tokens"


def step(start_s: float, end_s: float, *, writes: int = 0, reads: int = 0) -> Step:
    return Step(start_s, end_s, writes, reads, ("r",) if reads else ())


def stall(start_s: float, end_s: float, answers: int = 1) -> Stall:
    waits = tuple(Wait(f"r{number}", start_s, "borea") for number in range(answers))
    return Stall("borea", start_s, end_s, waits)


def strips(
    *steps: tuple[str, Step],
    stalls: tuple[Stall, ...] = (),
    handoffs: tuple[tuple[float, float], ...] = (),
    cause: str = "",
) -> Strips:
    return Strips(
        since_s=NOW_S - lessons.WINDOW_S,
        now_s=NOW_S,
        steps=steps,
        handoffs=handoffs,
        stalls=stalls,
        cause=cause,
    )


def test_prompts_read_whole_are_shown_by_a_stall_that_one_of_them_made() -> None:
    score = lessons.a_prompt_stops_answers
    one = score(strips(stalls=(stall(94.0, 96.0),), cause=PROMPT))
    two = score(strips(stalls=(stall(94.0, 96.0, answers=2),), cause=PROMPT))
    assert two > one > 0


def test_a_stall_at_the_edge_or_of_another_cause_is_no_such_picture() -> None:
    score = lessons.a_prompt_stops_answers
    for stalls, cause in (
        ((), ""),
        ((stall(90.5, 96.0),), PROMPT),
        ((stall(94.0, 99.5),), PROMPT),
        ((stall(94.0, 96.0),), "borea itself was slow"),
        ((stall(94.0, 96.0), stall(98.0, 100.0)), PROMPT),
    ):
        assert score(strips(stalls=stalls, cause=cause)) < 0


def test_a_split_is_shown_by_answers_that_go_on_beside_a_whole_hand_off() -> None:
    score = lessons.answers_go_on_beside_a_handoff
    writing = [("borea", step(94.0 + n / 10, 94.1 + n / 10, writes=2)) for n in range(10)]
    good = score(strips(*writing, handoffs=((94.0, 95.0),)))
    assert good == 10
    assert score(strips(*writing, handoffs=((90.0, 95.0),))) == 0
    assert score(strips(*writing, handoffs=((94.0, 95.0),), stalls=(stall(95.0, 97.0),))) < 0


def test_chunks_are_shown_by_steps_that_read_and_write() -> None:
    mixed = ("borea", step(94.0, 94.2, writes=2, reads=32))
    alone = ("borea", step(94.0, 94.2, reads=32))
    assert lessons.chunks_go_beside_answers(strips(mixed, alone, mixed)) == 2


def test_copies_are_shown_by_both_boxes_writing() -> None:
    atlas, borea = (("atlas", step(94.0, 94.1, writes=1)), ("borea", step(94.0, 94.1, writes=1)))
    assert lessons.both_write(strips(atlas, atlas, borea)) == 1
    assert lessons.both_write(strips(atlas, atlas)) < 0
