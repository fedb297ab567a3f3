"""What hand-offs take beside their bytes, found in hand-offs of which it is known."""

from __future__ import annotations

import pytest
from homesplit_engine.records import PrefillSlice, StepEvent, TransferEvent
from msgspec import structs

from homesplit.core.candidates import build_scene
from homesplit.core.explain import guesses, sources
from homesplit.core.handoff import COMMIT_S, Wire
from homesplit.core.handoff_fit import HandoffFit, HandoffsOf, fit_handoffs
from tests.core.test_decide import ask

WIRE = Wire(bytes_per_s=1e6, round_trip_s=0.002, message_s=0.0, commit_s=0.5)
OF = HandoffsOf(sender="a", receiver="b", wire=WIRE, layers=10)
LAST_LAYER_S, HALF_TRIP_S = 0.1, 0.001


def handoffs(
    commits_s: list[float], *, committed: bool = True
) -> tuple[list[TransferEvent], list[StepEvent]]:
    """One prompt every 100 s: read for 10 s, 1 MB handed over, committed so much later."""
    transfers: list[TransferEvent] = []
    steps: list[StepEvent] = []
    for number, commit_s in enumerate(commits_s):
        start_s, name = 100.0 * number, f"r{number}"
        piece = PrefillSlice(request_id=name, start=0, tokens=100, last=True)
        steps.append(
            StepEvent(box="a", step=number, start_s=start_s, end_s=start_s + 10.0, prefill=(piece,))
        )
        exposed_s = LAST_LAYER_S + HALF_TRIP_S + commit_s
        transfers.append(
            TransferEvent(
                box_from="a",
                box_to="b",
                request_id=name,
                start_s=start_s + 1.0,
                end_s=start_s + 10.0 + exposed_s,
                bytes=1_000_000,
                tokens=100,
                exposed_s=exposed_s,
                committed=committed,
            )
        )
    return transfers, steps


def test_the_median_of_what_is_left_of_the_exposed_time_is_found() -> None:
    fit = fit_handoffs(*handoffs([0.02, 0.03, 0.03, 0.04, 2.0]), of=OF)
    assert fit is not None
    assert fit.commit_s == pytest.approx(0.03)
    assert fit.spread_s == pytest.approx(0.01)
    assert fit.handoffs == 5


def test_few_or_failed_hand_offs_give_no_fit() -> None:
    assert fit_handoffs(*handoffs([0.02] * 3), of=OF) is None
    assert fit_handoffs(*handoffs([0.02] * 9, committed=False), of=OF) is None


def test_hand_offs_of_the_other_way_are_not_mixed_in() -> None:
    transfers, steps = handoffs([0.02] * 5)
    turned = [structs.replace(t, box_from="b", box_to="a") for t in transfers]
    assert fit_handoffs(turned, steps, of=OF) is None


def test_the_plan_takes_the_timed_figure_and_says_where_it_is_from() -> None:
    fit = HandoffFit(sender="a", receiver="b", commit_s=0.04, spread_s=0.0, handoffs=9, at="2026")
    bare = ask()
    timed = structs.replace(bare, handoffs=(fit,))
    wires = build_scene(timed).wires
    assert {wire.commit_s for wire in wires.values()} == {0.04}
    assert any("timed over 9" in said for said in sources(timed, build_scene(timed)))
    assert not any("beside its bytes" in said for said in guesses(timed, build_scene(timed)))


def test_the_plan_says_that_the_default_was_taken() -> None:
    bare = ask()
    assert {wire.commit_s for wire in build_scene(bare).wires.values()} == {COMMIT_S}
    said = [text for text in guesses(bare, build_scene(bare)) if "beside its bytes" in text]
    assert len(said) == 1 and "6 ms" in said[0]
