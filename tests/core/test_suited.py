"""Targets and a rate that fit the boxes where the user named none."""

from __future__ import annotations

import pytest
from msgspec import structs

from homesplit.core.alone import BUSY_SHARE
from homesplit.core.candidates import Asked, arrangements, build_scene
from homesplit.core.plan import Suited
from homesplit.core.predict import outlook
from homesplit.core.suited import suited, with_suited
from homesplit.core.workload import Arrivals
from tests.core.test_decide import ask, box, load


def offer(asked: Asked) -> Suited | None:
    scene = build_scene(asked)
    return suited(scene, arrangements(asked, scene), asked.workload)


def busy(rate: float = 50.0, **arrivals: object) -> Asked:
    work = structs.replace(load(1000, 50), arrivals=Arrivals(rate_requests_per_s=rate))
    return ask(work=structs.replace(work, arrivals=structs.replace(work.arrivals, **arrivals)))


@pytest.mark.parametrize("slower", [1.0, 5.0, 30.0])
def test_what_is_offered_holds_on_one_box_however_slow_it_is(slower: float) -> None:
    own = box("a", flops=20e12 / slower, bandwidth=200e9 / slower)
    asked = structs.replace(busy(), boxes=(own,), link=None)
    found = offer(asked)
    assert found is not None and found.box == "a"
    scene = build_scene(asked)
    looks = [
        outlook(scene, each, with_suited(asked.workload, found), found.targets, 60).attainment
        for each in arrangements(asked, scene)
    ]
    assert max(looks) >= 0.9


def test_a_slower_box_is_offered_more_time_and_fewer_requests() -> None:
    quick, slow = (
        offer(ask(a=box("a", flops=f, bandwidth=b), b=box("b", flops=f, bandwidth=b)))
        for f, b in ((20e12, 200e9), (2e12, 20e9))
    )
    assert quick is not None and slow is not None
    assert slow.ttft_s > 4 * quick.ttft_s and slow.tpot_s > 4 * quick.tpot_s
    assert slow.rate_requests_per_s < quick.rate_requests_per_s / 4


def test_the_quicker_of_two_boxes_is_meant() -> None:
    found = offer(ask(a=box("a", flops=2e12, bandwidth=20e9)))
    assert found is not None and found.box == "b"
    assert "alone on b" in found.sentence


def test_an_even_load_takes_about_half_of_the_boxs_time() -> None:
    asked = busy(burstiness=0.0)
    found = offer(asked)
    assert found is not None
    # 50 steps of one answer and its prompt: what one request takes alone.
    scene = build_scene(asked)
    lone = structs.replace(asked.workload, arrivals=Arrivals(kind="closed", users=1))
    made = outlook(scene, arrangements(asked, scene)[0], lone, asked.targets, 20)
    assert found.rate_requests_per_s == pytest.approx(BUSY_SHARE / made.latency_s, rel=0.06)


def test_bursts_get_a_lower_rate_than_an_even_load() -> None:
    even, bursts = offer(busy(burstiness=0.0)), offer(busy(burstiness=12.0))
    assert even is not None
    assert bursts is None or bursts.rate_requests_per_s < even.rate_requests_per_s
