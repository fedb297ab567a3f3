"""Request ids to wire ids and back: each placement of a request has an id of its own.

A wire id is never used twice, not even by a router that was started again: what a worker still
says of an earlier placement must not be taken for word of a later one, and a worker may hold an
id for a moment after it was told to forget it.
"""

from __future__ import annotations

import itertools
import secrets

import msgspec

from homesplit_engine.records import StepEvent, TransferEvent

_RUN = secrets.token_hex(4)
_numbers = itertools.count()


def new_wire_id(request_id: str) -> str:
    """An id under which workers know one placement of a request; request ids have no `+`."""
    return f"{request_id}+{_RUN}.{next(_numbers)}"


def request_id_of(wire_id: str) -> str:
    """The request id behind a wire id."""
    return wire_id.partition("+")[0]


def plain_step(event: StepEvent) -> StepEvent:
    """The step with request ids in place of wire ids."""
    return msgspec.structs.replace(
        event,
        decode=tuple(map(request_id_of, event.decode)),
        prefill=tuple(
            msgspec.structs.replace(piece, request_id=request_id_of(piece.request_id))
            for piece in event.prefill
        ),
    )


def plain_transfer(event: TransferEvent) -> TransferEvent:
    """The hand-off with its request id in place of the wire id."""
    return msgspec.structs.replace(event, request_id=request_id_of(event.request_id))
