"""Fits what a hand-off takes beside its bytes to the engine's own hand-offs between two boxes."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import StepEvent, TransferEvent
from msgspec import Struct

from homesplit.core.calibration import Calibration
from homesplit.core.handoff import Piece, Wire, hand_over
from homesplit.core.together import BESIDE, alone_seconds, by_start, covered, fitted_seconds

LEAST_HANDOFFS = 4
LEAST_STEPS = 6
"""Steps that were sent meanwhile; fewer tell nothing of what that takes."""
SEND_NOTICED = 0.015
"""A smaller difference is taken for none."""


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
    sending: float = 1.0
    """How many times as long the sender's steps took whose KV was being sent; 1 where no
    difference was noticed or its steps were never fitted."""
    opening_byte_s: float | None = None
    """Seconds of the receiver's computing that each byte took; None where too few steps of its own
    lay beside what came, or its steps were never fitted."""


class HandoffsOf(Struct, frozen=True, kw_only=True):
    """Whose hand-offs are fitted, and what is known of them beforehand."""

    sender: str
    receiver: str
    wire: Wire
    """The link as measured; its own `commit_s` is what the fit replaces."""
    layers: int
    fit: Calibration | None = None
    """The sender's steps without anything to send."""
    receiver_fit: Calibration | None = None
    """The receiver's steps without anything to take in."""
    sender_key: str | None = None
    receiver_key: str | None = None
    at: str = ""


def fit_handoffs(
    transfers: Sequence[TransferEvent],
    steps: Sequence[StepEvent],
    *,
    of: HandoffsOf,
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
        sending=_sending(own, steps, of),
        opening_byte_s=_opening(own, steps, of),
    )


def _sending(
    transfers: Sequence[TransferEvent], steps: Sequence[StepEvent], of: HandoffsOf
) -> float:
    """The median of what the sender's steps took over what the fit says, the other at rest."""
    if of.fit is None or of.fit.refitted:
        return 1.0
    handed = {transfer.request_id for transfer in transfers}
    sent = [
        step
        for step in steps
        if step.box == of.sender and any(p.request_id in handed for p in step.prefill)
    ]
    others = [step for step in steps if step.box != of.sender]
    ratios = [
        took_s / expected_s
        for step, took_s in zip(sent, alone_seconds(sent, others, of.fit.together), strict=True)
        if (expected_s := fitted_seconds(of.fit, step)) > 0
    ]
    if len(ratios) < LEAST_STEPS:
        return 1.0
    times = _median(ratios)
    return times if times > 1.0 + SEND_NOTICED else 1.0


def _opening(
    transfers: Sequence[TransferEvent], steps: Sequence[StepEvent], of: HandoffsOf
) -> float | None:
    """What the receiver's steps took over what the fit says while bytes came, for each byte."""
    fit = of.receiver_fit
    if fit is None or fit.refitted:
        return None
    busy = by_start((transfer.start_s, transfer.end_s) for transfer in transfers)
    own = [s for s in steps if s.box == of.receiver and s.decode and not s.prefill]
    beside = [step for step in own if covered(step, busy) >= BESIDE]
    if len(beside) < LEAST_STEPS:
        return None
    others = [step for step in steps if step.box != of.receiver]
    ratios = [
        took_s / expected_s
        for step, took_s in zip(beside, alone_seconds(beside, others, fit.together), strict=True)
        if (expected_s := fitted_seconds(fit, step)) > 0
    ]
    slower = _median(ratios) if len(ratios) >= LEAST_STEPS else 0.0
    if slower <= 0:
        return None
    length_s = sum(step.end_s - step.start_s for step in beside)
    came = sum(_came(transfer, beside) for transfer in transfers)
    return max(0.0, 1.0 - 1.0 / slower) * length_s / came if came else None


def _came(transfer: TransferEvent, steps: Sequence[StepEvent]) -> float:
    """Bytes of a hand-off that came during these steps, at an even pace."""
    length_s = transfer.end_s - transfer.start_s
    during_s = sum(
        max(0.0, min(step.end_s, transfer.end_s) - max(step.start_s, transfer.start_s))
        for step in steps
    )
    return transfer.bytes * during_s / length_s if length_s > 0 else 0.0


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
