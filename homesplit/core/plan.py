"""The advice as a value: what `plan --json` prints and the Plan screen draws."""

from __future__ import annotations

from typing import Literal

from homesplit_engine.records import KvWire, Mode
from msgspec import Struct

from homesplit.core.workload import Targets

Verdict = Literal["pass", "fail", "unknown", "n/a"]


class RuleResult(Struct, frozen=True, kw_only=True):
    """One rule with its number, its threshold and what follows."""

    id: str
    verdict: Verdict
    value: float | None
    threshold: float | None
    unit: str
    sentence: str


class StallFigures(Struct, frozen=True, kw_only=True):
    """Predicted longest stall of a request, seconds, with the interval of the p90."""

    p50: float | None
    p90: float | None
    low: float | None
    high: float | None


class Spread(Struct, frozen=True, kw_only=True):
    """A predicted distribution's p50 and p90 with the interval of the p50."""

    p50: float | None
    p90: float | None
    low: float | None
    high: float | None


class MeasuredFigures(Struct, frozen=True, kw_only=True):
    """What a comparison of modes measured of one arrangement under the very load asked about."""

    offered: int
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    attainment: float | None
    goodput_requests_per_s: float | None


class ModePrediction(Struct, frozen=True, kw_only=True):
    """What one arrangement is predicted to do under the workload."""

    mode: str
    boxes: tuple[str, ...]
    prefill: str
    """`whole` or `chunked`."""
    prefill_box: str | None
    decode_box: str | None
    kv_wire: KvWire | None = None
    """As in `Recommendation`."""
    ttft_s: Spread
    tpot_s: Spread
    stall_s: StallFigures
    attainment: float | None
    goodput_requests_per_s: float | None
    capacity_requests_per_s: float | None
    goodput_per_box: float | None = None
    goodput_per_watt_hour: float | None = None
    goodput_per_price: float | None = None
    why_not: str | None = None
    """Why this arrangement can't be run at all, None when it can."""
    measured: MeasuredFigures | None = None
    """The same measured, None where it never was."""


class LedgerRow(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """Where the time of one request class goes in one mode, seconds."""

    mode: str
    class_: str
    """JSON key `class`, a keyword in Python."""
    prompt_tokens: int
    output_tokens: int
    queue_s: float
    tokenise_s: float
    prefill_s: float
    handoff_s: float
    handoff_exposed_s: float
    first_decode_s: float
    ttft_s: float
    ttst_s: float


class Flip(Struct, frozen=True, kw_only=True):
    """What would have to change for another mode to win."""

    quantity: str
    value: float
    unit: str
    mode: str
    sentence: str


class BoxBatch(Struct, frozen=True, kw_only=True):
    """What one box of the recommended arrangement takes into a step."""

    box: str
    reads: bool
    writes: bool
    prompt_tokens_a_step: int | None
    """At most; None for a box that only writes."""
    answers_at_once: int | None
    """As many longest conversations as its memory and the engine allow; None for one that only
    reads."""
    sentence: str


class Recommendation(Struct, frozen=True, kw_only=True):
    """The answer: mode, roles, prefill style, wire precision, one sentence."""

    mode: Mode | None
    prefill_box: str | None
    decode_box: str | None
    prefill: str | None
    chunk_tokens: int | None
    kv_wire: KvWire | None
    """What a split sends its KV as: `same` as it is kept, `fp16` or `int8`; None elsewhere."""
    sentence: str
    runner_up: str | None = None
    runner_up_sentence: str | None = None
    batching: tuple[BoxBatch, ...] = ()
    """The batch policy of each box that is used."""


class Suited(Struct, frozen=True, kw_only=True):
    """Targets and an offered rate that one of the boxes holds alone, by the simulator."""

    box: str
    ttft_s: float
    tpot_s: float
    rate_requests_per_s: float
    attainment: float
    """Share of the requests inside these targets at this rate, predicted."""
    turns: int = 1
    """Requests of one conversation; a load's own rate is one of conversations."""
    sentence: str

    @property
    def targets(self) -> Targets:
        """As a load's targets."""
        return Targets(ttft_s=self.ttft_s, tpot_s=self.tpot_s)


class MostUsers(Struct, frozen=True, kw_only=True):
    """How many users at once are served inside the targets, where those asked about are not."""

    users: int
    """0 where not even one is."""
    mode: Mode | None
    sentence: str


class Plan(Struct, frozen=True, kw_only=True):
    """The whole advice for two boxes, a link, a model, a workload and targets."""

    recommendation: Recommendation
    tie: bool
    sustainable: bool | None
    rules: tuple[RuleResult, ...]
    modes: tuple[ModePrediction, ...]
    ledger: tuple[LedgerRow, ...]
    flips: tuple[Flip, ...]
    guesses: tuple[str, ...]
    weights: str = ""
    """The number formats of weights and KV cache that were reckoned with, in words."""
    sources: tuple[str, ...] = ()
    """What each box's and the hand-off's figures rest on."""
    measured_at: str | None = None
    """When these boxes were measured under this load, mode against mode; None if never."""
    overruled: str | None = None
    """What the model alone would have advised where that measurement advises otherwise."""
    most_users: MostUsers | None = None
    """Of a load whose users set the pace and are too many."""
    suited: Suited | None = None
    """A load that these boxes hold, in place of one that they don't; None where this one is held or
    no rate was found."""
    boxes: tuple[str, ...] = ()
    link: str = ""
    model: str = ""
    workload: str = ""
