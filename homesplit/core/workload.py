"""What people will ask of the boxes, and what they expect."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field


class Targets(Struct, frozen=True, kw_only=True):
    """Latency targets, seconds; None means the user does not care about that one."""

    ttft_s: float | None = 1.0
    tpot_s: float | None = 0.1


class LengthClass(Struct, frozen=True, kw_only=True):
    """One class of requests: `share` of all, with its prompt and answer tokens.

    Lengths are drawn uniformly from [low, high]; a fixed length has low == high.
    """

    name: str
    share: float
    prompt_tokens_low: int
    prompt_tokens_high: int
    output_tokens_low: int
    output_tokens_high: int


class Arrivals(Struct, frozen=True, kw_only=True):
    """How requests come: open loop by rate, or closed loop by number of users.

    `burstiness` is the coefficient of variation of the gaps (1 = Poisson, 0 = even).
    """

    kind: Literal["open", "closed"] = "open"
    rate_requests_per_s: float | None = None
    burstiness: float = 1.0
    users: int | None = None
    think_s: float = 0.0


class Workload(Struct, frozen=True, kw_only=True):
    """A named load: classes of lengths, arrivals, sharing, targets."""

    name: str
    classes: tuple[LengthClass, ...]
    arrivals: Arrivals = field(default_factory=Arrivals)
    targets: Targets = field(default_factory=Targets)
    shared_prefix_tokens: int = 0
    description: str = ""
    source: str = ""
