"""What is to be answered, one placement of it, and what workers say about that."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec
from msgspec import Struct

from homesplit_engine.policy import Decision
from homesplit_engine.records import ModeSetting, Sending
from homesplit_engine.router.handover import Handover
from homesplit_engine.wire.messages import (
    Committed,
    Failed,
    HandoffReport,
    HandoffTarget,
    PrefillDone,
    Refused,
    Reserve,
    Reserved,
    SamplingParams,
    Submit,
    Token,
)


class Order(Struct, frozen=True, kw_only=True):
    """What is to be answered."""

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    setting: ModeSetting
    received_s: float
    """Receipt of the whole request, on the router's monotonic clock."""
    deadline_s: float
    """When it is given up, on the same clock."""
    tokenise_s: float | None
    wall_time: str
    prefix: Sequence[int] = ()
    """Chained hashes of the prompt, for the guess at what is cached where."""
    internal: bool = False
    """The router's own health check: not recorded."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that end the answer."""
    prompt_field: str = "prompt"
    """What the client calls its prompt: a refusal names it."""

    @property
    def longest(self) -> int:
        """The most tokens that prompt and answer may have: both ends of a hand-off hold as many."""
        return len(self.token_ids) + self.sampling.max_tokens


def with_tokens(sampling: SamplingParams, max_tokens: int, seed: int) -> SamplingParams:
    """The sampling parameters with the answer's length and this choice's seed."""
    return msgspec.structs.replace(sampling, max_tokens=max_tokens, seed=seed)


class Stage(Enum):
    """Where an attempt stands."""

    RESERVING = "reserving"
    """Nothing is read before the decode box has kept room: it is known to be full."""
    READING = "reading"
    HANDING_OVER = "handing over"
    WRITING = "writing"


class BoxLost(Struct, frozen=True):
    """A box that stopped answering, told to the flights that were on it."""

    why: str


class Cancelled(Struct, frozen=True):
    """Someone other than the client ended this request."""


class Stopping(Struct, frozen=True):
    """The router is told to end: what is under way here can't go on."""


class GivenToken(Struct, frozen=True):
    """A token, and the answer's finish reason when the worker ended it with this token."""

    token: Token | None
    finish: str | None


Item = (
    Reserved
    | Refused
    | PrefillDone
    | GivenToken
    | HandoffReport
    | Committed
    | Failed
    | Sending
    | BoxLost
    | Cancelled
    | Stopping
)


class Attempt:
    """One placement of a flight: what was decided and how far it came."""

    def __init__(self, wire_id: str, decision: Decision, first_index: int, unread: int) -> None:
        self.wire_id = wire_id
        self.decision = decision
        self.stage = Stage.READING
        self.first_index = first_index
        self.unread_tokens = unread
        self.early: dict[int, GivenToken] = {}
        """Tokens that came before an earlier one, by index."""
        self.finish: str | None = None
        """The finish reason told while tokens were still missing."""
        self.handover: Handover | None = None
        """How its hand-off comes along, once its sender told or the first token came."""
        self.limit_s: float | None = None
        """When the present stage is given up, on the monotonic clock; None never."""
        self.room_by_s: float | None = None
        """When the decode box must have kept room; None once it has, or where none is wanted."""

    @property
    def boxes(self) -> tuple[str, ...]:
        """The boxes that hold something for it."""
        return tuple(dict.fromkeys((self.decision.prefill_box, self.decision.decode_box)))

    def needs(self, box: str) -> bool:
        """Whether losing `box` now loses the attempt."""
        if self.stage is Stage.WRITING:
            return box == self.decision.decode_box
        return box in self.boxes


def reserve_of(order: Order, attempt: Attempt, tokens: list[int], left_s: float) -> Reserve:
    """Asks the decode box to keep room; `tokens` are those given so far."""
    return Reserve(
        request_id=attempt.wire_id,
        token_ids=order.token_ids + tokens,
        prompt_tokens=len(order.token_ids),
        sampling=order.sampling,
        deadline_s=left_s,
        from_box=attempt.decision.prefill_box,
        kv_wire=order.setting.kv_wire,
    )


def submit_of(
    order: Order,
    attempt: Attempt,
    tokens: list[int],
    left_s: float,
    handoff: HandoffTarget | None,
) -> Submit:
    """Asks a box to read, and to write or hand over; `tokens` are those given so far.

    Of a split without `handoff` the box is told later where it goes.
    """
    return Submit(
        request_id=attempt.wire_id,
        token_ids=order.token_ids + tokens,
        prompt_tokens=len(order.token_ids),
        sampling=order.sampling,
        chunk_tokens=attempt.decision.chunk_tokens,
        deadline_s=left_s,
        handoff=handoff,
        handoff_follows=attempt.decision.kind == "split" and handoff is None,
    )
