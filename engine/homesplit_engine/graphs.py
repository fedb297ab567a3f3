"""Decode steps that are recorded once and replayed as a whole: CUDA graphs.

A recorded step reads and writes the same memory each time, with the same shapes. So it is made
for so many rows and so many tokens of context (a bucket); smaller batches fill it up with rows
that nobody reads, and what a row does not see is masked. The first uses of each graph are compared
with the step as it is computed otherwise; should one differ or fail, this worker goes on without.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from msgspec import Struct
from torch.nn.functional import scaled_dot_product_attention

from homesplit_engine.attention import LayerRows, plain_attention
from homesplit_engine.cache import KvPool, Place
from homesplit_engine.model import LoadedModel, slack_of
from homesplit_engine.request import Request

log = logging.getLogger(__name__)
MOST_ROWS = 64
FEWEST_TOKENS = 256
MOST_GRAPHS = 32
"""Each keeps its own inputs and logits; what lies between them is shared."""
MOST_BYTES = 2**29
"""What one graph may need while it runs."""
CHECKED_USES = 3
"""Of each graph: the first shows that it was recorded right, more that it reads its new inputs."""
_WARM_UPS = 2
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

Eager = Callable[[Sequence[Request]], torch.Tensor]
Replay = Callable[[], torch.Tensor]
"""Runs a recorded step; returns its logits, the same memory each time."""


class Bucket(Struct, frozen=True, kw_only=True):
    """The most rows and the longest context that one graph takes."""

    rows: int
    tokens: int

    @property
    def size(self) -> int:
        """Tokens that all rows see together."""
        return self.rows * self.tokens


def bucket_for(rows: int, tokens: int, *, fewest_tokens: int = FEWEST_TOKENS) -> Bucket:
    """The smallest bucket for a batch: powers of two both."""
    return Bucket(rows=_power(rows), tokens=max(fewest_tokens, _power(tokens)))


def why_no_graphs(loaded: LoadedModel) -> str | None:
    """Why this model's decode steps are not recorded, None when they are."""
    if loaded.device.type != "cuda":
        return f"there are no CUDA graphs on {loaded.device.type}"
    return why_not_static(loaded.model)


def why_not_static(model: Any) -> str | None:
    """What in a model depends on values and not on shapes alone, None when nothing is known to."""
    config: Any = getattr(model, "config", None)
    if config is None:
        return None
    if any(getattr(config, name, None) for name in _EXPERTS):
        return "which experts of a mixture are computed depends on the tokens"
    settings: Any = getattr(config, "rope_parameters", None) or {}
    found = [settings, *(v for v in settings.values() if isinstance(v, dict))]
    if any(one.get("rope_type") == "longrope" for one in found):
        return "the rope of type longrope depends on the longest position"
    return None


class _View(NamedTuple):
    """The tokens that a step's rows look at in layers of one window."""

    slots: torch.Tensor
    """Where they lie; flat, rows * tokens."""
    mask: torch.Tensor
    """Added to their scores; rows x 1 x 1 x tokens."""
    at: torch.Tensor
    """Their positions; rows, or 1 where they are alike, x 1 x 1 x 1 x tokens."""


