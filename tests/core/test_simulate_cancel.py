"""Users who give up, in the simulator: nothing stays held, and who waits behind them gains."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Mode
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from homesplit.core.candidates import Asked, arrangements, auto, build_scene
from homesplit.core.load import LoadPlan, plan_load
from homesplit.core.predict import run_figures
from homesplit.core.scene import Arrangement
from homesplit.core.sim_result import SimResult
from homesplit.core.simulate import Simulation, simulate
from homesplit.core.workload import Arrivals, Targets, Workload
from tests.core.test_decide import ask, load

MODES: tuple[Mode, ...] = ("colocated", "replica", "split", "auto")


def work(share: float, after_s: float = 1.0, rate: float = 4.0) -> Workload:
    return structs.replace(
        load(600, 60),
        arrivals=Arrivals(rate_requests_per_s=rate),
        cancel_share=share,
        cancel_after_s=after_s,
    )


def arranged(asked: Asked, mode: Mode, style: str = "chunked") -> Arrangement:
    scene = build_scene(asked)
    able = [each for each in arrangements(asked, scene) if each.mode == mode]
    made = auto(asked, scene)
    able += [made] if made is not None and mode == "auto" else []
    return next((each for each in able if each.setting.prefill == style), able[0])


def run(mode: Mode, workload: Workload, *, rate: float = 1e8, style: str = "chunked") -> SimResult:
    asked = ask(rate=rate, work=workload)
    plan = plan_load(workload, seed=5, seconds=20.0)
    return simulate(build_scene(asked), arranged(asked, mode, style), plan)


def outcomes(result: SimResult) -> dict[str, int]:
    told = [record.timeline.outcome for record in result.records]
    return {outcome: told.count(outcome) for outcome in set(told)}


@pytest.mark.parametrize("mode", MODES)
def test_who_gives_up_before_the_end_is_cancelled_and_all_others_are_answered(mode: Mode) -> None:
    workload = work(0.5, after_s=0.2)
    found = outcomes(run(mode, workload))
    patient = sum(
        request.cancel_after_s is None
        for request in plan_load(workload, seed=5, seconds=20.0).requests
    )
    assert found["completed"] >= patient
    assert found["cancelled"] > 10
    assert set(found) == {"completed", "cancelled"}


@pytest.mark.parametrize("mode", MODES)
def test_patience_that_outlasts_every_answer_changes_nothing(mode: Mode) -> None:
    waits = run(mode, work(0.0))
    given_up = run(mode, work(1.0, after_s=1e9))
    assert [r.timeline.token_s for r in waits.records] == pytest.approx(
        [r.timeline.token_s for r in given_up.records]
    )


def test_those_behind_who_gives_up_wait_less() -> None:
    slow = run("colocated", work(0.0, rate=9.0), style="whole")
    relieved = run("colocated", work(0.6, after_s=0.3, rate=9.0), style="whole")

    def waits(result: SimResult) -> float:
        done = [r.timeline for r in result.records if r.timeline.outcome == "completed"]
        return sum(line.token_s[0] - line.start_s for line in done) / len(done)

    assert waits(relieved) < 0.7 * waits(slow)


def test_who_gives_up_in_time_counts_neither_way_and_who_is_driven_away_as_missed() -> None:
    workload = work(0.5, after_s=0.2)
    plan = plan_load(workload, seed=5, seconds=20.0)
    result = run("colocated", workload)
    made = run_figures(result, plan, Targets(ttft_s=100.0, tpot_s=10.0))
    assert made.cancelled == made.left == outcomes(result)["cancelled"] > 0
    assert made.attainment == 1.0 and made.judged == made.completed
    late = run_figures(result, plan, Targets(ttft_s=1e-6, tpot_s=10.0))
    assert (late.left, late.attainment) == (0, 0.0)


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    style=st.sampled_from(["chunked", "whole"]),
    share=st.floats(0.1, 1.0),
    after_s=st.floats(0.001, 3.0),
    link=st.floats(1e6, 1e10),
    memory=st.integers(1200, 40_000),
    turns=st.integers(1, 3),
    gives_up=st.booleans(),
)
def test_nothing_is_held_after_the_last_answer(
    mode: Mode,
    style: str,
    share: float,
    after_s: float,
    link: float,
    memory: int,
    turns: int,
    gives_up: bool,
) -> None:
    """Whatever is cancelled when: no block, seat or queue stays taken, and every request ends."""
    workload = structs.replace(work(share, after_s, rate=2.0), turns=turns)
    asked = ask(rate=link, work=workload)
    scene = build_scene(asked)
    boxes = tuple(structs.replace(b, kv_tokens=max(memory, 700 * turns)) for b in scene.boxes)
    plan = plan_load(workload, seed=2, seconds=6.0)
    made = Simulation(
        structs.replace(scene, boxes=boxes),
        arranged(asked, mode, style),
        plan,
        enough=None,
        gives_up=gives_up,
    )
    result = made.run()
    assert len(result.records) == _offered(plan)
    for box in made.boxes.workers.values():
        held = box.scheduler
        assert held.pool.blocks_available == held.pool.blocks_total
        assert (held.waiting, held.running, held.reserved, held.handing_over) == (0, 0, 0, 0)
    for name, held in made.board.held.items():
        assert (held.requests, held.writing, held.unread_tokens, held.known) == (0, 0, 0, 0), name
        assert (held.handing_over_tokens, held.context_tokens) == (0, 0)


def _offered(plan: LoadPlan) -> int:
    return len(plan.requests)
