"""Every figure of the chosen machines stands with how it was measured, or why it was not."""

from __future__ import annotations

from functools import reduce

import pytest
from msgspec.structs import replace

from homesplit.core import events
from homesplit.core.link import Way
from homesplit.core.reading import measured, unknown
from homesplit.core.state import RunState, apply
from homesplit.view.measured_how import measured_how
from homesplit.view.spans import plain, width_of
from tests.tui import sample_run


def state() -> RunState:
    """Atlas knows one dtype of three; of the link one way was left."""
    probed = reduce(apply, sample_run.machines(), RunState())
    rates = {
        "int8": unknown("no torch there"),
        "fp16": unknown("no torch there"),
        "fp32": measured([9e9, 10e9, 11e9], unit="flop/s", method="numpy"),
    }
    atlas = replace(probed.profiles["atlas"], flops_per_s=rates, cores=4, cores_allowed=1.5)
    way = Way(address_a="10.0.0.1", address_b="10.0.0.2", why="it does not answer")
    link = replace(probed.links[0], ways=(way,))
    told = (events.BoxProbed(profile=atlas), events.LinkProbed(link=link))
    return reduce(apply, told, probed)


@pytest.mark.parametrize("width", [156, 196, 296])
def test_figures_stand_with_their_method_and_the_missing_with_their_reason(width: int) -> None:
    rows = measured_how(state(), width)
    assert max(map(width_of, rows)) <= width
    told = [" ".join(row[: width // 2].split()) for row in plain(rows).split("\n")]
    assert "arithmetic fp32 10.0 GFLOP/s ±10 % numpy, median of 3" in told
    assert "arithmetic fp16, int8 – no torch there" in told
    assert any("4 cores, 1.50 allowed" in row for row in told)
    assert any(row.startswith("one stream 0.94 Gbit/s") for row in told)
    assert any("it does not answer" in row for row in plain(rows).split("\n"))


def test_who_is_not_measured_yet_has_nothing_to_tell() -> None:
    assert measured_how(RunState(), 200) == ()