class StaticStep:
    """A decode step of fixed shapes: an ordinary function of the tensors that it holds."""

    def __init__(self, loaded: LoadedModel, pool: KvPool, bucket: Bucket) -> None:
        """The pool must have a spare slot: rows that nobody asked for are stored there."""
        if pool.spare is None:
            raise ValueError("a step of fixed shapes needs a pool with a spare slot")
        self.bucket = bucket
        self._model: Any = loaded.model
        self._plug = loaded.plug
        self._pool = pool
        self._spare = pool.spare
        device = pool.device
        self._inputs = torch.zeros((2, bucket.rows), dtype=torch.int64, device=device)
        """Token ids and positions."""
        shape = (bucket.rows, bucket.tokens)
        self._table = torch.full(shape, pool.spare, dtype=torch.int64, device=device)
        """Slots of each row's tokens."""
        self._columns = torch.arange(bucket.tokens, device=device)
        self._filled: list[list[int] | None] = [None] * bucket.rows
        self._slots = self._inputs[0]
        self._views: dict[int | None, _View] = {}

    def fill(
        self, token_ids: Sequence[int], positions: Sequence[int], places: Sequence[Place]
    ) -> None:
        """Takes a batch in: each row's new token, its position, and where its tokens lie."""
        for row, place in enumerate(places):
            if self._filled[row] is not place.blocks:
                count = min(len(place.blocks) * self._pool.block_tokens, self.bucket.tokens)
                self._table[row].narrow(0, 0, count).copy_(place.index(0, count))
                self._filled[row] = place.blocks
        unused = self.bucket.rows - len(places)
        for row in range(len(places), self.bucket.rows):
            if self._filled[row] is not None:
                self._table[row].fill_(self._spare)
                self._filled[row] = None
        rest = [0] * unused
        self._inputs.copy_(torch.tensor([[*token_ids, *rest], [*positions, *rest]]))

    def compute(self) -> torch.Tensor:
        """Logits of every row of the bucket, those that nobody asked for too; float."""
        token_ids, positions = self._inputs.unbind(0)
        self._slots = self._table.gather(1, positions.unsqueeze(1)).squeeze(1)
        self._plug.static = self
        try:
            output = self._model(
                token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False
            )
        finally:
            self._plug.static = None
            # Kept, they would keep memory that the next recorded step may use as well.
            self._views.clear()
            self._slots = self._inputs[0]
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    def attend(self, rows: LayerRows) -> torch.Tensor:
        """One layer; returns rows x (heads * head_dim)."""
        layer, query, key, value, scaling, window = rows[:6]
        self._pool.store(layer, self._slots, key, value)
        view = self._view(window, query.dtype)
        shape = (self.bucket.rows, -1, *key.shape[1:])
        keys, values = (
            whole.index_select(0, view.slots).view(shape).transpose(1, 2)
            for whole in self._pool.keys_and_values[layer]
        )
        grouped = query.reshape(self.bucket.rows, key.shape[1], -1, query.shape[2])
        if rows.asks_more:
            mask = view.mask.unsqueeze(1)
            out = plain_attention(rows, grouped.unsqueeze(3), keys, values, mask, view.at)
        else:
            out = scaled_dot_product_attention(
                grouped, keys, values, attn_mask=view.mask, scale=scaling
            )
        return out.reshape(self.bucket.rows, -1)

    def _view(self, window: int | None, dtype: torch.dtype) -> _View:
        """What each row looks at.

        What is masked is a slot of the row's own tokens as well: others may hold anything, and
        nothing times NaN is NaN.
        """
        if window is not None and window >= self.bucket.tokens:
            window = None
        if window not in self._views:
            positions = self._inputs[1].unsqueeze(1)
            if window is None:
                at = self._columns.unsqueeze(0)
                hidden = at > positions
                own = torch.minimum(at, positions)
            else:
                at = self._columns.narrow(0, 0, window).unsqueeze(0) + positions - (window - 1)
                hidden = at < 0
                own = at.clamp(min=0)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask = mask.masked_fill(hidden, float("-inf")).unsqueeze(1).unsqueeze(1)
            slots = self._table.gather(1, own).flatten()
            self._views[window] = _View(slots, mask, at.view(len(at), 1, 1, 1, -1))
        return self._views[window]


