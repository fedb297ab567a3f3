"""Loads whose conversations have several turns: what they bring at once, and how a rate is told."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Mode
from msgspec import structs

from homesplit.cli.plan_text import plan_lines
from homesplit.core.candidates import Asked, arrangements, auto, build_scene
from homesplit.core.conversing import going_on
from homesplit.core.decide import decide
from homesplit.core.elsewhere import Atlas
from homesplit.core.flips import Position, find_flips
from homesplit.core.plan_map import PlanMap
from homesplit.core.predict import Effort, at_rate, capacity, outlook
from homesplit.core.say import offered_rate
from homesplit.core.scene import Scene
from homesplit.core.sim_result import SimRecord
from homesplit.core.workload import Arrivals, Targets, Workload
from tests.core.test_decide import QUICK, ask, load

TURNS = 6


def talking(conversations_per_s: float) -> Asked:
    """Conversations of six turns, each a second after the answer before it."""
    arrivals = Arrivals(rate_requests_per_s=conversations_per_s)
    work = structs.replace(load(400, 100), turns=TURNS, turn_think_s=1.0, arrivals=arrivals)
    return ask(work=work, targets=Targets(ttft_s=1.0, tpot_s=0.05))


def asked_tokens(record: SimRecord) -> int:
    return record.timeline.prompt_tokens or 0


def test_a_capacity_holds_for_as_long_as_conversations_are_begun() -> None:
    """A few of them are over before as many go on at once as their rate brings."""
    asked = talking(1.0)
    scene = build_scene(asked)
    one = arrangements(asked, scene)[0]
    effort = Effort(capacity_requests=120, capacity_rounds=5)
    most = capacity(scene, one, asked.workload, asked.targets, effort)
    assert most > 4.0
    long = outlook(scene, one, at_rate(asked.workload, most), asked.targets, 480)
    assert long.attainment > 0.85


def test_a_load_of_conversations_is_looked_at_from_its_middle() -> None:
    asked = talking(2.0)
    talks = going_on(asked.workload, seed=7, seconds=30.0, each_s=4.0)
    first = {request.conversation: request for request in reversed(talks.load.requests)}
    # Two a second, of 24 s each, are under way at once; as many more begin in 30 s.
    assert sum(request.turn > 0 for request in first.values()) == pytest.approx(40, abs=15)
    assert sum(request.turn == 0 for request in first.values()) == pytest.approx(60, abs=20)
    assert all(0.0 <= (request.send_at_s or 0.0) < 30.0 for request in first.values())
    under_way = [request for request in first.values() if request.turn > 0]
    assert all((request.send_at_s or 0.0) < 4.0 for request in under_way)
    assert {request.id for request in talks.before} == {request.id - 1 for request in under_way}
    times = [first[request.conversation].send_at_s or 0.0 for request in talks.before]
    assert times == sorted(times)


def test_what_was_said_before_is_not_read_again() -> None:
    asked = talking(1.0)
    scene = build_scene(asked)
    for each in arrangements(asked, scene):
        records = outlook(scene, each, asked.workload, asked.targets, 40).result.records
        first = [record for record in records if record.timeline.start_s < 1.0]
        assert any(asked_tokens(record) > 1000 for record in first)
        if each.mode != "replica":
            read = [asked_tokens(record) - record.cached_tokens for record in first]
            assert max(read) < 600


def test_auto_keeps_a_conversation_where_it_is_cached_and_replica_goes_by_numbers() -> None:
    """Why auto is told more of them: it reads less anew."""
    asked = talking(1.0)
    scene = build_scene(asked)
    replica = next(each for each in arrangements(asked, scene) if each.mode == "replica")
    free = auto(asked, scene)
    assert free is not None
    shares: list[float] = []
    for each in (replica, free):
        records = outlook(scene, each, asked.workload, asked.targets, 120).result.records
        shares.append(
            sum(record.cached_tokens for record in records)
            / sum(asked_tokens(record) for record in records)
        )
    assert 1.0 - shares[0] > 1.2 * (1.0 - shares[1])


@pytest.mark.parametrize(
    ("turns", "said"),
    [(1, "3 requests/s"), (6, "3 requests/s (0.5 conversations/s of 6 turns)")],
)
def test_a_rate_is_told_as_the_load_counts_it(turns: int, said: str) -> None:
    assert offered_rate(3.0, turns) == said


def test_what_is_offered_in_place_of_too_much_can_be_asked_as_it_is_told() -> None:
    plan = decide(talking(20.0), QUICK)
    assert plan.sustainable is False and plan.suited is not None
    assert f"conversations/s of {TURNS} turns" in plan.recommendation.sentence
    (line,) = (each for each in plan_lines(plan) if "--rate" in each)
    typed = float(line.rsplit(" ", 1)[1])
    assert typed == pytest.approx(plan.suited.rate_requests_per_s / TURNS, rel=1e-4)
    again = decide(structs.replace(talking(typed), targets=plan.suited.targets), QUICK)
    assert again.sustainable


def test_flips_and_map_count_requests_as_the_capacities_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, seen = talking(0.5), list[float]()

    def quick(position: Position, scene: Scene, workload: Workload) -> Mode:
        seen.append(workload.arrivals.rate_requests_per_s or 0.0)
        return "colocated" if seen[-1] < 1.2 else "replica"

    monkeypatch.setattr("homesplit.core.flips.winner", quick)
    monkeypatch.setattr("homesplit.core.elsewhere.winner", quick)
    scene = build_scene(asked)
    position = Position(
        scene=scene,
        arrangements=arrangements(asked, scene)[:1],
        workload=asked.workload,
        targets=asked.targets,
        mode="colocated",
    )
    (flip,) = (each for each in find_flips(position) if each.quantity == "rate")
    # 1.2 conversations of six requests.
    assert flip.value == pytest.approx(7.2, rel=0.1) and flip.value >= 7.2
    assert f"At {offered_rate(flip.value, TURNS)}: replica wins" in flip.sentence
    axes = PlanMap(
        other="requests/s", prompt_tokens=(400,), others=(3.0,), here_prompt=400.0, here_other=3.0
    )
    assert Atlas(map=axes, position=position).cell(0, 0) == "colocated"
    assert seen[-1] == 0.5
