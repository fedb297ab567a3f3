"""Steps that are taken in one leap give what they give one by one."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Mode
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from homesplit.core.candidates import build_scene
from homesplit.core.load import plan_load
from homesplit.core.sim_result import SimResult
from homesplit.core.simulate import Simulation
from homesplit.core.workload import Arrivals, fixed_lengths
from tests.core.test_decide import ask
from tests.core.test_simulate_cancel import MODES, arranged


def told(result: SimResult) -> list[tuple[str, int]]:
    return [(r.timeline.outcome, len(r.timeline.token_s)) for r in result.records]


def moments(result: SimResult) -> list[float]:
    """All that the records tell of time."""
    found: list[float] = []
    for r in result.records:
        parts = (r.queue_s, r.prefill_s, r.handoff_s, r.handoff_exposed_s)
        found += [*r.timeline.token_s, *(part for part in parts if part is not None)]
    return found


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    mode=st.sampled_from(MODES[:3]),
    style=st.sampled_from(["chunked", "whole"]),
    prompt=st.integers(20, 3000),
    output=st.integers(1, 60),
    rate=st.floats(0.3, 6.0),
    chunk=st.sampled_from([32, 128, 512]),
    together=st.sampled_from([1.0, 1.3]),
    opening=st.sampled_from([0.0, 1e-9]),
    cancelled=st.sampled_from([0.0, 0.4]),
)
def test_leaps_give_what_single_steps_give(
    mode: Mode,
    style: str,
    prompt: int,
    output: int,
    rate: float,
    chunk: int,
    together: float,
    opening: float,
    cancelled: float,
) -> None:
    workload = structs.replace(
        fixed_lengths(prompt, output, name="w", arrivals=Arrivals(rate_requests_per_s=rate)),
        cancel_share=cancelled,
        cancel_after_s=0.7,
    )
    asked = ask(work=workload)
    scene = build_scene(asked)
    boxes = tuple(structs.replace(box, together=together) for box in scene.boxes)
    wires = {
        pair: structs.replace(wire, opening_byte_s=opening) for pair, wire in scene.wires.items()
    }
    scene = structs.replace(scene, boxes=boxes, wires=wires, client_s=0.01)
    way = arranged(asked, mode, style)
    way = structs.replace(way, setting=structs.replace(way.setting, chunk_tokens=chunk))
    plan = plan_load(workload, seed=4, seconds=6.0)
    leaping, stepping = (
        Simulation(scene, way, plan, enough=None, leaps=leaps).run() for leaps in (True, False)
    )
    assert told(leaping) == told(stepping)
    assert moments(leaping) == pytest.approx(moments(stepping), rel=1e-9, abs=1e-9)
