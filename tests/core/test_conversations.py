"""Loads whose conversations have several turns: what they bring at once, and how a rate is told."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Mode
from msgspec import structs

from homesplit.cli.plan_text import plan_lines
from homesplit.core.candidates import Asked, arrangements, build_scene
from homesplit.core.decide import Thinking, decide
from homesplit.core.elsewhere import Atlas
from homesplit.core.flips import Position, find_flips
from homesplit.core.plan_map import PlanMap
from homesplit.core.predict import Effort, at_rate, capacity, outlook
from homesplit.core.say import offered_rate
from homesplit.core.scene import Scene
from homesplit.core.workload import Arrivals, Targets, Workload
from tests.core.test_decide import QUICK, ask, load

TURNS = 6


def talking(conversations_per_s: float) -> Asked:
    """Conversations of six turns, each a second after the answer before it."""
    arrivals = Arrivals(rate_requests_per_s=conversations_per_s)
    work = structs.replace(load(400, 100), turns=TURNS, turn_think_s=1.0, arrivals=arrivals)
    return ask(work=work, targets=Targets(ttft_s=1.0, tpot_s=0.05))


def test_a_capacity_holds_for_as_long_as_conversations_are_begun() -> None:
    """A few of them are over before as many go on at once as their rate brings."""
    asked = talking(1.0)
    scene = build_scene(asked)
    one = arrangements(asked, scene)[0]
    effort = Effort(capacity_requests=120, capacity_rounds=5)
    most = capacity(scene, one, asked.workload, asked.targets, effort)
    assert most > 1.0
    long = outlook(scene, one, at_rate(asked.workload, most), asked.targets, 120)
    assert long.attainment > 0.85


@pytest.mark.parametrize(
    ("turns", "said"),
    [(1, "3 requests/s"), (6, "3 requests/s (0.5 conversations/s of 6 turns)")],
)
def test_a_rate_is_told_as_the_load_counts_it(turns: int, said: str) -> None:
    assert offered_rate(3.0, turns) == said


def test_what_is_offered_in_place_of_too_much_can_be_asked_as_it_is_told() -> None:
    # So many that their prefixes outgrow the memory: few would all be held.
    many = Thinking(effort=structs.replace(QUICK.effort, requests=90), flips=False)
    plan = decide(talking(20.0), many)
    assert plan.sustainable is False and plan.suited is not None
    assert f"conversations/s of {TURNS} turns" in plan.recommendation.sentence
    (line,) = (each for each in plan_lines(plan) if "--rate" in each)
    typed = float(line.rsplit(" ", 1)[1])
    assert typed == pytest.approx(plan.suited.rate_requests_per_s / TURNS, rel=1e-4)
    again = decide(structs.replace(talking(typed), targets=plan.suited.targets), many)
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
