"""The Machines screen: columns as wide as their text, two cards, what their difference means."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce

import pytest
from msgspec.structs import replace

from homesplit.core import events
from homesplit.core.machine import Accelerator, BoxProfile
from homesplit.core.reading import unknown
from homesplit.core.state import RunState, apply
from homesplit.view import machines
from homesplit.view.spans import plain, width_of
from tests.tui import sample_run

NOW = datetime(2026, 1, 1, 12, 5, tzinfo=UTC)
SOURCES = ("ssh config", "used before", "mDNS", "by hand")


def chosen() -> RunState:
    return reduce(apply, sample_run.machines(), RunState())


def known_from_everywhere() -> RunState:
    box = replace(sample_run.found("atlas", "10.77.0.11"), found_by=SOURCES)
    return apply(chosen(), events.BoxFound(box=box))


@pytest.mark.parametrize("width", [76, 116, 196, 296])
def test_every_row_fits_its_screen(width: int) -> None:
    state = known_from_everywhere()
    rows = [machines.row(state, box, NOW, width) for box in state.boxes]
    assert all(width_of(row) <= width for row in (*rows, machines.header(state, width)))


def test_how_a_machine_was_found_is_shown_whole_where_there_is_room() -> None:
    state = known_from_everywhere()
    told = plain([machines.row(state, state.boxes[0], NOW, 150)])
    assert "ssh config, used before, mDNS, by hand" in told
    assert "✓ usable" in told


def test_on_a_narrow_screen_it_stands_behind_the_tick() -> None:
    state = chosen()
    assert plain([machines.header(state, 76)]).endswith("usable, found by")
    assert plain([machines.row(state, state.boxes[0], NOW, 76)]).endswith("✓ mDNS")


def test_a_machine_added_by_hand_is_not_called_usable_before_it_has_answered() -> None:
    typed = replace(sample_run.found("attic", "10.0.0.9"), host_key=None, trusted=False)
    state = apply(chosen(), events.BoxFound(box=typed))
    for width in (76, 196):
        told = plain([machines.row(state, typed, NOW, width)])
        assert "? not tried" in told
        assert "✓" not in told
    measured = replace(state.profiles["atlas"], name="attic")
    state = apply(state, events.BoxProbed(profile=measured))
    assert "✓ usable" in plain([machines.row(state, typed, NOW, 196)])


def test_the_larger_box_fills_its_bar_and_the_other_a_share_of_it() -> None:
    rows = plain(machines.cards(chosen(), 116)).split("\n")
    bars = rows[rows.index(next(row for row in rows if "arithmetic" in row)) + 1]
    assert (bars[:41].count("█"), bars[75:].count("█")) == (41, 20)


def test_the_difference_between_the_boxes_is_told_in_words() -> None:
    assert plain(machines.meaning(chosen(), 200)).split("\n") == [
        "Reading a prompt (prefill) takes arithmetic: atlas has 2.0 times that of borea.",
        "Writing the answer (decode) takes memory bandwidth: atlas and borea are alike.",
    ]


def test_what_was_not_measured_is_compared_with_nothing() -> None:
    state = chosen()
    blank = replace(state.profiles["borea"], memory_bytes_per_s=unknown("no torch"), flops_per_s={})
    told = apply(state, events.BoxProbed(profile=blank))
    assert machines.meaning(told, 200) == ()
    assert "– no torch" in plain(machines.cards(told, 116))
    assert machines.meaning(RunState(), 200) == ()


@pytest.mark.parametrize("state", [RunState(), chosen()], ids=["nobody chosen", "two chosen"])
def test_a_tall_screen_teaches_what_two_boxes_can_do(state: RunState) -> None:
    told = plain(machines.cards(state, 116))
    assert "A reads ━ KV cache ━▶ B writes" in told
    assert [word for word in ("colocated", "replica", "split") if word in told.split()] == [
        "colocated",
        "replica",
        "split",
    ]
    small = plain(machines.cards(state, 76, tall=False))
    assert "KV cache" not in small
    assert ("One box does it all." in small) == (not state.choices.boxes)


@pytest.mark.parametrize("width", [76, 100, 116, 296])
def test_what_is_taught_fits_its_screen(width: int) -> None:
    assert all(width_of(row) <= width for row in machines.arrangements(width))


@pytest.mark.parametrize(
    ("label_bytes_per_s", "told"),
    [(1.25e8, "of its label 1.00 Gbit/s"), (None, "label: the adapters tell none")],
)
def test_the_links_rate_stands_against_its_label_or_it_is_said_that_there_is_none(
    label_bytes_per_s: float | None, told: str
) -> None:
    link = replace(chosen().links[-1], label_bytes_per_s=label_bytes_per_s, loopback=False)
    assert told in plain(machines.link_card("atlas", "borea", link, 116))


@pytest.mark.parametrize(
    ("device", "gpus", "told"),
    [
        ("cuda", ("RTX 4090", "UHD 770"), "RTX 4090"),
        ("cpu", ("Radeon 780M",), "Ryzen 7"),
        ("cpu", (), "Ryzen 7"),
        ("mps", (), "Ryzen 7"),
    ],
)
def test_a_box_is_known_by_what_computes_there(
    device: str, gpus: tuple[str, ...], told: str
) -> None:
    found = tuple(Accelerator(name=name) for name in gpus)
    box = BoxProfile(name="b", source="probe", device=device, cpu="Ryzen 7", accelerators=found)
    assert machines.computes(box) == told
