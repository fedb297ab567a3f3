"""The next arrangement by key: the lesson's order, on the boxes that the plan names for each."""

from __future__ import annotations

import pytest
from homesplit_engine.records import ModeSetting

from homesplit.core.next_mode import following
from homesplit.core.plan import ModePrediction, Spread, StallFigures

NONE = Spread(p50=None, p90=None, low=None, high=None)
BOXES = ("atlas", "borea")


def predicted(mode: str, boxes: tuple[str, ...], **given: str | None) -> ModePrediction:
    return ModePrediction(
        mode=mode,
        boxes=boxes,
        prefill="chunked",
        prefill_box=given.get("reads"),
        decode_box=given.get("writes"),
        ttft_s=NONE,
        tpot_s=NONE,
        stall_s=StallFigures(p50=None, p90=None, low=None, high=None),
        attainment=None,
        goodput_requests_per_s=None,
        capacity_requests_per_s=None,
        why_not=given.get("why_not"),
    )


def round_of(
    boxes: tuple[str, ...], modes: tuple[ModePrediction, ...] = ()
) -> list[tuple[str, str, str | None, str | None]]:
    """Every arrangement once, from prompts read whole on."""
    setting = ModeSetting(mode="colocated", prefill="whole", chunk_tokens=64)
    found: list[tuple[str, str, str | None, str | None]] = []
    for _ in range(5 if len(boxes) > 1 else 2):
        found.append((setting.mode, setting.prefill, setting.prefill_box, setting.decode_box))
        setting = following(setting, boxes, modes)
        assert setting.chunk_tokens == 64
    assert (setting.mode, setting.prefill) == ("colocated", "whole")
    return found[1:]


def test_without_a_plan_the_first_box_reads_and_the_last_writes() -> None:
    assert round_of(BOXES) == [
        ("colocated", "chunked", "atlas", "borea"),
        ("replica", "chunked", "atlas", "borea"),
        ("split", "chunked", "atlas", "borea"),
        ("auto", "chunked", "atlas", "borea"),
    ]


def test_one_box_has_two_arrangements() -> None:
    assert round_of(("atlas",)) == [("colocated", "chunked", "atlas", "atlas")]


def test_the_plan_says_who_serves_alone_and_which_way_a_split_goes() -> None:
    modes = (
        predicted("split", BOXES, reads="borea", writes="atlas"),
        predicted("colocated", ("atlas",), writes="atlas"),
        predicted("split", BOXES, reads="atlas", writes="borea"),
        predicted("colocated", ("borea",), writes="borea"),
    )
    assert round_of(BOXES, modes) == [
        ("colocated", "chunked", "borea", "atlas"),
        ("replica", "chunked", "borea", "atlas"),
        ("split", "chunked", "borea", "atlas"),
        ("auto", "chunked", "borea", "atlas"),
    ]


@pytest.mark.parametrize(
    "mode",
    [
        predicted("split", ("atlas", "cirrus"), reads="cirrus", writes="atlas"),
        predicted("split", BOXES, reads="borea", writes="atlas", why_not="it does not fit"),
    ],
)
def test_a_plan_for_other_boxes_or_one_that_cannot_be_run_is_not_followed(
    mode: ModePrediction,
) -> None:
    assert ("split", "chunked", "atlas", "borea") in round_of(BOXES, (mode,))
