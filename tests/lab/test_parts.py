"""The lab's arithmetic and wording, tried without making one."""

from __future__ import annotations

import struct

import pytest

from tests.lab import announcements
from tests.lab.dns import encode_name, questions
from tests.lab.errors import LabError
from tests.lab.meminfo import meminfo
from tests.lab.plan import UpOptions, plan
from tests.lab.rates import burst_bytes, goodput_bits_per_s, parse_rate, super_packet_bytes
from tests.lab.records import from_json, to_json
from tests.lab.store import CHECKOUT


@pytest.mark.parametrize(
    ("text", "bits_per_s"),
    [("50mbit", 50e6), ("2.5gbit", 2.5e9), ("300 Mbit/s", 300e6), ("100", 100e6), ("64k", 64e3)],
)
def test_a_rate_is_read_with_its_unit(text: str, bits_per_s: float) -> None:
    assert parse_rate(text) == bits_per_s


@pytest.mark.parametrize("text", ["", "fast", "1.2.3g", "0", "-5mbit", "5 parsec"])
def test_a_rate_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(LabError, match="write 300mbit"):
        parse_rate(text)


def test_a_gigabit_carries_941_mbit_of_tcp() -> None:
    assert round(goodput_bits_per_s(1e9) / 1e6) == 941


def test_the_free_burst_holds_two_super_packets_at_every_rate() -> None:
    for rate in (1e6, 50e6, 1e9, 2.5e9, 10e9):
        assert burst_bytes(rate) >= 2 * super_packet_bytes(rate)


def test_boxes_get_names_addresses_and_what_was_asked_of_each() -> None:
    state = plan(
        "x", UpOptions(boxes="2", link=["1gbe", "borea=wifi"], cpu=["atlas=0.5@3"], cores=[2, 3])
    )
    atlas, borea = state.nodes["atlas"], state.nodes["borea"]
    assert (atlas.address, borea.address, state.nodes["desk"].address) == (
        "10.77.0.11",
        "10.77.0.12",
        "10.77.0.2",
    )
    assert (atlas.rate_bits_per_s, borea.rate_bits_per_s) == (1e9, 300e6)
    assert atlas.cpu is not None
    assert (atlas.cpu.share, atlas.cpu.cpus) == (0.5, [3])
    assert borea.cpu is None


def test_two_boxes_with_a_core_each_get_different_cores() -> None:
    state = plan("x", UpOptions(cpu=["atlas=1", "borea=1"], cores=[0, 1]))
    cores = [node.cpu.cpus for node in state.nodes.values() if node.cpu]
    assert cores == [[0], [1]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (UpOptions(boxes="0"), "1 to 8"),
        (UpOptions(boxes="desk"), "taken"),
        (UpOptions(boxes="a b"), "no name"),
        (UpOptions(link=["nobody=1gbe"]), "no machine 'nobody'"),
        (UpOptions(cpu=["atlas=3"], cores=[0]), "this machine has cores"),
        (UpOptions(cpu=["atlas=1@x"], cores=[0]), "this machine has cores"),
        (UpOptions(memory=["atlas=much"]), "no number"),
        (UpOptions(odd="dragon"), "some of refuse, mdns, printer"),
        (UpOptions(subnet="10.0.0.0/8"), "a /24"),
        (UpOptions(share=["relative"]), "absolute path"),
    ],
)
def test_options_that_cannot_be_are_refused_in_words(options: UpOptions, says: str) -> None:
    with pytest.raises(LabError, match=says):
        plan("x", options)


def test_the_checkout_is_among_the_hidden_folders() -> None:
    hidden = plan("x", UpOptions()).settings.hide
    replaced = ("/root", "/tmp", "/run")
    covered = [path for path in hidden if str(CHECKOUT).startswith(path)]
    assert covered or str(CHECKOUT).startswith(replaced)


def test_a_state_reads_back_as_it_was_written() -> None:
    state = plan("x", UpOptions(cpu=["atlas=0.5"], odd="all"))
    assert from_json(to_json(state)) == state


def test_a_query_is_read_with_its_compressed_names() -> None:
    ssh = (b"_ssh", b"_tcp", b"local")
    head = struct.pack(">HHHHHH", 0, 0, 2, 0, 0, 0)
    first = encode_name(ssh) + struct.pack(">HH", 12, 1)
    pointer_to_first = b"\x05Atlas\xc0\x0c" + struct.pack(">HH", 33, 1)
    assert questions(head + first + pointer_to_first) == [ssh, (b"atlas", *ssh)]


def test_an_answer_or_a_cut_packet_asks_nothing() -> None:
    for packet in (*announcements.broken_packets("malin")[:-1], b"", b"\0" * 11):
        assert questions(packet) == []


def test_a_name_that_points_at_itself_ends() -> None:
    head = struct.pack(">HHHHHH", 0, 0, 1, 0, 0, 0)
    assert questions(head + b"\xc0\x0c" + struct.pack(">HH", 12, 1)) == []


def test_meminfo_shows_the_limit_and_keeps_other_lines() -> None:
    host = "MemTotal:       32000000 kB\nMemFree: 1 kB\nSwapTotal: 9 kB\nHugepagesize:    2048 kB\n"
    shown = meminfo(host, 2.0, used_bytes=2**30, cached_bytes=0)
    assert shown.splitlines() == [
        "MemTotal:        2097152 kB",
        "MemFree:         1048576 kB",
        "SwapTotal:             0 kB",
        "Hugepagesize:    2048 kB",
    ]
