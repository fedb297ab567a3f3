"""How long one box takes to read a prompt and to write a token, as intervals with a source.

Three sources in rising order of trust: a maker's figures, probes of the box, and a fit to
the real engine's own steps. All end up in the same `StepCost`, which the simulator uses too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from homesplit.core.calibration import Calibration, Weights
from homesplit.core.efficiency import Efficiency, from_maker_figures, from_probes
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading
from homesplit.core.shape import DTYPE_BYTES, ModelShape
from homesplit.errors import ProfileError


class Interval(Struct, frozen=True, kw_only=True):
    """A predicted value with its 90 % interval."""

    mid: float
    low: float
    high: float


class CostModel(Struct, frozen=True, kw_only=True):
    """Seconds of any engine step of one model on one box.

    A step reads the weights once, multiplies for every token in it, compares pairs of tokens
    and reads the KV of what is decoded.
    """

    box: str
    source: str
    shape: ModelShape
    kv_dtype: str
    step_s: float
    """Fixed seconds of every step."""
    weight_byte_s: float
    """Seconds per weight byte read."""
    flop_s: float
    attention_flop_s: float
    kv_byte_s: float
    sequence_s: float = 0.0
    """Seconds per decoding request beside its arithmetic."""
    overlap: float = 1.0
    fit: Calibration | None = None
    prefill_low: float = 1.0
    prefill_high: float = 1.0
    decode_low: float = 1.0
    decode_high: float = 1.0

    def prefill_s(self, tokens: int, cached: int = 0) -> Interval:
        """Reading `tokens` prompt tokens of which the first `cached` are there already."""
        fresh = max(tokens - cached, 0)
        mid = self.step_seconds([(tokens - fresh, fresh)], 0, 0) if fresh else 0.0
        return Interval(mid=mid, low=mid * self.prefill_low, high=mid * self.prefill_high)

    def decode_step_s(self, batch: int, context_tokens: int) -> Interval:
        """One token for each of `batch` requests that hold `context_tokens` in all."""
        mid = self.step_seconds([], batch, context_tokens)
        return Interval(mid=mid, low=mid * self.decode_low, high=mid * self.decode_high)

    def step_seconds(
        self, prefill: Sequence[tuple[int, int]], batch: int, context_tokens: int
    ) -> float:
        """One step: pieces of prompts as (start, tokens), and `batch` answers; the mid value."""
        if self.fit is not None:
            fit = self.fit
            return fit.gap_s + fit.step_seconds(prefill, batch, context_tokens)
        shape = self.shape
        tokens, pairs = batch, 0.0
        for start, count in prefill:
            tokens += count
            pairs += shape.attention_flops(count, start)
        if not tokens:
            return 0.0
        work = self.work_seconds(tokens, batch + len(prefill))
        kept = shape.batch_kv_bytes(batch, context_tokens, self.kv_dtype) if batch else 0.0
        return (
            self.step_s
            + work
            + self.attention_flop_s * pairs
            + self.kv_byte_s * kept
            + self.sequence_s * batch
        )

    def work_seconds(self, tokens: int, heads: int) -> float:
        """The weight matrices of one step: read once, and multiplied with all its tokens."""
        reading = self.weight_byte_s * self.shape.step_weight_bytes(tokens)
        multiplying = self.flop_s * self.shape.matmul_flops(tokens, heads=heads)
        lesser, greater = sorted((reading, multiplying))
        return greater + (1.0 - self.overlap) * lesser

    def scaled(self, prefill: float, decode: float) -> CostModel:
        """The same box where prompts take `prefill` and answers `decode` times as long."""
        if self.fit is not None:
            fit = structs.replace(
                self.fit,
                step_s=self.fit.step_s * decode,
                token_s=self.fit.token_s * prefill,
                pair_s=self.fit.pair_s * prefill,
                read_step_s=self.fit.read_step_s * prefill,
                sequence_s=self.fit.sequence_s * decode,
                context_s=self.fit.context_s * decode,
            )
            return structs.replace(self, fit=fit)
        return structs.replace(
            self,
            step_s=self.step_s * decode,
            weight_byte_s=self.weight_byte_s * decode,
            kv_byte_s=self.kv_byte_s * decode,
            sequence_s=self.sequence_s * decode,
            flop_s=self.flop_s * prefill,
            attention_flop_s=self.attention_flop_s * prefill,
        )


INT8_ARITHMETIC = 0.97
"""Of the rate in fp32, what products with int8 weights reach over a prompt. Measured: 0.96, 0.99
and 0.97 at 128, 512 and 2,048 tokens (tests/bench/results/engine.md) on a processor without VNNI,
or one of which no probe tells it."""
INT8_BY_VNNI = 1.9
"""The same on a processor with VNNI: prompts of 128 and 512 tokens are read 1.89 and 1.80 times as
quickly as in fp32, the products alone 2.05 times."""


def refitted(fit: Calibration, had: CostModel, wanted: CostModel) -> Calibration:
    """A fit of other weights, its coefficients changed as the two models without it differ."""
    reads = _idle_step_s(wanted) / _idle_step_s(had)
    multiplies = wanted.flop_s / had.flop_s
    return structs.replace(
        fit,
        step_s=fit.step_s * reads,
        token_s=fit.token_s * multiplies,
        sequence_s=fit.sequence_s * multiplies,
        kv_tokens=None,
        refitted=True,
    )


def _idle_step_s(cost: CostModel) -> float:
    """A step's part that does not grow with its tokens: reading the weights, and starting."""
    return cost.step_s + cost.weight_byte_s * cost.shape.step_weight_bytes(1)


