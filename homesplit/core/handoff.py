"""How long the KV of a prompt takes over a link, and how much of that anyone waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from homesplit_engine.handoff.frames import FRAME_BYTES
from msgspec import Struct

COMMIT_S = 6e-3
"""Taken where no hand-off between the two boxes was timed (`HandoffFit`): exposed less the last
layer's wire time, on two busy cores (`tests/bench/results/handoff.md`)."""

SEND_BYTE_S = 2.4e-9
"""Processor time that the sender takes for each byte (`tests/bench/results/handoff.md`); a box that
computes on its processor takes it from its reading."""


OPEN_BYTE_S = 1.4e-9
"""Processor time that the receiver takes for each byte that it takes in, opens and puts in place
(`tests/bench/results/handoff.md`), where no hand-off told it."""
MOST_OPENING = 0.9
"""Opening leaves at least a tenth of the receiver's processor to its steps."""


class Wire(Struct, frozen=True, kw_only=True):
    """One direction of a link as the hand-off sees it."""

    bytes_per_s: float
    """Payload, as measured through the hand-off's own kind of socket."""
    round_trip_s: float = 0.0
    message_s: float = 2e-4
    """What one frame adds beside its bytes: at 1 Gbit/s the hand-off kept 0.95 of plain TCP's
    rate, which is 0.2 ms for each frame (`tests/bench/results/handoff.md`)."""
    commit_s: float = COMMIT_S
    """From the last layer's leaving the wire to the commit, beside the round trip: sealing, opening
    and copy of the last frame at both ends, then the close and its answer."""

    reserve_s: float = 0.0
    """What a reservation takes beside the round trip: one more message that the decode box and the
    router must come to. The prompt is read meanwhile; its KV leaves once it is known where to."""
    sending: float = 1.0
    """How many times as long the sender takes to read what is being sent: its processor seals and
    sends as well."""
    opening_byte_s: float = 0.0
    """Seconds of the receiver's computing that each byte takes: its processor opens what comes."""

    def opening(self, bytes_per_s: float) -> float:
        """The share of the receiver's computing that so many bytes a second take."""
        return min(MOST_OPENING, self.opening_byte_s * min(bytes_per_s, self.bytes_per_s))

    @property
    def reserving_s(self) -> float:
        """From the router's asking for room on the decode box to the prefill box's knowing it."""
        return self.round_trip_s + self.reserve_s

    def seconds(self, count: float) -> float:
        """Sending `count` bytes with nothing else on the link."""
        frames = math.ceil(count / FRAME_BYTES)
        return count / self.bytes_per_s + frames * self.message_s


class Piece(Struct, frozen=True, kw_only=True):
    """KV that one step makes: layer by layer between `start_s` and `end_s`."""

    start_s: float
    end_s: float
    bytes: float


class Handoff(Struct, frozen=True, kw_only=True):
    """One prompt's hand-off.

    `total_s` is from the first byte sent to the commit; `exposed_s` the part of it after
    the prompt was read, which the second token waits for.
    """

    bytes: float
    begin_s: float
    wire_end_s: float
    """When the link is free again."""
    commit_s: float
    """When the decode box may go on."""
    prefill_end_s: float

    @property
    def total_s(self) -> float:
        """First byte to commit."""
        return self.commit_s - self.begin_s

    @property
    def exposed_s(self) -> float:
        """End of prefill to commit."""
        return max(0.0, self.commit_s - self.prefill_end_s)


def hand_over(
    pieces: Sequence[Piece], wire: Wire, *, layers: int, free_s: float = 0.0, overlap: bool = True
) -> Handoff:
    """Send `pieces` in order over a link that is free from `free_s` on.

    With overlap a layer leaves as soon as it is computed; the last layer of the last piece
    can't leave before that piece ends. Without, everything leaves after the last piece.
    """
    last_s = pieces[-1].end_s
    begin_s: float | None = None
    at_s, size, spent_s = free_s, -1.0, 0.0
    for piece in pieces:
        if piece.bytes != size:
            # Most pieces are as large as the one before.
            size = piece.bytes
            spent_s = wire.seconds(size)
        first_layer_s = piece.start_s + (piece.end_s - piece.start_s) / layers
        start_s = max(at_s, first_layer_s if overlap else last_s)
        at_s = start_s + spent_s
        if overlap:
            at_s = max(at_s, piece.end_s + spent_s / layers)
        begin_s = start_s if begin_s is None else begin_s
    return Handoff(
        bytes=sum(piece.bytes for piece in pieces),
        begin_s=last_s if begin_s is None else begin_s,
        wire_end_s=at_s,
        commit_s=at_s + wire.commit_s + wire.round_trip_s / 2.0,
        prefill_end_s=last_s,
    )
