"""What people will ask of the boxes, and what they expect."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field, structs


class Targets(Struct, frozen=True, kw_only=True):
    """Latency targets, seconds; None means the user does not care about that one."""

    ttft_s: float | None = 1.0
    tpot_s: float | None = 0.1


class LengthClass(Struct, frozen=True, kw_only=True):
    """One class of requests: `share` of all, with its prompt and answer tokens.

    Lengths are drawn uniformly from [low, high] and apart from each other; a fixed length has
    low == high. With `pairs` a prompt and its answer are drawn together, by weight.
    """

    name: str
    share: float
    prompt_tokens_low: int
    prompt_tokens_high: int
    output_tokens_low: int
    output_tokens_high: int
    pairs: tuple[tuple[int, int, float], ...] = ()
    """(prompt tokens, output tokens, weight); all within the low and high above."""

    @property
    def mean_prompt_tokens(self) -> float:
        """The mean of the prompts that will be drawn."""
        if self.pairs:
            return sum(p * w for p, _, w in self.pairs) / sum(w for _, _, w in self.pairs)
        return (self.prompt_tokens_low + self.prompt_tokens_high) / 2

    @property
    def mean_output_tokens(self) -> float:
        """The mean of the answers that will be drawn."""
        if self.pairs:
            return sum(o * w for _, o, w in self.pairs) / sum(w for _, _, w in self.pairs)
        return (self.output_tokens_low + self.output_tokens_high) / 2

    def scaled(self, *, prompts: float = 1.0, outputs: float = 1.0) -> LengthClass:
        """The same class with lengths so many times as long, 1 token at the least."""

        def longer(tokens: int, factor: float) -> int:
            return max(1, round(tokens * factor))

        return structs.replace(
            self,
            prompt_tokens_low=longer(self.prompt_tokens_low, prompts),
            prompt_tokens_high=longer(self.prompt_tokens_high, prompts),
            output_tokens_low=longer(self.output_tokens_low, outputs),
            output_tokens_high=longer(self.output_tokens_high, outputs),
            pairs=tuple((longer(p, prompts), longer(o, outputs), w) for p, o, w in self.pairs),
        )


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

    @property
    def mean_rate_requests_per_s(self) -> float | None:
        """`rate_requests_per_s`, of bursts spread over the time without them too."""
        rate = self.rate_requests_per_s
        if rate is None or self.pattern != "on_off":
            return rate
        return rate * self.on_s / (self.on_s + self.off_s)


class Workload(Struct, frozen=True, kw_only=True):
    """A named load: classes of lengths, arrivals, sharing, targets."""

    name: str
    classes: tuple[LengthClass, ...]
    arrivals: Arrivals = field(default_factory=Arrivals)
    targets: Targets = field(default_factory=Targets)
    shared_prefix_tokens: int = 0
    """A part of each first prompt, its beginning, and not on top of it."""
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
    speed: float | None = None
    """Of a replay: how many times as fast as it was recorded."""

    def first_prompt_tokens(self, drawn: int) -> int:
        """Tokens of a conversation's first prompt for which a class draws `drawn`.

        At least one of them is its own.
        """
        return max(drawn, self.shared_prefix_tokens + 1)


def fixed_lengths(
    prompt_tokens: int,
    output_tokens: int,
    *,
    name: str,
    arrivals: Arrivals,
    targets: Targets | None = None,
) -> Workload:
    """A load whose requests all have the same lengths, as typed in place of a workload's name."""
    kind = LengthClass(
        name="typed",
        share=1.0,
        prompt_tokens_low=prompt_tokens,
        prompt_tokens_high=prompt_tokens,
        output_tokens_low=output_tokens,
        output_tokens_high=output_tokens,
    )
    return Workload(
        name=name,
        classes=(kind,),
        arrivals=arrivals,
        targets=targets or Targets(),
        source="typed",
    )
