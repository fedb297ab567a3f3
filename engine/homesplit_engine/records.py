"""The plain records that the engine tells and everything else reads; no torch here."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Mode = Literal["colocated", "replica", "split", "auto"]
PrefillStyle = Literal["whole", "chunked"]
KvWire = Literal["same", "fp16", "int8"]
TTFT_TARGET_HEADER = "x-ttft-target-s"
"""HTTP header in which a request names a TTFT target of its own, seconds."""

KV_WIRES: tuple[KvWire, ...] = ("same", "fp16", "int8")
Outcome = Literal["completed", "failed", "rejected", "cancelled"]
MODES: tuple[Mode, ...] = ("colocated", "replica", "split", "auto")


class ModeSetting(Struct, frozen=True, kw_only=True):
    """The routing policy in force. A mode is nothing more than this."""

    mode: Mode = "colocated"
    prefill: PrefillStyle = "chunked"
    chunk_tokens: int = 256
    prefill_box: str | None = None
    """`split`: who reads prompts. `colocated`: ignored."""
    decode_box: str | None = None
    """`split`: who writes answers. `colocated`: the one box that serves."""
    kv_wire: KvWire = "same"
    """What a hand-off sends the KV as: as it is cached, or smaller and with a loss."""


class RequestRecord(Struct, frozen=True, kw_only=True):
    """What happened to one request, as the router saw it.

    Durations are seconds; `received_s` and `token_s` are seconds on the router's
    monotonic clock; a part that did not happen is None, never 0.
    """

    request_id: str
    mode: Mode
    """The mode in force when the request came."""
    served: str
    """How it was really served: `colocated` (one box did both), `split`, `resumed`, `none`."""
    prefill: PrefillStyle
    prefill_box: str | None
    decode_box: str | None
    why: str
    """The policy's reason, in words with numbers."""
    outcome: Outcome
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Prompt tokens whose KV was there already (prefix cache)."""
    received_s: float
    token_s: tuple[float, ...] = ()
    """When each output token left the router, in order."""
    tokenise_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    handoff_s: float | None = None
    """First KV byte sent to commit acknowledged."""
    handoff_exposed_s: float | None = None
    """The part of the hand-off after prefill had ended, what it waited for room with it."""
    handoff_bytes: int | None = None
    """KV payload bytes that went over the wire."""
    handoff_tokens: int | None = None
    first_decode_s: float | None = None
    resubmitted: int = 0
    """How often the request was moved to another box after a failure."""
    wall_time: str | None = None
    """UTC, ISO 8601, when it was received."""


class PrefillSlice(Struct, frozen=True, kw_only=True):
    """A piece of one prompt that one step computes: tokens [start, start + tokens)."""

    request_id: str
    start: int
    tokens: int
    last: bool = False
    """Whether the prompt is whole after this piece, so that a token is sampled."""


class StepEvent(Struct, frozen=True, kw_only=True):
    """One step of one box's engine, on that box's monotonic clock."""

    box: str
    step: int
    start_s: float
    end_s: float
    decode: tuple[str, ...] = ()
    """Ids of the requests that got one token."""
    prefill: tuple[PrefillSlice, ...] = ()
    context_tokens: int = 0
    """Total cached tokens that the decoding requests attend to."""
    running: int = 0
    waiting: int = 0
    blocks_free: int = 0
    blocks_total: int = 0


class TransferEvent(Struct, frozen=True, kw_only=True):
    """One hand-off as the sending box saw it, on the sender's monotonic clock."""

    box_from: str
    box_to: str
    request_id: str
    start_s: float
    end_s: float
    bytes: int
    tokens: int
    exposed_s: float
    committed: bool = True


class LinkSeen(Struct, frozen=True, kw_only=True):
    """What a box's kernel says of its connection to a peer, since that was made."""

    peer: str
    """A box, or `router`."""
    sent: int
    """Segments with data, those sent again included."""
    resent: int
    rtt_s: float
    """There and back, smoothed."""


class Sending(Struct, frozen=True, kw_only=True):
    """A hand-off under way, as its sender sees it."""

    request_id: str
    left_bytes: int
    """Payload that the peer's kernel has not acknowledged yet (where ours tells that)."""
    ahead_bytes: int = 0
    """Payload of others to the same peer that goes before it and was not sent yet."""


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """A worker's state now, on that box's monotonic clock."""

    box: str
    clock_s: float
    running: int
    waiting: int
    reserved: int
    blocks_free: int
    blocks_total: int
    prefix_blocks: int = 0
    """Free blocks that still hold a reusable prefix."""
    power_w: float | None = None
    power_why: str | None = None
    """Why there is no power figure, None when there is one."""
    rss_bytes: int | None = None
    others_cores: float | None = None
    """Cores that other programs take on the box."""
    others_why: str | None = None
    """Why it isn't known, None when it is."""
    wall_s: float | None = None
    """The box's wall clock, read together with `clock_s`."""
    disk_free_bytes: int | None = None
    """Where the worker writes."""
    disk_hangs_s: float | None = None
    """For how long that disk has not said so; None while it answers."""
    block_shortages: int = 0
    """How often, since its start, a request had to wait or give way for want of KV blocks."""
    links: tuple[LinkSeen, ...] = ()
    sending: tuple[Sending, ...] = ()


class Fault(Struct, frozen=True, kw_only=True):
    """Something that went wrong and was survived or not, as a sentence."""

    at_s: float
    """On the router's monotonic clock."""
    box: str | None
    kind: str
    sentence: str


class ModeSwitch(Struct, frozen=True, kw_only=True):
    """The policy was changed while serving."""

    at_s: float
    """On the router's monotonic clock."""
    setting: ModeSetting
    took_s: float
