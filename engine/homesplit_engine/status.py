"""What the router answers about itself; the one type for both ends of `/homesplit/status`."""

from __future__ import annotations

from msgspec import Struct

from homesplit_engine.records import Fault, ModeSetting, WorkerStatus
from homesplit_engine.wire.messages import Ready


class Targets(Struct, frozen=True, kw_only=True):
    """The latency targets that attainment and stalls are judged by; None is no target."""

    ttft_s: float | None
    tpot_s: float | None


class RequestCounts(Struct, frozen=True, kw_only=True):
    """Requests in the router now: writing an answer, and before their first token."""

    running: int
    waiting: int


class WorkerSeen(Struct, frozen=True, kw_only=True):
    """One worker as the router sees it."""

    box: str
    alive: bool
    """It answers."""
    usable: bool
    """It answers and holds the same model as the others in use."""
    why: str | None = None
    """Why it is not usable, None when it is."""
    ready: Ready | None = None
    status: WorkerStatus | None = None
    clock_offset_s: float | None = None
    """Add it to the box's monotonic clock to get the router's; None before the first ping."""
    clock_error_s: float | None = None
    """Half the shortest round trip seen: the offset is no better than this."""
    prefill_tokens_per_s: float | None = None
    decode_step_s: float | None = None


class RouterStatus(Struct, frozen=True, kw_only=True):
    """Everything that is known now."""

    model: str
    model_name: str
    fingerprint: str | None
    setting: ModeSetting
    loopback: bool
    targets: Targets
    workers: tuple[WorkerSeen, ...]
    requests: RequestCounts
    clock_s: float
    """The router's monotonic clock now."""
    faults: tuple[Fault, ...] = ()
    """Those that last."""
