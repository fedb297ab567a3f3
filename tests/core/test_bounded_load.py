"""A load that ends: predicted for its very requests, by the rule of the measured run."""

from __future__ import annotations

import pytest
from msgspec import structs

from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.load import Extent, bounded_load
from homesplit.core.predict import outlook
from homesplit.core.predict_run import predict_run
from homesplit.core.simulate import simulate
from homesplit.core.window import window
from homesplit.core.workload import Arrivals, Targets, Workload
from tests.core.test_decide import ask, box, load

BURSTS = Arrivals(rate_requests_per_s=1.2, pattern="on_off", on_s=6.0, off_s=6.0)
SHORT = Extent(seconds=18.0, seed=11)


def bursts() -> Workload:
    return structs.replace(load(8000, 60), arrivals=BURSTS)


def test_a_closed_load_that_ends_keeps_the_first_requests_of_every_user() -> None:
    made = bounded_load(load(users=3), Extent(seconds=60.0, seed=1, each=4))
    assert [request.user for request in made.requests] == [0] * 4 + [1] * 4 + [2] * 4


def test_a_load_without_a_request_is_refused() -> None:
    rare = structs.replace(load(), arrivals=Arrivals(rate_requests_per_s=0.001))
    with pytest.raises(ValueError, match="no request"):
        bounded_load(rare, Extent(seconds=1.0, seed=1))


def test_no_user_asks_again_after_the_end() -> None:
    asked = ask(work=load(500, 20, users=2))
    scene = build_scene(asked)
    made = bounded_load(asked.workload, Extent(seconds=5.0, seed=1))
    result = simulate(scene, arrangements(asked, scene)[0], made, until_s=5.0)
    assert 0 < len(result.records) < len(made.requests)
    assert max(record.timeline.start_s for record in result.records) < 5.0


def test_the_outlook_of_a_load_that_ends_is_the_prediction_of_its_run() -> None:
    targets = Targets(ttft_s=8.0, tpot_s=0.2)
    asked = ask(work=structs.replace(bursts(), targets=targets), targets=targets)
    scene = build_scene(asked)
    load = bounded_load(bursts(), SHORT)
    for each in arrangements(asked, scene):
        made = outlook(scene, each, asked.workload, targets, 240, SHORT)
        run = predict_run(scene, each.setting, asked.workload, load, window(load.seconds, 0.0, 0.0))
        assert run.goodput_requests_per_s == made.goodput
        assert run.ttft_s.p50 == made.figures.ttft_s.p50
        assert made.figures.offered == len(load.requests)


def test_a_short_burst_is_not_judged_by_the_queue_of_a_load_that_goes_on() -> None:
    targets = Targets(ttft_s=20.0, tpot_s=None)
    slow = box("a", flops=14e12)
    asked = ask(a=slow, work=structs.replace(bursts(), targets=targets), targets=targets)
    scene = build_scene(asked)
    alone = arrangements(asked, scene)[0]
    endless, ends = (
        outlook(scene, alone, asked.workload, targets, 240, extent) for extent in (None, SHORT)
    )
    assert endless.attainment < 0.6 < 0.8 < ends.attainment
