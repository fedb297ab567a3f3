"""The process that works out the advice: its map follows what has been learnt since."""

from __future__ import annotations

import pytest

from homesplit.stages import advice
from homesplit.stages.context import Context
from homesplit.stages.plan import PlanQuestion


class Atlas:
    """Knows what it was opened with, and counts how often one was."""

    opened = 0

    def __init__(self, asked: str) -> None:
        type(self).opened += 1
        self.map = None
        self.asked = asked

    def cell(self, row: int, column: int) -> str:
        """What it was opened with, for every cell."""
        return self.asked


def test_a_map_is_made_anew_once_its_boxes_were_calibrated_and_not_for_each_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = ["bare probe"]

    def read_question(_ctx: Context, _question: PlanQuestion) -> str:
        return read[0]

    def open_atlas(asked: str, _other: str) -> Atlas:
        return Atlas(asked)

    monkeypatch.setattr(Atlas, "opened", 0)
    monkeypatch.setattr(advice, "read_question", read_question)
    monkeypatch.setattr(advice, "open_atlas", open_atlas)
    desk = advice._Desk()  # pyright: ignore[reportPrivateUsage]
    paths = ("config", "cache", "data")
    axes = advice.Query(
        paths=paths, question=PlanQuestion(boxes=("a", "b"), model="m"), other="load"
    )
    cell = advice.Query(paths=paths, question=axes.question, other="load", cell=(0, 0))
    modes: list[str | None] = []
    for known in ("bare probe", "bare probe", "calibrated"):
        read[0] = known
        desk.answer(axes)
        modes += [desk.answer(cell).mode for _ in range(2)]
    assert modes == ["bare probe"] * 4 + ["calibrated"] * 2
    assert Atlas.opened == 2