PLAIN = "plain BLAS"
"""In the method of a multiply rate that a slow library gave, in the probes' words."""


class StepClock:
    """`CostModel.step_seconds` for a simulation: what hangs on few values is worked out once."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._work: dict[tuple[int, int], float] = {}
        self._pairs: dict[tuple[int, int], float] = {}
        self._writing: dict[int, float] = {}
        self._context_s = _context_seconds(cost)
        self._kv = _kv_of_one_kind(cost)

    def step_seconds(
        self, prefill: Sequence[tuple[int, int]], batch: int, context_tokens: int
    ) -> float:
        """The same seconds as the cost model's."""
        if not prefill and batch and self._context_s is not None:
            # Most steps: one line over the contexts for each size of batch.
            base_s = self._writing.get(batch)
            if base_s is None:
                base_s = self._writing[batch] = self._cost.step_seconds([], batch, 0)
            return base_s + self._context_s * context_tokens
        cost = self._cost
        if cost.fit is not None:
            return cost.step_seconds(prefill, batch, context_tokens)
        tokens, attending_s = batch, 0.0
        for piece in prefill:
            tokens += piece[1]
            known = self._pairs.get(piece)
            if known is None:
                known = cost.attention_flop_s * cost.shape.attention_flops(piece[1], piece[0])
                self._pairs[piece] = known
            attending_s += known
        if not tokens:
            return 0.0
        heads = batch + len(prefill)
        work_s = self._work.get((tokens, heads))
        if work_s is None:
            work_s = self._work[(tokens, heads)] = cost.work_seconds(tokens, heads)
        if not batch:
            kept = 0.0
        elif self._kv is not None:
            layers, elements, state, size = self._kv
            kept = batch * (layers * (elements * (context_tokens / batch) + state)) * size
        else:
            kept = cost.shape.batch_kv_bytes(batch, context_tokens, cost.kv_dtype)
        return cost.step_s + work_s + attending_s + cost.kv_byte_s * kept + cost.sequence_s * batch


def _kv_of_one_kind(cost: CostModel) -> tuple[int, int, int, float] | None:
    """`batch_kv_bytes`' figures where all layers are of one kind and see everything."""
    if len(cost.shape.groups) != 1 or cost.shape.groups[0].window is not None:
        return None
    group = cost.shape.groups[0]
    return group.layers, group.kv_elements, group.state_elements, DTYPE_BYTES[cost.kv_dtype]


def _context_seconds(cost: CostModel) -> float | None:
    """Seconds of a step for each cached token of those it writes for; None where it is no line.

    It is none where some layers see only a window of what was said.
    """
    if cost.fit is not None:
        return cost.fit.context_s
    if any(group.window is not None for group in cost.shape.groups):
        return None
    kept = cost.shape.batch_kv_bytes(1, 1, cost.kv_dtype)
    return cost.kv_byte_s * (kept - cost.shape.batch_kv_bytes(1, 0, cost.kv_dtype))


def cost_model(
    box: BoxProfile,
    shape: ModelShape,
    *,
    calibration: Calibration | None = None,
    kv_dtype: str = "fp16",
) -> CostModel:
    """The cost model of a box; raises ProfileError naming the figure that is missing."""
    if calibration is not None:
        return _calibrated(box, shape, calibration, kv_dtype)
    bytes_per_s = box.memory_bytes_per_s.value
    if bytes_per_s is None:
        raise ProfileError(
            f"its memory bandwidth is not known: {box.memory_bytes_per_s.why}.",
            where=box.name,
            do_next=_how_to_know(box, "memory_bytes_per_s"),
        )
    multiplying = _multiplying(box, shape)
    flops_per_s = multiplying.value or 0.0
    share = _efficiency(box, shape, multiplying, bytes_per_s)
    by_int8 = INT8_BY_VNNI if box.vnni else INT8_ARITHMETIC
    narrow = by_int8 if shape.table_bytes else 1.0
    flop_s = 1.0 / (flops_per_s * share.arithmetic * narrow)
    byte_s = 1.0 / (bytes_per_s * share.bandwidth)
    return CostModel(
        box=box.name,
        source=box.source,
        shape=shape,
        kv_dtype=kv_dtype,
        step_s=share.layer_s * shape.layers,
        weight_byte_s=byte_s,
        flop_s=flop_s,
        attention_flop_s=flop_s * narrow / share.attention,
        kv_byte_s=byte_s,
        overlap=share.overlap,
        prefill_low=share.prefill_low,
        prefill_high=share.prefill_high,
        decode_low=share.decode_low,
        decode_high=share.decode_high,
    )


