"""What the monitor is told of trouble that loses nobody: seen, with its figures, and once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from homesplit_engine.records import LinkSeen, Sending, TransferEvent, WorkerStatus
from homesplit_engine.router.watch import Watch
from homesplit_engine.wire.tcp import TcpSeen

MONOTONIC_S = 50.0


class Told:
    """A watch, and what it tells."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.over: list[tuple[str, str]] = []
        self.now_s, self.sent, self.resent = 0.0, 0, 0
        self.watch = Watch(
            lambda _box, kind, sentence: self.sentences.append(f"{kind}: {sentence}"),
            lambda box, kind: self.over.append((box, kind)),
        )

    def hear(self, now_s: float, connection: TcpSeen | None = None, **fields: Any) -> None:
        known: dict[str, Any] = {
            "box": "b",
            "clock_s": MONOTONIC_S,
            "running": 0,
            "waiting": 0,
            "reserved": 0,
            "blocks_free": 5,
            "blocks_total": 9,
        }
        self.watch.heard(WorkerStatus(**(known | fields)), connection, now_s)


def connection(sent: int = 0, resent: int = 0, rtt_s: float = 0.001) -> TcpSeen:
    return TcpSeen(acked_bytes=0, sent=sent, resent=resent, rtt_s=rtt_s)


def test_a_full_disk_is_told_once_and_again_when_it_was_not_full_meanwhile() -> None:
    told = Told()
    for free in (10**9, 4096, 0, 10**9, 0):
        told.hear(0.0, disk_free_bytes=free)
    first, second = told.sentences
    assert first == "disk_full: b: its disk is full, 4,096 bytes are left where the worker writes"
    assert second.startswith("disk_full: b: its disk is full, 0 bytes")
    assert told.over == [("b", "disk_full")]


@pytest.mark.parametrize(
    ("wall_s", "sentence"),
    [
        (1000.5, None),
        (-2600.0, "clock: b: its clock went back by 3,600 s"),
        (1060.0, "clock: b: its clock jumped by 60 s (it was set, or the box slept)"),
    ],
)
def test_a_clock_that_was_set_is_told_by_how_much(wall_s: float, sentence: str | None) -> None:
    told = Told()
    told.hear(0.0, wall_s=1000.0)
    told.hear(0.5, wall_s=wall_s)
    told.hear(1.0, wall_s=wall_s)
    assert told.sentences == ([sentence] if sentence else [])


def test_a_clock_is_not_compared_over_the_loss_of_a_box() -> None:
    told = Told()
    told.hear(0.0, wall_s=1000.0)
    told.watch.lost("b")
    told.hear(90.0, wall_s=5.0)
    assert told.sentences == []


def test_blocks_that_ran_out_are_told_when_a_request_wanted_them() -> None:
    told = Told()
    told.hear(0.0, block_shortages=7)
    told.hear(0.5, block_shortages=7, blocks_free=0)
    told.hear(1.0, block_shortages=9, blocks_free=1, waiting=3)
    told.hear(1.5, block_shortages=12)
    assert told.sentences == [
        "no_blocks: b: KV blocks ran short 2 times: 1 of 9 are free now, 3 requests wait"
    ]


