"""The Deploy screen tells what lies on a box, whole or half made, while none of it is in use."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from homesplit.core import events
from homesplit.core.brought import Brought, Piece
from homesplit.core.state import RunState, apply_all
from homesplit.view import deploy
from homesplit.view.brought import lying_there
from homesplit.view.spans import plain
from tests.tui import sample_run

MB = 10**6
WHOLE = Brought(
    box="atlas",
    folder="/home/a/.homesplit",
    bytes=602 * MB,
    pieces=(
        Piece(kind="environment", name="e1", bytes=600 * MB, whole=True),
        Piece(kind="engine", name="g1", bytes=2 * MB, whole=True),
    ),
)
HALF = Brought(
    box="borea",
    folder="/home/b/.homesplit",
    pieces=(Piece(kind="weights", name="w1", bytes=None, whole=False),),
)
SEEN = events.BroughtSeen(boxes=(WHOLE, HALF))
STARTED = events.StageStarted(stage="deploy", sentence="Looking at the boxes.")


def shown(*told: events.Event | Iterator[events.Event], width: int = 120) -> str:
    state = RunState()
    for one in told:
        state = apply_all(state, one if isinstance(one, Iterator) else (one,))
    return plain(deploy.body(state, width))


def test_each_piece_has_a_line_with_its_size_and_a_half_made_one_is_marked() -> None:
    assert [row.split() for row in plain(lying_there(WHOLE, 50)).split("\n")] == [
        ["lies", "here", "/home/a/.homesplit", "602", "MB"],
        ["✓", "environment", "e1", "600", "MB"],
        ["✓", "engine", "g1", "2.00", "MB"],
    ]
    half = plain(lying_there(HALF, 50))
    assert "◌ weights half made w1" in half
    assert "Enter goes on from there" in half


def test_a_size_that_the_box_does_not_tell_is_not_nought() -> None:
    assert plain(lying_there(HALF, 50)).split("\n")[0].split()[-1] == "–"


def test_a_box_that_can_not_be_looked_at_says_why() -> None:
    barred = Brought(box="borea", why="no answer on port 22")
    assert plain(lying_there(barred, 60)) == "can't be looked at: no answer on port 22"
    assert "no answer on port 22" in shown(events.BroughtSeen(boxes=(barred,)))


def test_what_was_left_is_told_where_nothing_is_deployed() -> None:
    text = shown(SEEN)
    assert "Nothing is deployed." in text
    assert "/home/a/.homesplit" in text
    assert "half made" in text


def test_a_narrow_card_tells_the_share_and_the_time_left() -> None:
    told = (sample_run.deploy_planned(), sample_run.deploying())
    assert "157 MB of 734 MB, 9 min 10 s left" in shown(*told, width=120)
    told = (sample_run.deploy_planned(), sample_run.deploying())
    assert "21 %, 9 min 10 s left" in shown(*told, width=80)


def test_beside_the_changes_it_is_told_what_lies_there() -> None:
    text = shown(sample_run.deploy_planned(), SEEN)
    assert "to write in all" in text
    assert "half made" in text


def test_what_is_in_use_or_being_changed_is_not_told_as_lying_there() -> None:
    assert "lies here" not in shown(SEEN, sample_run.deployed())
    assert "lies here" not in shown(SEEN, STARTED, sample_run.deploy_planned())


def test_where_nothing_was_ever_brought_nothing_is_told_of_it() -> None:
    assert shown(events.BroughtSeen(boxes=())) == plain(deploy.body(RunState(), 120))
    assert "lies here" not in shown(events.BroughtSeen(boxes=(Brought(box="atlas"),)))


def test_warnings_stand_behind_their_marks_until_it_is_begun() -> None:
    (planned,) = sample_run.deploy_planned()
    assert isinstance(planned, events.DeployPlanned)
    warned = replace(planned.plan, warnings=("atlas reaches no internet: " + "word " * 12,))
    state = apply_all(RunState(), (events.DeployPlanned(plan=warned),))
    head, first, second = plain(deploy.summary(state, 50)).split("\n")
    assert head.startswith("will deploy smollm2-135m as split")
    assert first.startswith("! atlas reaches no internet: word")
    assert second.startswith("  word")
    begun = apply_all(state, tuple(sample_run.deploying()))
    assert plain(deploy.summary(begun, 50)).split("\n") == [head]
