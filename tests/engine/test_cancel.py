"""Cancelled requests leave nothing behind and touch nobody else's text: real workers."""

from __future__ import annotations

from pathlib import Path

from tests.engine.cancels import FEW_BLOCKS, MODES, cancel_a_third, cancel_in_flight, live


async def test_a_third_cancelled_and_some_refused_by_a_full_box_leaves_no_block_behind(
    tmp_path: Path,
) -> None:
    async with live(tmp_path, FEW_BLOCKS) as running:
        for seed, setting in enumerate(MODES.values()):
            found = await cancel_a_third(running, setting, 30, seed)
            assert found["left"] > 0, found
            assert found["completed"] >= 20, found
            assert found["different"] == 0, (setting.mode, found)


async def test_cancelling_while_kv_is_on_its_way_leaves_the_other_text_alone(
    tmp_path: Path,
) -> None:
    async with live(tmp_path) as running:
        found = await cancel_in_flight(running, 10)
        assert found["cancelled_in_flight"] == 10, found
        assert found["different"] == 0, found
