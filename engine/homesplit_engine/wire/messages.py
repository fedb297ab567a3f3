"""Every message between router and worker, and between two workers: typed and versioned.

Each is one msgpack frame (`encode`/`decode_*`); raw tensor frames may follow a hand-off
header. Nothing is ever pickled. A message that does not decode is a protocol error.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from homesplit_engine.records import KvWire, StepEvent, TransferEvent, WorkerStatus

WIRE_VERSION = 3
MAX_MESSAGE_BYTES = 8 * 2**20
"""Largest control message that is decoded."""
MAX_FRAME_BYTES = 64 * 2**20
"""Largest tensor frame a hand-off may send; longer ranges are cut into several."""


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How tokens are chosen. Temperature 0 is greedy.

    Sampling draws from a generator seeded by (seed, index of the output token), so the
    text does not depend on batch, mode, or a move to another box.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class HandoffSecret(Struct, frozen=True, kw_only=True):
    """What lets one box hand one request over; it travels over the routers' CURVE sockets only."""

    password: str
    """Opens the receiving worker's door; the same until that worker is started again."""
    seal_key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """Seals the messages of this hand-off and of no other: random bytes."""

    def __repr__(self) -> str:
        return "HandoffSecret(...)"


class HandoffTarget(Struct, frozen=True, kw_only=True):
    """Where a prefill worker sends the KV of one request, as the decode worker reserved it."""

    reservation_id: str
    box: str
    endpoint: str
    secret: HandoffSecret
    fingerprint: str
    cached_tokens: int
    """Leading prompt tokens the decode box already holds; only the rest is sent."""
    kv_wire: KvWire = "same"
    """What the KV is sent as; with a loss unless `same`."""


# ------------------------------------------------------------------ router -> worker


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """The router's first message; answered by `Ready`."""

    wire_version: int = WIRE_VERSION


class Submit(Struct, frozen=True, kw_only=True, tag="submit"):
    """Read this prompt and write the answer, or read it and hand it over.

    `token_ids` are the prompt plus any output tokens already given out (a resumed request);
    `prompt_tokens` says how many of them are the prompt. `chunk_tokens` None means whole
    prefill. With `handoff`, or where that follows, the worker samples the first token, tells it,
    and hands over.
    """

    request_id: str
    token_ids: list[int]
    prompt_tokens: int
    sampling: SamplingParams
    chunk_tokens: int | None
    deadline_s: float
    """Seconds from receipt of this message until the request is given up."""
    handoff: HandoffTarget | None = None
    handoff_follows: bool = False
    """The target of its hand-off comes in a `SendTo`; the KV is kept here until then."""


class SendTo(Struct, frozen=True, kw_only=True, tag="send_to"):
    """Where a request's KV goes whose Submit said that this follows; unknown ids are fine."""

    request_id: str
    target: HandoffTarget


class Reserve(Struct, frozen=True, kw_only=True, tag="reserve"):
    """Keep room for a request that a peer will hand over; answered by Reserved or Refused."""

    request_id: str
    token_ids: list[int]
    prompt_tokens: int
    sampling: SamplingParams
    deadline_s: float
    from_box: str
    kv_wire: KvWire = "same"
    """What the peer will send the KV as."""


class Cancel(Struct, frozen=True, kw_only=True, tag="cancel"):
    """Forget a request and free its blocks, wherever it is; unknown ids are fine."""

    request_id: str


class Ping(Struct, frozen=True, kw_only=True, tag="ping"):
    """Answered by `Pong` at once: liveness, clock offset and status."""

    ping_id: int


class Stop(Struct, frozen=True, kw_only=True, tag="stop"):
    """End the worker's process in good order."""


# ------------------------------------------------------------------ worker -> router


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """Who the worker is and what it holds."""

    box: str
    wire_version: int
    fingerprint: str
    fingerprint_fields: dict[str, str]
    """Name to value (or short hash) of everything that goes into the fingerprint."""
    model: str
    max_context: int
    block_tokens: int
    blocks_total: int
    kv_bytes_per_token: int
    kv_endpoint: str
    public_key: str
    device: str
    dtype: str
    eos_token_ids: tuple[int, ...]
    kv_wire_bytes_per_token: dict[str, int] = {}
    """What one token's KV takes on the wire, by how it is sent."""

    @property
    def holds_tokens(self) -> int:
        """The most tokens of one prompt and answer: its context, or all of its KV blocks."""
        return min(self.max_context, self.blocks_total * self.block_tokens)

    def handoff_bytes_per_token(self, kv_wire: KvWire) -> int:
        """Bytes that a hand-off sends for each token."""
        return self.kv_wire_bytes_per_token.get(kv_wire, self.kv_bytes_per_token)


class Reserved(Struct, frozen=True, kw_only=True, tag="reserved"):
    """Room is kept. `cached_tokens` prompt tokens need not be sent."""

    request_id: str
    reservation_id: str
    cached_tokens: int
    secret: HandoffSecret


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    """A Submit or Reserve was not taken; nothing is held for it."""

    request_id: str
    kind: Literal["full", "too_long", "fingerprint", "deadline", "bad_request"]
    what: str
    retry_after_s: float | None = None


class Token(Struct, frozen=True, kw_only=True):
    """One output token. `index` counts from 0 over the whole answer, also after a move."""

    request_id: str
    index: int
    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class Finished(Struct, frozen=True, kw_only=True):
    """A request has ended in good order: `stop` (end token) or `length`."""

    request_id: str
    reason: Literal["stop", "length"]


class PrefillDone(Struct, frozen=True, kw_only=True):
    """A prompt has been read: waiting and computing seconds on that worker."""

    request_id: str
    queue_s: float
    prefill_s: float
    cached_tokens: int


