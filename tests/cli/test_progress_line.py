"""How a long load is told: one line drawn over at a terminal, a few lines elsewhere."""

from __future__ import annotations

import pytest

from homesplit.cli.output import command_context, tell, without_outcome
from homesplit.cli.progress_line import with_progress_line
from homesplit.core.events import Event, Progress, StageEnded, StageStarted
from homesplit.stages.context import Context


def load_of(seconds: int) -> list[Event]:
    return [
        Progress(
            stage="bench",
            step="load",
            done=float(passed),
            total=float(seconds),
            unit="s",
            sentence=f"{passed} s",
        )
        for passed in range(1, seconds + 1)
    ]


def test_without_a_terminal_a_minutes_load_is_told_in_five_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with with_progress_line(command_context()) as ctx:
        for event in load_of(60):
            ctx.emit(event)
    assert capsys.readouterr().err.splitlines() == ["1 s", "15 s", "30 s", "45 s", "60 s"]


def test_a_terminal_has_one_line_that_is_drawn_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with with_progress_line(Context(emit=tell)) as ctx:
        for event in load_of(60):
            ctx.emit(event)
        ctx.emit(StageStarted(stage="bench", sentence="Next."))
    drawn, rest = capsys.readouterr().err.split("\n", 1)
    assert drawn.count("\r") == 60 and rest == "Next.\n"


def test_an_outcome_that_the_command_prints_is_not_told_as_progress_too() -> None:
    told: list[Event] = []
    ctx = without_outcome(Context(emit=told.append), "compare", ("recalibrate",))
    began, other = (
        StageStarted(stage="compare", sentence="It begins."),
        StageEnded(stage="bench", sentence="Another stage's."),
    )
    learnt = Progress(stage="compare", step="recalibrate", sentence="Learnt.")
    for event in (began, learnt, StageEnded(stage="compare", sentence="It won."), other):
        ctx.emit(event)
    assert told == [began, other]
