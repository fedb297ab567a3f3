"""The advice elsewhere: the curve, the crossing, the cells near the question first."""

from __future__ import annotations

import pytest

from homesplit.core.elsewhere import filled, nearest_first, open_atlas
from homesplit.core.plan_map import CurvePoint, PlanMap
from homesplit.io.paths import user_paths
from homesplit.stages.context import Context
from homesplit.stages.plan import PlanQuestion, read_question


def point(tokens: int, prefill_s: float, handoff_s: float) -> CurvePoint:
    return CurvePoint(prompt_tokens=tokens, prefill_s=prefill_s, handoff_s=handoff_s, exposed_s=0.0)


def shown(*curve: CurvePoint) -> PlanMap:
    return PlanMap(
        other="users",
        prompt_tokens=(64, 128),
        others=(1.0, 8.0),
        here_prompt=128.0,
        here_other=8.0,
        cells=((None, None), (None, None)),
        curve=curve,
    )


def test_the_crossing_lies_where_both_take_equally_long() -> None:
    once = (point(100, 1.0, 2.0), point(200, 3.0, 2.0))
    assert shown(*once).crossings == pytest.approx((150,))
    assert shown(point(100, 3.0, 2.0), point(200, 4.0, 2.0)).crossings == ()
    twice = shown(*once, point(300, 3.0, 4.0))
    assert twice.crossings == pytest.approx((150, 250))


def test_the_cell_of_the_question_is_worked_out_first() -> None:
    assert nearest_first(shown())[0] == (1, 1)


def test_a_filled_cell_changes_no_other() -> None:
    assert filled(shown(), 0, 1, "split").cells == ((None, "split"), (None, None))


def test_a_map_of_two_profiles_has_axes_a_curve_and_cells() -> None:
    question = PlanQuestion(
        boxes=("rtx-3090", "mac-mini-m4-pro-64gb"),
        link="ethernet-10g",
        model="llama-3.2-1b",
        prompt_tokens=512,
        output_tokens=16,
        users=2,
    )
    atlas = open_atlas(read_question(Context(paths=user_paths()), question), "link")
    assert atlas is not None
    assert atlas.map.other == "bytes/s"
    assert len(atlas.map.cells) == len(atlas.map.others)
    assert [p.prompt_tokens for p in atlas.map.curve] == list(atlas.map.prompt_tokens)
    assert atlas.cell(0, 0) in ("colocated", "replica", "split")