class StepReport(Struct, frozen=True, kw_only=True, tag="step"):
    """What one engine step did: its event and the tokens it made, in one message."""

    event: StepEvent
    tokens: tuple[Token, ...] = ()
    prefilled: tuple[PrefillDone, ...] = ()
    finished: tuple[Finished, ...] = ()


class HandoffReport(Struct, frozen=True, kw_only=True, tag="handoff"):
    """The sender's view of an ended hand-off; `event.committed` says how it ended."""

    event: TransferEvent
    why: str | None = None
    """Why it was not committed, None when it was."""


class Committed(Struct, frozen=True, kw_only=True, tag="committed"):
    """The decode worker holds the whole KV of the request and has queued it for decoding."""

    request_id: str
    bytes: int
    tokens: int


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """A request can't go on here; its blocks are free again."""

    request_id: str
    kind: Literal["handoff", "deadline", "engine", "numeric", "out_of_blocks"]
    what: str


class Pong(Struct, frozen=True, kw_only=True, tag="pong"):
    """Answer to a Ping."""

    ping_id: int
    status: WorkerStatus


ToWorker = Hello | Submit | SendTo | Reserve | Cancel | Ping | Stop
ToRouter = Ready | Reserved | Refused | StepReport | HandoffReport | Committed | Failed | Pong

# ------------------------------------------------------------------ worker -> worker
#
# A KV message goes as [Envelope, sealed message] or [Envelope, sealed Chunk, sealed frame], its
# answer as [Envelope, sealed Ack] or [Gone]. `wire/seal.py` seals.


class Envelope(Struct, frozen=True, kw_only=True, tag="env"):
    """The clear part of a sealed message: which hand-off, and which of its messages."""

    reservation_id: str
    number: int
    """Counts the sender's messages of this hand-off from 0; an answer bears that of its message."""
    asks: bool = False
    """The sender wants to be told when the reservation is not held."""


class Gone(Struct, frozen=True, kw_only=True, tag="gone"):
    """The reservation is not held here (cancelled, expired, or another box's): clear, for there
    is no key to seal it with. Whoever forges it can do no more than who cuts the connection."""

    reservation_id: str


class Open(Struct, frozen=True, kw_only=True, tag="open"):
    """Announces the KV of one request: layout, range and who sends it."""

    wire_version: int
    reservation_id: str
    request_id: str
    from_box: str
    fingerprint: str
    layers: int
    from_token: int
    prompt_tokens: int
    dtype: str
    """Dtype on the wire: `same` as the cache's, `fp16`, or `int8` with a scale per token and
    head. Anything else is refused."""


class Chunk(Struct, frozen=True, kw_only=True, tag="chunk"):
    """Header of one tensor frame: K and V of `tokens` tokens of `layers` layers from `layer` on."""

    reservation_id: str
    sequence: int
    """Counts every chunk of this hand-off from 0."""
    layer: int
    from_token: int
    tokens: int
    bytes: int
    layers: int = 1
    """Small chunks send several layers in one frame, one layer behind the other."""


class Close(Struct, frozen=True, kw_only=True, tag="close"):
    """All chunks are sent: the receiver checks that every (layer, range) is there, then commits."""

    reservation_id: str
    chunks: int
    bytes: int
    first_token: Token


class Abort(Struct, frozen=True, kw_only=True, tag="abort"):
    """The sender gives up; the receiver frees the reservation."""

    reservation_id: str
    why: str


class Ack(Struct, frozen=True, kw_only=True, tag="ack"):
    """Receiver to sender: committed, or refused with the reason (then nothing is kept)."""

    reservation_id: str
    committed: bool
    why: str | None = None


KvMessage = Open | Chunk | Close | Abort
KvReply = Ack
KvHead = Envelope | Gone


class ProtocolError(Exception):
    """A message that is malformed, oversized or of another wire version."""


_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_router: msgspec.msgpack.Decoder[ToRouter] = msgspec.msgpack.Decoder(ToRouter)
_kv_message: msgspec.msgpack.Decoder[KvMessage] = msgspec.msgpack.Decoder(KvMessage)
_kv_reply: msgspec.msgpack.Decoder[KvReply] = msgspec.msgpack.Decoder(KvReply)
_kv_head: msgspec.msgpack.Decoder[KvHead] = msgspec.msgpack.Decoder(KvHead)

Raw = bytes | bytearray | memoryview


def encode(message: ToWorker | ToRouter | KvMessage | KvReply | KvHead) -> bytes:
    """One message as msgpack bytes."""
    return _encoder.encode(message)


def _checked(raw: Raw) -> Raw:
    if len(raw) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(raw)} bytes is over the limit {MAX_MESSAGE_BYTES}")
    return raw


def decode_to_worker(raw: Raw) -> ToWorker:
    """A router's message; raises ProtocolError."""
    try:
        return _to_worker.decode(_checked(raw))
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error


def decode_to_router(raw: Raw) -> ToRouter:
    """A worker's message; raises ProtocolError."""
    try:
        return _to_router.decode(_checked(raw))
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error


def decode_kv_message(raw: Raw) -> KvMessage:
    """A sending worker's message; raises ProtocolError."""
    try:
        return _kv_message.decode(_checked(raw))
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error


def decode_kv_reply(raw: Raw) -> KvReply:
    """A receiving worker's answer; raises ProtocolError."""
    try:
        return _kv_reply.decode(_checked(raw))
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error


def decode_kv_head(raw: Raw) -> KvHead:
    """The clear first part of a message between two workers; raises ProtocolError."""
    try:
        return _kv_head.decode(_checked(raw))
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error
