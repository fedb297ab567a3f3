"""The strips line up steps, hand-offs and the waits that they cause."""

from __future__ import annotations

from homesplit_engine.records import Fault

from homesplit.core import events
from homesplit.core.engine_state import MENDED, Engine, after
from homesplit.view import timeline
from homesplit.view.spans import plain
from homesplit.view.watch import Watch
from tests.view.steps import decode, prefill, record


def drawn(*told: events.EngineEvent, now_s: float = 10.0, width: int = 28) -> list[str]:
    watch, engine = Watch(), after(Engine(), told)
    watch.take(engine, 0.1)
    rows = timeline.timeline(watch, engine, now_s=now_s, window_s=10, width=width, boxes=("a",))
    return plain(rows).split("\n")


def test_the_strip_shows_prefill_where_it_was_and_decode_beside_it() -> None:
    told = (decode(0, 5, "r1", "r2", "r3", "r4"), prefill(5, 10, "r5", 7))
    rows = drawn(*told, width=timeline.LABEL + 10)
    assert rows[0][timeline.LABEL :] == "·····█ 7 █"
    assert rows[1][timeline.LABEL :] == "█████·····"


def test_a_fault_and_its_end_stand_at_their_moments_each_with_a_glyph_of_its_own() -> None:
    marks = [
        events.FaultSeen(fault=Fault(at_s=at_s, box="a", kind=kind, sentence="told"))
        for at_s, kind in ((2.0, "pause"), (6.0, MENDED), (8.0, "worker_lost"))
    ]
    axis = drawn(*marks, now_s=10.0, width=timeline.LABEL + 50)[-1][timeline.LABEL :]
    assert (axis.index("✗pause a"), axis.index("✓mended a")) == (10, 30)
    assert "✗worker lo" in axis


def test_every_row_fits_the_width() -> None:
    told = (decode(0, 5, "r1"), prefill(5, 10, "r5", 700))
    for width in (40, 80, 200):
        assert max(len(row) for row in drawn(*told, width=width)) <= width


def test_what_has_happened_keeps_its_shape_as_it_moves() -> None:
    told = (decode(3.3, 4.9, "r1"), prefill(5.2, 7.7, "r5", 700))
    shapes = {
        row.strip("·")
        for now_s in (10.0, 10.4, 10.9, 11.3)
        for row in (drawn(*told, now_s=now_s, width=timeline.LABEL + 20)[0][timeline.LABEL :],)
    }
    assert len(shapes) == 1


def test_a_wait_is_drawn_with_its_length() -> None:
    rows = drawn(decode(0, 1, "r1"), prefill(1, 9, "r2", 500), decode(9, 9.05, "r1"))
    assert (
        "8.05 s"
        in drawn(decode(0, 1, "r1"), prefill(1, 9, "r2", 500), decode(9, 9.05, "r1"), width=80)[2]
    )
    assert "╌" in rows[2]


def test_a_moments_delay_does_not_hide_a_long_wait_that_is_still_to_be_seen() -> None:
    told = (decode(0, 1, "r1"), prefill(1, 4, "r2", 500), decode(4, 4.05, "r1"))
    short = (decode(4.05, 4.25, "r1"), record("r1", 4.25))
    watch, engine = Watch(), after(Engine(), (*told, *short))
    watch.take(engine, 0.1)
    lengths = {
        now_s: round(stall.length_s, 2)
        for now_s in (5.0, 12.0)
        if (stall := timeline.telling_stall(watch, now_s, 8.0)) is not None
    }
    assert lengths == {5.0: 3.05, 12.0: 3.05}
    seen = timeline.telling_stall(watch, 12.2, 8.0)
    assert seen is not None
    assert round(seen.length_s, 2) == 0.2
    assert timeline.telling_stall(watch, 40.0, 8.0) is None
