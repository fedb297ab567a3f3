"""The picture of every screen in three sizes, compared with the kept one."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from homesplit.view import road
from tests.tui.conftest import MakeApp
from tests.tui.test_flows import press, settled

SIZES = ((80, 24), (120, 40), (200, 60))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", road.SCREENS)
def test_screen_looks_as_kept(
    snap_compare: Any, make_app: MakeApp, name: str, size: tuple[int, int]
) -> None:
    async def go(pilot: Pilot[None]) -> None:
        await press(pilot, str(road.SCREENS.index(name) + 1))
        await pilot.app.workers.wait_for_complete()
        await settled(pilot)

    assert snap_compare(make_app(), terminal_size=size, run_before=go)
