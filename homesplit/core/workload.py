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
    """Pause of a user between an answer and the next question; drawn around this mean."""
    pattern: Literal["steady", "on_off", "ramp"] = "steady"
    """How the open-loop rate runs over time; `rate_requests_per_s` is the rate while on."""
    on_s: float = 10.0
    off_s: float = 10.0
    ramp_to_requests_per_s: float | None = None
    """`ramp`: the rate at the end of the run."""


class Workload(Struct, frozen=True, kw_only=True):
    """A named load: classes of lengths, arrivals, sharing, targets."""

    name: str
    classes: tuple[LengthClass, ...]
    arrivals: Arrivals = field(default_factory=Arrivals)
    targets: Targets = field(default_factory=Targets)
    shared_prefix_tokens: int = 0
    shared_prefix_groups: int = 1
    """How many different shared prefixes there are; each request belongs to one."""
    turns: int = 1
    """Questions of one conversation; each repeats all that was said before it."""
    turn_think_s: float = 2.0
    cancel_share: float = 0.0
    """Share of the requests whose user gives up and closes the connection."""
    cancel_after_s: float = 1.0
    """Mean patience of those users, counted from sending."""
    description: str = ""
    source: str = ""
