"""Wire ids back to request ids: each later placement of a request has an id of its own."""

from __future__ import annotations

import msgspec

from homesplit_engine.records import StepEvent, TransferEvent


def wire_id_of(request_id: str, attempt: int) -> str:
    """The id under which workers know one placement of a request, counted from 0."""
    return request_id + (f"+{attempt}" if attempt else "")


def _request_id(wire_id: str) -> str:
    """The request id behind a wire id: later attempts carry `+n`."""
    return wire_id.partition("+")[0]


def plain_step(event: StepEvent) -> StepEvent:
    """The step with request ids in place of wire ids."""
    if not any("+" in wire_id for wire_id in event.decode) and not any(
        "+" in piece.request_id for piece in event.prefill
    ):
        return event
    return msgspec.structs.replace(
        event,
        decode=tuple(_request_id(wire_id) for wire_id in event.decode),
        prefill=tuple(
            msgspec.structs.replace(piece, request_id=_request_id(piece.request_id))
            for piece in event.prefill
        ),
    )


def plain_transfer(event: TransferEvent) -> TransferEvent:
    """The hand-off with its request id in place of the wire id."""
    return msgspec.structs.replace(event, request_id=_request_id(event.request_id))
