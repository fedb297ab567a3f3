"""Under overload the simulated router refuses as the real one does."""

from __future__ import annotations

from homesplit_engine.config import RouterConfig
from homesplit_engine.router.admission import SURE_SHARE as ROUTERS_SHARE
from msgspec import structs

from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.load import plan_load
from homesplit.core.sim_admission import FIRST_TOKEN_S, SURE_SHARE
from homesplit.core.simulate import SimResult, simulate
from homesplit.core.workload import Arrivals
from tests.core.test_decide import ask, load

TTFT_S = 2.0


def run(rate: float, *, target: bool) -> SimResult:
    work = structs.replace(load(1000, 20), arrivals=Arrivals(rate_requests_per_s=rate))
    asked = ask(work=work)
    scene = build_scene(asked)
    plan = plan_load(work, seed=3, seconds=60.0)
    chosen = arrangements(asked, scene)[1]
    return simulate(scene, chosen, plan, ttft_target_s=TTFT_S if target else None)


def inside(result: SimResult) -> int:
    lines = [record.timeline for record in result.records]
    return sum(bool(t.token_s) and t.token_s[0] - t.start_s <= TTFT_S for t in lines)


def outcomes(result: SimResult) -> set[str]:
    return {record.timeline.outcome for record in result.records}


def test_a_standing_queue_is_refused_at_the_target_and_more_come_in_time() -> None:
    refusing, patient = (run(8.0, target=target) for target in (True, False))
    assert outcomes(refusing) == {"completed", "rejected"} and outcomes(patient) == {"completed"}
    assert inside(refusing) > 3 * inside(patient)


def test_nobody_is_refused_below_the_capacity() -> None:
    assert outcomes(run(0.5, target=True)) == {"completed"}


def test_its_figures_are_the_routers() -> None:
    assert SURE_SHARE == ROUTERS_SHARE
    defaults = {field.name: field.default for field in structs.fields(RouterConfig)}
    assert defaults["first_token_deadline_s"] == FIRST_TOKEN_S
