"""Boxes that slow each other down: how it is seen in their steps, and what it does to a mode."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Mode, StepEvent
from msgspec import structs

from homesplit.core.calibration import Calibration
from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.load import plan_load
from homesplit.core.simulate import simulate
from homesplit.core.together import MIN_STEPS, slowed, together_words
from homesplit.core.workload import Arrivals
from tests.core.test_decide import ask, load

FIT = Calibration(
    box="A",
    model="m",
    step_s=0.1,
    token_s=0.0,
    pair_s=0.0,
    sequence_s=0.0,
    context_s=0.0,
    steps=40,
    error_p50=0.01,
    error_p90=0.02,
)


def steps(box: str, *spans: tuple[float, float]) -> list[StepEvent]:
    return [
        StepEvent(box=box, step=n, start_s=start, end_s=end, decode=("r",))
        for n, (start, end) in enumerate(spans)
    ]


def row(count: int, length_s: float, start_s: float = 0.0) -> list[tuple[float, float]]:
    return [(start_s + n * length_s, start_s + (n + 1) * length_s) for n in range(count)]


@pytest.mark.parametrize(("length_s", "times"), [(0.1, 1.0), (0.103, 1.0), (0.12, 1.2), (0.2, 2.0)])
def test_a_steps_excess_beside_the_others_is_the_slow_down(length_s: float, times: float) -> None:
    own = steps("A", *row(20, length_s))
    other = steps("B", (-1.0, 2.0), (2.0, 9.0))
    assert slowed(FIT, [(own, other)]) == pytest.approx(times)


def test_steps_while_the_other_box_rests_say_nothing() -> None:
    own = steps("A", *row(20, 0.2))
    assert slowed(FIT, [(own, [])]) is None
    assert slowed(FIT, [(own, steps("B", (50.0, 60.0)))]) is None
    # Half covered is neither.
    half = steps("B", *((s, s + 0.1) for s, _ in row(20, 0.2)))
    assert slowed(FIT, [(own, half)]) is None


def test_only_those_beside_the_other_box_count() -> None:
    own = steps("A", *row(MIN_STEPS, 0.15), *row(30, 0.1, 100.0))
    assert slowed(FIT, [(own, steps("B", (0.0, 50.0)))]) == pytest.approx(1.5)
    assert slowed(FIT, [(own[1:], steps("B", (0.0, 50.0)))]) is None


@pytest.mark.parametrize(
    ("lengths_s", "times"),
    [((0.1, 0.14, 0.1), 1.0), ((0.12, 0.14, 0.1), 1.2), ((0.12, 0.14), 1.3)],
    ids=["once disturbed", "slowed, disturbed, and lucky", "two turns"],
)
def test_what_disturbs_one_turn_of_three_is_not_taken_for_the_other_box(
    lengths_s: tuple[float, ...], times: float
) -> None:
    other = steps("B", (-1.0, 9.0))
    turns = [(steps("A", *row(20, length_s)), other) for length_s in lengths_s]
    # A turn that tells nothing counts nowhere.
    turns.append((steps("A", *row(MIN_STEPS - 1, 0.5)), other))
    assert slowed(FIT, turns) == pytest.approx(times)


def test_it_is_said_in_words_only_where_there_is_any() -> None:
    slow = structs.replace(FIT, together=1.15)
    assert together_words([FIT, FIT]) == ""
    assert "A 15% longer a step" in together_words([slow, FIT])
    assert "15% longer while the other box computes" in slow.words
    assert "longer" not in FIT.words


def finished_s(mode: Mode, together: float, users: int = 6) -> float:
    """When the last answer of a closed load ends."""
    work = structs.replace(load(200, 40), arrivals=Arrivals(kind="closed", users=users))
    asked = ask(work=work)
    scene = build_scene(asked)
    boxes = tuple(structs.replace(box, together=together) for box in scene.boxes)
    scene = structs.replace(scene, boxes=boxes)
    arrangement = next(each for each in arrangements(asked, scene) if each.mode == mode)
    plan = plan_load(work, seed=1, seconds=60.0)
    firsts = [request for request in plan.requests if request.after is None]
    both = {request.id for request in firsts} | {request.id + 1 for request in firsts}
    kept = structs.replace(plan, requests=tuple(r for r in plan.requests if r.id in both))
    records = simulate(scene, arrangement, kept).records
    return max(record.timeline.token_s[-1] for record in records)


@pytest.mark.parametrize("mode", ["replica", "split"])
def test_modes_of_two_boxes_take_longer_where_boxes_feel_each_other(mode: Mode) -> None:
    alone, beside, more = (finished_s(mode, times) for times in (1.0, 1.5, 2.0))
    assert alone < beside < more
    assert more < 2.01 * alone


def test_one_box_and_one_user_do_not_feel_it() -> None:
    assert finished_s("colocated", 2.0) == finished_s("colocated", 1.0)
    assert finished_s("replica", 2.0, users=1) == pytest.approx(finished_s("replica", 1.0, users=1))
