"""The link probe between two ends on loopback: real sockets, no mock."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from homesplit_probes import link, link_zmq
from homesplit_probes.budget import OVER, Budget

TOKEN = b"a" * 64
AMPLE_S = 120.0
"""A budget that a busy machine does not use up: what it leaves out is another test's affair."""


@pytest.fixture
def listener() -> Iterator[link.Listener]:
    ear = link.Listener(["127.0.0.1"], TOKEN, AMPLE_S)
    thread = threading.Thread(target=ear.serve, daemon=True)
    thread.start()
    yield ear
    ear._over.set()  # pyright: ignore[reportPrivateUsage]
    thread.join(timeout=5)


def test_both_ways_and_several_streams_give_rates(listener: link.Listener) -> None:
    address, port = listener.ports()[0]
    for streams in (1, 4):
        out = link.rate_there(address, port, TOKEN, streams, 1.0, streams)
        back = link.rate_here(address, port, TOKEN, streams, 1.0)
        assert min(out) > 1e6
        assert min(back) > 1e6


def test_messages_come_back_and_are_timed(listener: link.Listener) -> None:
    address, port = listener.ports()[0]
    trips = link.round_trips(address, port, TOKEN, 20)
    # As many of the twenty as a busy machine has time for.
    assert 0 < len(trips) <= 20
    assert all(t > 0 for t in trips)


def test_a_stranger_without_the_token_gets_not_one_byte(listener: link.Listener) -> None:
    address, port = listener.ports()[0]
    with socket.create_connection((address, port), 2) as sock:
        sock.sendall(b"b" * 64)
        sock.settimeout(60)
        assert sock.recv(1) == b""


def test_the_listener_binds_only_the_address_it_was_given(listener: link.Listener) -> None:
    assert [address for address, _ in listener.ports()] == ["127.0.0.1"]


def test_driving_tries_each_way_and_says_why_one_is_closed(listener: link.Listener) -> None:
    address, port = listener.ports()[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    answer = link.drive([("127.0.0.1", closed), (address, port)], TOKEN, lambda _: None, AMPLE_S)
    assert answer["peer"] == "127.0.0.1"
    assert "refused" in answer["ways"][0]["why"].lower()
    assert answer["out_1"]["value"] > 1e6
    assert answer["in_4"]["unit"] == "B/s"
    assert answer["sealed_out"]["value"] is None or answer["sealed_out"]["value"] > 1e6
    assert answer["in_busy"]["value"] > 1e6
    assert "all cores of both boxes work" in answer["out_busy"]["method"]


def test_when_the_time_is_over_the_rest_is_unknown_and_says_so(listener: link.Listener) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.6
        return now[0]

    address, port = listener.ports()[0]
    answer = link.measure(address, port, TOKEN, lambda _: None, Budget(2.0, clock))
    assert answer["out_1"]["value"] > 1e6
    for late in ("in_4", "zmq_out", "zmq_in"):
        assert answer[late] == {"value": None, "why": OVER}


@pytest.mark.parametrize(("rate", "size"), [(0, 4 << 20), (1e6, 64 << 10), (12.5e6, 625_000)])
def test_messages_are_small_enough_for_slow_links_to_give_several_windows(
    rate: float, size: int
) -> None:
    assert link_zmq.piece_bytes(rate) == size


def test_a_link_that_carries_only_small_messages_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where both boxes have jumbo frames and the switch has none; all else is not waited for."""

    def nothing(*_: object) -> list[float]:
        return [0.0, 0.0]

    def trips(*_: object) -> list[float]:
        return [1e-4] * 20

    monkeypatch.setattr(link, "rate_here", nothing)
    monkeypatch.setattr(link, "rate_there", nothing)
    monkeypatch.setattr(link, "round_trips", trips)
    told = link.measure("127.0.0.1", 1, TOKEN, print, Budget(AMPLE_S))
    assert told["round_trip"]["p50"]["value"] == 1e-4
    assert {told[key]["why"] for key in ("out_1", "in_1")} == {link.NOTHING_LONG}
    assert "not tried" in told["sealed_out"]["why"]


@pytest.mark.parametrize(("seconds", "why"), [(AMPLE_S, "it went away"), (0.0, OVER)])
def test_what_kept_the_first_stream_from_being_timed_is_told_of_all_that_is_left_out(
    seconds: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> list[float]:
        raise OSError("it went away")

    def trips(*_: object) -> list[float]:
        return [1e-4] * 20

    monkeypatch.setattr(link, "rate_here", gone)
    monkeypatch.setattr(link, "rate_there", gone)
    monkeypatch.setattr(link, "round_trips", trips)
    told = link.measure("127.0.0.1", 1, TOKEN, print, Budget(seconds))
    assert {told[key]["why"] for key in ("out_1", "out_4", "zmq_in", "sealed_out")} == {why}


def test_a_box_that_is_lost_while_the_link_is_measured_leaves_reasons() -> None:
    told = link.measure("127.0.0.1", 1, TOKEN, print, Budget(AMPLE_S))
    figures = [*told["round_trip"].values(), told["out_1"], told["in_busy"], told["zmq_out"]]
    assert {(each["value"], "refused" in each["why"]) for each in figures} == {(None, True)}


def test_no_way_at_all_is_said_in_words() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    answer = link.drive([("127.0.0.1", closed)], TOKEN, lambda _: None)
    assert answer["why"] == "no address of the other box answers"


def test_the_busiest_interface_is_the_one_that_grew_most() -> None:
    assert link.busiest({"a": 0, "b": 10}, {"a": 1 << 30, "b": 11}) == "a"
    assert link.busiest({"a": 0}, {"a": 12}) is None


def test_percentiles_of_nothing_are_none() -> None:
    assert link.percentile([], 0.5) is None
    assert link.percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_this_test_leaves_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    ear = link.Listener(["127.0.0.1"], TOKEN, 0.1)
    ear.serve()
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before
