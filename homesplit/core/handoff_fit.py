"""Fits what a hand-off takes beside its bytes to the engine's own hand-offs between two boxes."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import StepEvent, TransferEvent
from msgspec import Struct

from homesplit.core.handoff import Piece, Wire, hand_over

LEAST_HANDOFFS = 4


class HandoffFit(Struct, frozen=True, kw_only=True):
    """What the hand-offs from one box to another took, beside what their bytes take on the link.

    `spread_s` is the median distance of a single hand-off from `commit_s`.
    """

    sender: str
    receiver: str
    commit_s: float
    spread_s: float
    handoffs: int
    sender_key: str | None = None
    receiver_key: str | None = None
    at: str = ""
    """UTC, ISO 8601."""


class HandoffsOf(Struct, frozen=True, kw_only=True):
    """Whose hand-offs are fitted, and what is known of them beforehand."""

    sender: str
    receiver: str
    wire: Wire
    """The link as measured; its own `commit_s` is what the fit replaces."""
    layers: int
    sender_key: str | None = None
    receiver_key: str | None = None
    at: str = ""


def fit_handoffs(
    transfers: Sequence[TransferEvent], steps: Sequence[StepEvent], *, of: HandoffsOf
) -> HandoffFit | None:
    """The median of what hand-offs took after their prompt beyond their bytes on the link.

    `transfers` and `steps` are on one clock. None with fewer than `LEAST_HANDOFFS` whole ones.
    """
    wire = Wire(
        bytes_per_s=of.wire.bytes_per_s,
        round_trip_s=of.wire.round_trip_s,
        message_s=of.wire.message_s,
        commit_s=0.0,
    )
    own = [t for t in transfers if (t.box_from, t.box_to) == (of.sender, of.receiver)]
    found: list[float] = []
    free_s = 0.0
    for transfer in sorted((t for t in own if t.committed), key=_start):
        pieces = _pieces(transfer, steps)
        if not pieces:
            continue
        expected = hand_over(pieces, wire, layers=of.layers, free_s=free_s)
        free_s = expected.wire_end_s
        found.append(max(0.0, transfer.exposed_s - expected.exposed_s))
    if len(found) < LEAST_HANDOFFS:
        return None
    commit_s = _median(found)
    return HandoffFit(
        sender=of.sender,
        receiver=of.receiver,
        commit_s=commit_s,
        spread_s=_median([abs(value - commit_s) for value in found]),
        handoffs=len(found),
        sender_key=of.sender_key,
        receiver_key=of.receiver_key,
        at=of.at,
    )


def _start(transfer: TransferEvent) -> float:
    return transfer.start_s


def _pieces(transfer: TransferEvent, steps: Sequence[StepEvent]) -> list[Piece]:
    """What the sender read for this request, with the bytes shared out by tokens."""
    read = [
        (step, piece.tokens)
        for step in steps
        if step.box == transfer.box_from
        for piece in step.prefill
        if piece.request_id == transfer.request_id
    ]
    total = sum(tokens for _, tokens in read)
    return [
        Piece(start_s=step.start_s, end_s=step.end_s, bytes=transfer.bytes * tokens / total)
        for step, tokens in read
    ]


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2.0
