"""The estimate that early refusal rests on, and what auto believes of a link."""

from __future__ import annotations

import pytest
from homesplit_engine.records import TransferEvent
from homesplit_engine.router.pressure import Pressure
from homesplit_engine.router.rates import Rates

PAIR = ("left", "right")
MEGABYTE = 10**6


def transfer(size: int, took_s: float, exposed_s: float) -> TransferEvent:
    return TransferEvent(
        box_from="left",
        box_to="right",
        request_id="a",
        start_s=0.0,
        end_s=took_s,
        bytes=size,
        tokens=10,
        exposed_s=exposed_s,
    )


def test_without_a_measurement_there_is_no_estimate() -> None:
    pressure = Pressure()
    assert pressure.wait_s(100) is None
    pressure.learn(received_s=0.0, prompt_tokens=9, now_s=1.0)
    assert pressure.wait_s(100_000) is None  # one short prompt tells nothing of a queue


def test_prompts_that_waited_together_share_the_time() -> None:
    pressure = Pressure()
    for now_s in (1.0, 2.0, 3.0, 4.0):  # all came at 0: 400 tokens took 4 s, not 10
        pressure.learn(received_s=0.0, prompt_tokens=100, now_s=now_s)
    assert pressure.wait_s(500) == pytest.approx(5.0)


def test_idle_time_is_not_counted() -> None:
    pressure = Pressure()
    for received_s in (0.0, 1000.0, 2000.0, 3000.0):
        pressure.learn(received_s=received_s, prompt_tokens=100, now_s=received_s + 1.0)
    assert pressure.wait_s(100) == pytest.approx(1.0)


def read_evenly(pressure: Pressure, prompts: int, began_s: float = 0.0) -> float:
    """Prompts of 100 tokens that came together, read in a second each; when the last one was."""
    for number in range(prompts):
        now_s = began_s + number + 1
        pressure.learn(received_s=began_s, prompt_tokens=100, now_s=now_s)
    return began_s + prompts


def test_a_box_that_stood_still_once_is_not_taken_for_one_that_reads_so_slowly() -> None:
    pressure = Pressure()
    now_s = read_evenly(pressure, 20)
    # Asleep for 20 s, and a short prompt is what it reads first.
    pressure.learn(received_s=now_s, prompt_tokens=20, now_s=now_s + 20.0)
    assert pressure.wait_s(1000) == pytest.approx(55.0, rel=0.1)  # 10 s before it: not 320 s
    read_evenly(pressure, 24, now_s + 20.0)
    assert pressure.wait_s(1000) == pytest.approx(10.0, rel=0.25)


def test_a_box_that_became_slow_is_known_to_be_slow_after_a_few_prompts() -> None:
    pressure = Pressure()
    now_s = read_evenly(pressure, 20)
    for number in range(1, 7):
        pressure.learn(received_s=now_s, prompt_tokens=100, now_s=now_s + 20.0 * number)
    assert pressure.wait_s(100) == pytest.approx(20.0, rel=0.25)


def test_what_was_learnt_of_a_queue_is_forgotten_a_minute_after_its_end() -> None:
    pressure = Pressure()
    now_s = read_evenly(pressure, 4)
    pressure.nobody_waits(now_s + 59.0)
    assert pressure.wait_s(100) == pytest.approx(1.0)
    pressure.nobody_waits(now_s + 61.0)
    assert pressure.wait_s(100) is None
    read_evenly(pressure, 4, now_s + 70.0)
    assert pressure.wait_s(100) == pytest.approx(1.0)


def test_a_hand_off_held_up_by_prefill_does_not_lower_the_links_rate() -> None:
    rates = Rates({PAIR: 100.0 * MEGABYTE})
    rates.learn_transfer(transfer(MEGABYTE, took_s=1.0, exposed_s=0.1))
    assert rates.link_bytes_per_s[PAIR] == 100.0 * MEGABYTE


def test_a_hand_off_that_the_link_held_up_lowers_it_and_a_quick_one_raises_it() -> None:
    rates = Rates({PAIR: 2.0 * MEGABYTE})
    rates.learn_transfer(transfer(MEGABYTE, took_s=1.0, exposed_s=0.9))
    assert rates.link_bytes_per_s[PAIR] < 2.0 * MEGABYTE
    before = rates.link_bytes_per_s[PAIR]
    rates.learn_transfer(transfer(MEGABYTE, took_s=0.1, exposed_s=0.0))
    assert rates.link_bytes_per_s[PAIR] > before


def test_a_small_hand_off_counts_only_while_nothing_better_is_known() -> None:
    rates = Rates()
    rates.learn_transfer(transfer(1000, took_s=0.01, exposed_s=0.01))
    assert rates.link_bytes_per_s[PAIR] == pytest.approx(100_000)
    rates.learn_transfer(transfer(1000, took_s=1.0, exposed_s=1.0))
    assert rates.link_bytes_per_s[PAIR] == pytest.approx(100_000)