def _calibrated(
    box: BoxProfile, shape: ModelShape, calibration: Calibration, kv_dtype: str
) -> CostModel:
    """A box whose engine was timed: no figure of the hardware is needed any more."""
    spread = min(max(calibration.error_p90, 0.02), 0.9)
    return CostModel(
        box=box.name,
        source=calibration.words,
        shape=shape,
        kv_dtype=kv_dtype,
        step_s=0.0,
        weight_byte_s=0.0,
        flop_s=0.0,
        attention_flop_s=0.0,
        kv_byte_s=0.0,
        fit=calibration,
        prefill_low=1.0 - spread,
        prefill_high=1.0 + spread,
        decode_low=1.0 - spread,
        decode_high=1.0 + spread,
    )


def _multiplying(box: BoxProfile, shape: ModelShape) -> Reading:
    """The rate at which the model's own arithmetic runs on the box."""
    wanted = ("fp32",) if shape.dtype == "fp32" else ("fp16", "bf16", "fp32")
    for name in (*wanted, "fp16", "bf16"):
        reading = box.flops_per_s.get(name)
        if reading is not None and reading.value:
            return reading
    names = tuple(dict.fromkeys((*wanted, "fp16", "bf16")))
    told = (box.flops_per_s[name].why for name in names if name in box.flops_per_s)
    why = next((why for why in told if why), "nothing is said of it")
    raise ProfileError(
        f"its rate of matrix arithmetic in {' or '.join(names)} is not known: {why}.",
        where=box.name,
        do_next=_how_to_know(box, "flops_per_s"),
    )


def _how_to_know(box: BoxProfile, key: str) -> str:
    """The next step when a figure of a box is missing."""
    if box.source.startswith(("probe", "calibrated")):
        return (
            "Deploy first (`homesplit up` brings what measures it), then run "
            f"`homesplit probe {box.name}` again; or plan with a hardware profile instead."
        )
    return f"Add {key} to its profile, or measure the box: homesplit probe BOX."


def _efficiency(
    box: BoxProfile, shape: ModelShape, multiplying: Reading, bytes_per_s: float
) -> Efficiency:
    if box.source == "probe" or box.source.startswith("calibrated"):
        return from_probes(device=box.device, plain=PLAIN in (multiplying.method or ""))
    int8 = box.flops_per_s.get("int8")
    return from_maker_figures(
        flops_per_s=multiplying.value or 0.0,
        bytes_per_s=bytes_per_s,
        weight_bits=8.0 * shape.weights_bytes / shape.parameters,
        device=box.device,
        unified=box.unified,
        routed=shape.expert_choice is not None,
        int8_per_s=(int8.value or 0.0) if int8 else 0.0,
    )


def run_dtype(box: BoxProfile, shape: ModelShape, *, beside: Sequence[BoxProfile] = ()) -> str:
    """The number format in which the engine would keep the weights on this box.

    It computes in fp32, and in bf16 where all boxes, those `beside` it too, have an NVIDIA GPU:
    both must keep KV alike. Boxes of a profile run what the model has.
    """
    if box.source != "probe":
        return shape.dtype
    pair = (box, *(other for other in beside if other.source == "probe"))
    return "bf16" if all(each.device == "cuda" for each in pair) else "fp32"


def placed(
    box: BoxProfile, shape: ModelShape, weights: Weights, *, beside: Sequence[BoxProfile] = ()
) -> ModelShape:
    """The shape as this box's engine would keep it."""
    dtype = run_dtype(box, shape, beside=beside)
    kept = shape if dtype == shape.dtype else shape.with_dtype(dtype)
    return kept.with_int8_linears() if weights == "int8" else kept


def why_no_int8(box: BoxProfile, shape: ModelShape) -> str | None:
    """Why the model can't have int8 weights on this box, None when it can."""
    if box.device != "cpu":
        gpu = f"{box.name} would run the model on its GPU ({box.device})"
        return f"int8 weights are computed on processors only, and {gpu}"
    if run_dtype(box, shape) == shape.dtype and shape.weights_bytes < 1.5 * shape.parameters:
        return f"{shape.name} is quantised already ({shape.dtype})"
    return None


def kv_dtype_of(dtype: str) -> str:
    """The KV cache's format beside weights in `dtype`: fp32 stays, all else is 16 bit."""
    return dtype if DTYPE_BYTES[dtype] >= 2 else "fp16"