def test_blocks_are_short_until_nobody_waits_however_long_a_step_is() -> None:
    told = Told()
    for half_seconds in range(12):
        told.hear(half_seconds / 2, block_shortages=half_seconds // 3, waiting=1)
    assert len(told.sentences) == 1 and told.over == []
    told.hear(6.0, block_shortages=3)
    assert told.over == [("b", "no_blocks")]


def link(sent: int, resent: int) -> tuple[LinkSeen, ...]:
    return (LinkSeen(peer="router", sent=sent, resent=resent, rtt_s=0.001),)


@pytest.mark.parametrize(
    ("sent", "resent", "own", "told_of"),
    [
        (1000, 2, 0, None),
        (1000, 12, 0, None),
        (100, 3, 0, "b to router: 3 of 150"),
        (100, 2, 4, "router to b: 6 of 150"),
    ],
    ids=["too few", "a small share", "one way", "both ways"],
)
def test_packets_sent_again_are_told_when_they_are_more_than_a_few(
    sent: int, resent: int, own: int, told_of: str | None
) -> None:
    told = Told()
    told.hear(0.0, connection(5000, 400), links=link(9000, 700))
    told.hear(9.0, connection(5050, 400 + own), links=link(9000 + sent, 700 + resent))
    assert [told_of in one for one in told.sentences if told_of] == [True] * bool(told_of)
    assert bool(told.sentences) == bool(told_of)


def test_losses_of_long_ago_and_of_another_connection_are_none_of_now() -> None:
    told = Told()
    told.hear(0.0, links=link(1000, 0))
    told.hear(1.0, links=link(1010, 9))
    assert len(told.sentences) == 1
    told.hear(20.0, links=link(1020, 9))
    told.hear(60.0, links=link(1030, 9))
    assert told.over == [("b", "packet_loss")]
    told.hear(61.0, links=link(40, 30))
    assert len(told.sentences) == 1


def test_what_a_connection_lost_goes_with_it() -> None:
    told = Told()
    told.hear(0.0, connection(1000), links=link(1000, 0))
    told.hear(1.0, connection(1001), links=link(1010, 9))
    assert len(told.sentences) == 1
    told.hear(2.0, connection(1002))
    assert told.over == [("b", "packet_loss")]
    told.hear(3.0, links=link(1010, 9))
    told.hear(4.0)
    assert len(told.sentences) == 1


def test_a_delay_is_told_unless_a_hand_offs_own_queue_may_be_it() -> None:
    told = Told()
    told.hear(0.0, connection(rtt_s=0.0002))
    told.hear(1.0, connection(rtt_s=0.05))
    told.hear(2.0, connection(rtt_s=0.3), sending=(Sending(request_id="r", left_bytes=1),))
    told.hear(4.0, connection(rtt_s=0.3))
    assert told.sentences == []
    told.hear(6.0, connection(rtt_s=0.2))
    told.hear(6.5, connection(rtt_s=0.2))
    assert told.sentences == [
        "latency: messages to b take 200 ms there and back, 0.2 ms at best before"
    ]


def handed_over(took_s: float, **changes: Any) -> TransferEvent:
    known: dict[str, Any] = {
        "box_from": "a",
        "box_to": "b",
        "request_id": "r",
        "start_s": 0.0,
        "end_s": took_s,
        "bytes": 10**7,
        "tokens": 1,
        "exposed_s": took_s,
    }
    return TransferEvent(**(known | changes))


@pytest.mark.parametrize(
    ("event", "told_of"),
    [
        (handed_over(8.0), 1),
        (handed_over(2.0), 0),
        (handed_over(8.0, exposed_s=1.0), 0),
        (handed_over(8.0, bytes=1000), 0),
        (handed_over(8.0, committed=False), 0),
    ],
    ids=["slow", "as ever", "it waited for the prompt", "too small to show", "it failed"],
)
def test_hand_offs_that_take_times_what_they_took_are_told(
    event: TransferEvent, told_of: int
) -> None:
    told = Told()
    told.watch.handed_over(event, {("a", "b"): 1e7}, 0)
    assert len(told.sentences) == told_of
    assert all("take 8 times what they took" in one for one in told.sentences)


@pytest.mark.parametrize(
    ("later", "over"),
    [
        ([{"exposed_s": 1.0}] * 3, 1),
        ([{"exposed_s": 1.0}] * 2, 0),
        ([{"exposed_s": 1.0}, {"exposed_s": 1.0}, {}, {"exposed_s": 1.0}], 0),
        ([{"exposed_s": 1.0, "bytes": 1000}] * 3, 0),
        ([{"exposed_s": 1.0, "committed": False}] * 3, 0),
    ],
    ids=["hidden again", "too few", "slow in between", "too small to show", "they failed"],
)
def test_a_slow_link_is_over_when_hand_offs_hide_behind_their_prompts_again(
    later: list[dict[str, Any]], over: int
) -> None:
    told = Told()
    for changes in ({}, *later):
        told.watch.handed_over(handed_over(8.0, **changes), {("a", "b"): 1e7}, 0)
    assert len(told.sentences) == 1
    assert told.over == [("b", "slow_link")] * over


def disk(told: Told, free_bytes: int) -> None:
    told.hear(0.0, disk_free_bytes=free_bytes)


def delay(told: Told, rtt_ms: int) -> None:
    told.hear(9.0, connection(rtt_s=rtt_ms / 1e3))


def loss(told: Told, of_a_thousand: int) -> None:
    told.now_s, told.sent, told.resent = (
        told.now_s + 40.0,
        told.sent + 1000,
        told.resent + of_a_thousand,
    )
    told.hear(told.now_s, links=link(told.sent, told.resent))


def slow(told: Told, took_s: float) -> None:
    told.watch.handed_over(handed_over(took_s), {("a", "b"): 1e7}, 0)


@pytest.mark.parametrize(
    ("kind", "hear", "good", "between", "bad"),
    [
        ("disk_full", disk, 10**7, 500_000, 1000),
        ("latency", delay, 1, 45, 200),
        ("packet_loss", loss, 5, 15, 50),
        ("slow_link", slow, 1.0, 2.5, 5.0),
    ],
)
def test_what_hovers_about_its_bound_is_told_once_and_is_over_once(
    kind: str, hear: Callable[[Told, Any], None], good: Any, between: Any, bad: Any
) -> None:
    told = Told()
    for worth in (good, good, between, good):
        hear(told, worth)
    assert told.sentences == []
    for worth in (bad, between, bad, between):
        hear(told, worth)
    assert len(told.sentences) == 1 and told.over == []
    for worth in (good, between, good):
        hear(told, worth)
    assert len(told.sentences) == 1 and told.over == [("b", kind)]
    hear(told, bad)
    assert len(told.sentences) == 2


def test_a_disk_that_does_not_answer_is_told_until_it_does() -> None:
    told = Told()
    for hangs_s in (None, 6.0, 6.5, None, 5.0):
        told.hear(0.0, disk_hangs_s=hangs_s)
    first, second = told.sentences
    assert first.startswith("disk_hangs: b: its disk has not answered for 6 s where")
    assert second.startswith("disk_hangs: b: its disk has not answered for 5 s where")
    assert told.over == [("b", "disk_hangs")]