class Graphs:
    """The recorded decode steps of one model on one pool."""

    def __init__(
        self,
        loaded: LoadedModel,
        pool: KvPool,
        *,
        eager: Eager,
        record: Callable[[StaticStep], Replay] | None = None,
        fewest_tokens: int = FEWEST_TOKENS,
        checked_uses: int = CHECKED_USES,
    ) -> None:
        """`eager` computes a batch as without graphs; `record` makes a step replayable."""
        self._loaded = loaded
        self._pool = pool
        self._eager = eager
        self._record = record or CudaRecorder(pool.device)
        self._fewest_tokens = fewest_tokens
        self._checked_uses = checked_uses
        self._uses: Counter[Bucket] = Counter()
        self._recorded: dict[Bucket, tuple[StaticStep, Replay]] = {}
        self.off: str | None = None
        """Why nothing is recorded or replayed any more."""

    @property
    def buckets(self) -> list[Bucket]:
        """Those recorded so far."""
        return list(self._recorded)

    def logits(self, requests: Sequence[Request], places: Sequence[Place]) -> torch.Tensor:
        """Logits after each request's newest token, whose KV is stored; requests x vocabulary."""
        bucket = None if self.off else self._bucket(requests)
        if bucket is None:
            return self._eager(requests)
        known = self._recorded.get(bucket)
        try:
            with torch.inference_mode():
                if known is None:
                    step = StaticStep(self._loaded, self._pool, bucket)
                    _fill(step, requests, places)
                    known = step, self._record(step)
                else:
                    _fill(known[0], requests, places)
                logits = known[1]()[: len(requests)].clone()
        except Exception as error:  # whatever a model's code raises here, the step can be computed
            self._give_up(f"{bucket} could not be recorded or replayed: {error}")
            return self._eager(requests)
        self._uses[bucket] += 1
        if self._uses[bucket] > self._checked_uses:
            return logits
        return self._compared(bucket, known, logits, requests)

    def _compared(
        self,
        bucket: Bucket,
        fresh: tuple[StaticStep, Replay],
        logits: torch.Tensor,
        requests: Sequence[Request],
    ) -> torch.Tensor:
        """The step's logits without the graph, which is kept if its own are near enough."""
        # Last, so that the KV too is what it would be without graphs.
        expected = self._eager(requests)
        scale = float(expected.nan_to_num(posinf=0.0, neginf=0.0).abs().max()) + 1e-6
        atol = slack_of(self._pool.shape.dtype) * scale
        near = torch.isclose(logits, expected, rtol=0.0, atol=atol, equal_nan=True)
        if bool(near.all()):
            self._recorded[bucket] = fresh
        else:
            off = float((logits - expected).abs().max())
            self._give_up(f"{bucket}: its logits are off by {off:.3g} where {atol:.3g} may be")
        return expected

    def _bucket(self, requests: Sequence[Request]) -> Bucket | None:
        rows, tokens = len(requests), max(request.computed for request in requests) + 1
        wanted = bucket_for(rows, tokens, fewest_tokens=self._fewest_tokens)
        if wanted in self._recorded:
            return wanted
        if len(self._recorded) < MOST_GRAPHS:
            fits = rows <= MOST_ROWS and self._bytes(wanted) <= MOST_BYTES
            return wanted if fits else None
        larger = [one for one in self._recorded if one.rows >= rows and one.tokens >= tokens]
        return min(larger, key=lambda one: one.size, default=None)

    def _bytes(self, bucket: Bucket) -> int:
        """Gathered K and V of a layer twice, the table and what is made of it, and the logits."""
        shape = self._pool.shape
        layer = max(shape.layer_bytes(layer) for layer in range(shape.layers))
        logits = bucket.rows * self._loaded.vocab_size * 4
        return bucket.size * (2 * layer + 4 * 8) + 2 * logits

    def _give_up(self, why: str) -> None:
        self.off = why
        self._recorded.clear()
        log.warning("decode goes on without CUDA graphs: %s", why)


class CudaRecorder:
    """Records steps as CUDA graphs whose memory between input and logits is shared."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: Any = None

    def __call__(self, step: StaticStep) -> Replay:
        """Runs the step a few times, as CUDA's libraries want it, then once to record it."""
        with torch.cuda.device(self._device):
            steps, aside = torch.cuda.current_stream(), torch.cuda.Stream()
            aside.wait_stream(steps)
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    step.compute()
            steps.wait_stream(aside)
            self._memory = self._memory or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            # The hand-off's threads go on meanwhile: only what this thread does is recorded.
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                logits = step.compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay


def _fill(step: StaticStep, requests: Sequence[Request], places: Sequence[Place]) -> None:
    positions = [request.computed for request in requests]
    token_ids = [request.tokens[at] for request, at in zip(requests, positions, strict=True)]
    step.fill(token_ids, positions, places)


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()
