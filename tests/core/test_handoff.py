"""How long a hand-off takes and what of it anyone waits for: small round numbers."""

from __future__ import annotations

import pytest
from homesplit_engine.handoff.frames import FRAME_BYTES

from homesplit.core.handoff import Piece, Wire, hand_over

WIRE = Wire(bytes_per_s=1e6, round_trip_s=0.2, message_s=0.0, commit_s=0.5)
AFTER_S = 0.5 + 0.1
"""The commit and half a round trip."""


@pytest.mark.parametrize(
    ("megabytes", "overlap", "exposed_s"),
    [
        # The last of ten layers has a tenth of the bytes.
        (1.0, True, 0.1 + AFTER_S),
        # From the first layer's end at 1 s the link sends for 20 s; prefill ends at 10 s.
        (20.0, True, 11.0 + AFTER_S),
        (1.0, False, 1.0 + AFTER_S),
    ],
)
def test_what_prefill_does_not_hide_is_exposed(
    megabytes: float, overlap: bool, exposed_s: float
) -> None:
    piece = Piece(start_s=0.0, end_s=10.0, bytes=megabytes * 1e6)
    handoff = hand_over([piece], WIRE, layers=10, overlap=overlap)
    assert handoff.exposed_s == pytest.approx(exposed_s)


def test_the_commit_is_no_time_of_the_link() -> None:
    piece = Piece(start_s=0.0, end_s=10.0, bytes=1e6)
    assert hand_over([piece], WIRE, layers=10).wire_end_s == pytest.approx(10.1)


def test_every_frame_begun_costs_its_handling() -> None:
    wire = Wire(bytes_per_s=FRAME_BYTES, message_s=0.25)
    assert wire.seconds(2.5 * FRAME_BYTES) == pytest.approx(2.5 + 3 * 0.25)
