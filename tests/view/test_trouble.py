"""What went wrong, in at most four lines, with the keys for more of it always in sight."""

from __future__ import annotations

import pytest

from homesplit.core import events
from homesplit.core.state import RunState, apply
from homesplit.view import road
from homesplit.view.spans import width_of
from tests.tui import sample_run

KEYS = "e detail  esc hides it"
WHAT = "Another homesplit on this machine (process 4711, since 12:03:09) is deploying to borea"
NEXT = "Wait until it is done, or end it there, then try again."


def rows(width: int, what: str, where: str | None = None, do_next: str | None = None) -> list[str]:
    failed = events.StageFailed(stage="deploy", what=what, where=where, do_next=do_next)
    found = road.trouble(apply(RunState(), failed), width)
    assert all(width_of(row) <= width for row in found)
    return ["".join(span.text for span in row) for row in found]


def unheard(*told: events.Progress, width: int = 120) -> str:
    state = apply(RunState(), next(sample_run.deployed()))
    for event in told:
        state = apply(state, event)
    return "".join(span.text for span in road.unheard(state, width))


def silence(sentence: str, left_s: float | None = None) -> events.Progress:
    return events.Progress(stage="serve", step="events", sentence=sentence, left_s=left_s)


def test_an_engine_that_is_not_heard_is_told_until_it_is_again() -> None:
    assert unheard() == ""
    lost = silence("the router can't be reached.", 2.0)
    told = " ! the engine on borea is not heard, tried again in 2 s: the router can't be reached"
    assert unheard(lost) == told
    assert unheard(lost, silence("")) == ""
    assert len(unheard(lost, width=40)) == 40


def test_without_a_deployment_nobody_is_missed() -> None:
    assert road.unheard(apply(RunState(), silence("gone", 1.0)), 120) == ()


def test_no_failure_takes_no_line() -> None:
    assert road.trouble(RunState(), 80) == ()


def test_a_short_failure_is_one_line() -> None:
    told = rows(120, "the key is refused", "borea", "Add your key there.")
    assert told == [f" ✗ borea: the key is refused. Add your key there.  {KEYS}"]


def test_a_long_failure_says_below_what_to_do() -> None:
    what, do_next = rows(120, WHAT, None, NEXT)
    assert what == f" ✗ {WHAT}."
    assert do_next == f"   {NEXT}  {KEYS}"


@pytest.mark.parametrize("width", [80, 100, 120, 200, 300])
def test_a_failure_with_its_advice_is_whole_at_every_width(width: int) -> None:
    told = rows(width, WHAT, "desk", NEXT)
    assert len(told) <= 4
    text = " ".join(" ".join(told).split())
    assert f"✗ desk: {WHAT}." in text
    assert NEXT.split()[-1] in text
    assert told[-1].endswith(KEYS)


@pytest.mark.parametrize("width", [40, 80])
def test_what_is_endless_is_cut_and_keeps_the_keys(width: int) -> None:
    told = rows(width, "word " * 200, "borea", "do " * 200)
    assert len(told) == 4
    assert "…" in told[1]


def test_a_window_too_narrow_for_the_keys_cuts_them_too() -> None:
    assert all(len(row) <= 20 for row in rows(20, WHAT, "desk", NEXT))


def test_a_failure_without_advice_ends_with_the_keys() -> None:
    told = rows(80, "word " * 30)
    assert len(told) == 2
    assert told[-1].endswith(KEYS)
