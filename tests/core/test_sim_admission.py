"""Under overload the simulated router refuses as the real one does."""

from __future__ import annotations

from homesplit_engine.config import RouterConfig
from homesplit_engine.router.admission import SURE_SHARE as ROUTERS_SHARE
from msgspec import structs

from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.load import plan_load
from homesplit.core.sim_admission import DEPLOYED_TTFT_S, FIRST_TOKEN_S, SURE_SHARE, SimAdmission
from homesplit.core.sim_result import SimResult
from homesplit.core.simulate import simulate
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
    assert defaults["ttft_target_s"] == DEPLOYED_TTFT_S


def let_in(own_target_s: float, *, known: bool) -> list[bool]:
    """A prompt of 200 tokens every 2 s where one takes 2.5 s: the queue grows by a fifth of one."""
    made = SimAdmission(own_target_s, **({"prompt_tokens": 200.0, "read_s": 2.5} if known else {}))
    told: list[bool] = []
    reading: list[float] = []
    for number in range(30):
        now_s = 2.0 * number
        while reading and reading[0] <= now_s:
            made.first_token(len(told) - len(reading), reading.pop(0))
        told.append(made.lets_in(number, 200, now_s))
        if told[-1]:
            reading.append(max(now_s, reading[-1] if reading else 0.0) + 2.5)
    return told


def test_a_queue_stands_by_the_deployments_target_and_is_cut_at_the_requests_own() -> None:
    assert all(let_in(600.0, known=True))
    strict = let_in(8.0, known=True)
    # A queue above one second is called standing after ten of them, long before 80 s are over.
    assert all(strict[:5]) and not all(strict[:20])


def test_a_router_that_has_served_judges_from_the_first_request_on() -> None:
    assert let_in(8.0, known=True).index(False) <= let_in(8.0, known=False).index(False)
