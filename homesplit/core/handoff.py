"""How long the KV of a prompt takes over a link, and how much of that anyone waits for."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

MESSAGE_BYTES = 4 * 1024 * 1024
"""The hand-off's messages are a few MiB: more small ones cost rate, one large one memory."""


class Wire(Struct, frozen=True, kw_only=True):
    """One direction of a link as the hand-off sees it."""

    bytes_per_s: float
    """Payload, as measured through the hand-off's own kind of socket."""
    round_trip_s: float = 0.0
    message_s: float = 2e-4
    """Handling of one message at both ends, beside its bytes."""

    def seconds(self, count: float) -> float:
        """Sending `count` bytes with nothing else on the link."""
        messages = math.ceil(count / MESSAGE_BYTES)
        return count / self.bytes_per_s + messages * self.message_s


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
    at_s = free_s
    for piece in pieces:
        spent_s = wire.seconds(piece.bytes)
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
        commit_s=at_s + wire.round_trip_s / 2.0,
        prefill_end_s=last_s,
    )
