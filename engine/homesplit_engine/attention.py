"""The one plug into transformers: an attention function and a mask function of ours.

A step packs all its sequences into one row; positions are explicit and no mask is made.
Each attention layer of the model calls `Plug.attend` with the row's queries, keys and
values; it stores K and V in the pool and lets each sequence attend to its own tokens.
Written for transformers 5.24 (`AttentionInterface`, `AttentionMaskInterface`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from homesplit_engine.cache import KvPool, Place

MOST_SCORES, CACHED_SCORES = 2**25, 2**20
"""Of queries with keys that attention spelled out holds at a time, of all heads together.

The second on a CPU: as many as its nearer caches hold, where a prompt takes a third of the time.
"""
_FEWEST = 4
_HIDES = 1e4
"""By so much a mask lowers at least the scores of what it hides."""
_numbers = itertools.count()


class UnsupportedAttention(Exception):
    """A layer asks for something that this attention does not do; the message names it."""


class Span:
    """One sequence's part of the packed row: `count` tokens from row `row`, at `start`."""

    __slots__ = ("count", "end", "place", "row", "start")

    def __init__(self, *, row: int, start: int, count: int, place: Place) -> None:
        self.row = row
        self.start = start
        self.count = count
        self.end = start + count
        self.place = place

    def first(self, window: int | None) -> int:
        """The first token that any of these sees."""
        return 0 if window is None else max(0, self.start - window + 1)

    def parts(self, count: int) -> list[Span]:
        """The same as neighbours of at most `count` tokens."""
        return [
            Span(
                row=self.row + at,
                start=self.start + at,
                count=min(count, self.count - at),
                place=self.place,
            )
            for at in range(0, self.count, count)
        ]


class Step:
    """What the attention needs to know of the step that is being computed."""

    def __init__(
        self,
        *,
        pool: KvPool,
        spans: list[Span],
        slots: torch.Tensor,
        layer_done: Callable[[int], None] | None = None,
    ) -> None:
        self.pool = pool
        self.spans = spans
        self.slots = slots
        """Pool slot of every token of the row, shape (tokens,)."""
        self.first_single = min((span.row for span in spans if span.count == 1), default=None)
        """The first row that is a sequence's only new one, None when there is no such row."""
        self.layer_done = layer_done
        """Called with a layer's number once its K and V of this step are in the pool."""
        self._masks: dict[tuple[int, int, int | None], torch.Tensor] = {}

    def mask(self, span: Span, window: int | None, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
        """First key that anyone in `span` sees, and the additive mask from there on.

        Shape (count, end - first). Position i sees j when j <= i and i - j < window.
        """
        first = span.first(window)
        which = (span.row, span.count, window)
        mask = self._masks.get(which)
        if mask is None:
            behind = _behind(span.start, first, span.end, self.slots.device)
            mask = self._masks[which] = _mask(behind, window, dtype)
        return first, mask

    def at(self, span: Span, first: int) -> torch.Tensor:
        """The positions of the keys from `first` on; shape (1, end - first)."""
        return torch.arange(first, span.end, device=self.slots.device)[None]


class LayerSeen:
    """What one attention layer showed of itself when the model ran once."""

    def __init__(self, *, kv_heads: int, head_dim: int, window: int | None) -> None:
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.window = window


class Slopes(NamedTuple):
    """What a key's score gains with its position, so that nearer ones weigh more (ALiBi)."""

    each: torch.Tensor
    """Of each head, for one token; shape (heads,)."""
    rounded: float | None = None
    """Given where products are rounded to bfloat16, as Falcon's: what they are then times."""

    def bias(self, heads: torch.Size, at: torch.Tensor) -> torch.Tensor:
        """What is added to scores of keys `at` (... x 1 x t), for `heads` of these slopes.

        All keys of a query may gain the same: only what is rounded must be counted from the start.
        """
        each = self.each.view(*heads, 1, 1)
        if self.rounded is None:
            return each * (at - at[..., -1:])
        return (each.bfloat16() * at).float() * self.rounded


class LayerRows(NamedTuple):
    """What one attention layer makes of a step's packed row, and how it is to attend."""

    layer: int
    query: torch.Tensor
    """tokens x heads x head_dim."""
    key: torch.Tensor
    """tokens x kv_heads x head_dim."""
    value: torch.Tensor
    """As `key`."""
    scaling: float
    window: int | None = None
    """Each token sees only the last so many, itself among them; None for all."""
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    """A score of each head that takes its share and gives nothing; shape (heads,)."""
    slopes: Slopes | None = None

    @property
    def asks_more(self) -> bool:
        """Whether they ask for what fused attention lacks."""
        return not (self.softcap is None and self.sinks is None and self.slopes is None)


class StaticAttention(Protocol):
    """A step that attends in its own way, by shapes alone (`graphs.StaticStep`)."""

    def attend(self, rows: LayerRows) -> torch.Tensor:
        """One layer; as `Plug.attend_rows`."""
        ...


class Plug:
    """The attention function of one model; `name` is its `attn_implementation`."""

    def __init__(self) -> None:
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface

        self.name = f"homesplit-{next(_numbers)}"
        self.step: Step | None = None
        self.static: StaticAttention | None = None
        """Set while a step of fixed shapes is computed, instead of `step`."""
        self.seen: dict[int, LayerSeen] = {}
        """Filled when a layer is called while no step is set: the model is being looked at."""
        AttentionInterface.register(self.name, self.attend)
        # Without a mask function of its own, a registered name is given no mask silently, and
        # with one of the library's a mask of the packed row's square would be built each step.
        AttentionMaskInterface.register(self.name, _no_mask)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,  # 1 x heads x tokens x head_dim
        key: torch.Tensor,  # 1 x kv_heads x tokens x head_dim
        value: torch.Tensor,  # 1 x kv_heads x tokens x value_dim
        attention_mask: torch.Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        slopes: Slopes | None = None,
        **_ignored: Any,
    ) -> tuple[torch.Tensor, None]:
        """One layer of one step; returns 1 x tokens x heads x value_dim.

        `s_aux` is what transformers calls the sinks; `slopes` only modules of ours give.
        """
        layer: Any = module.layer_idx
        if self.step is None and self.static is None:
            self._check(module, layer)
            if attention_mask is not None and not _only_hides(attention_mask, sliding_window):
                raise UnsupportedAttention(
                    f"attention layers that weigh keys by a mask of their own "
                    f"({type(module).__name__})"
                )
            if s_aux is not None and s_aux.numel() != query.shape[1]:
                raise UnsupportedAttention("attention sinks that are not one for each head")
        width, value_dim = query.shape[-1], value.shape[-1]
        # The pool has one width for both: what lacks some is filled up with zeros, which add none.
        wide = max(width, value_dim)
        rows = LayerRows(
            layer,
            _filled_up(query[0].transpose(0, 1), wide),
            _filled_up(key[0].transpose(0, 1), wide),
            _filled_up(value[0].transpose(0, 1), wide),
            width**-0.5 if scaling is None else scaling,
            sliding_window,
            softcap,
            s_aux,
            slopes,
        )
        out = self.attend_rows(rows)
        return out.view(1, query.shape[2], query.shape[1], wide)[..., :value_dim], None

    def attend_rows(self, rows: LayerRows) -> torch.Tensor:
        """One layer of one step; returns tokens x (heads * head_dim)."""
        step = self.step
        if step is None:
            return self._look(rows) if self.static is None else self.static.attend(rows)
        step.pool.store(rows.layer, step.slots, rows.key, rows.value)
        if step.layer_done is not None:
            step.layer_done(rows.layer)
        attention = _Attention(step, rows)
        query = rows.query
        if step.first_single is None or rows.asks_more or not _spells_out(query):
            parts = [attention.of(span) for span in step.spans]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        out = query.new_empty((len(query), query.shape[1] * query.shape[2]))
        for span in step.spans:
            if span.count > 1:
                out[span.row : span.row + span.count] = attention.of(span)
        attention.spell_out(out, first=step.first_single)
        return out

    def _check(self, module: torch.nn.Module, layer: int) -> None:
        """Raises UnsupportedAttention for a layer that asks for more than attention to the past."""
        if getattr(module, "is_causal", True) is False:
            raise UnsupportedAttention("attention layers that look both ways, as an encoder's do")
        if layer in self.seen:
            raise UnsupportedAttention(
                f"layers that attend more than once ({type(module).__name__}: "
                "differential, looped or cross-attention)"
            )

    def _look(self, rows: LayerRows) -> torch.Tensor:
        """Notes the layer's shape and attends within the row, which is one sequence."""
        query, key, value = rows.query, rows.key, rows.value
        self.seen[rows.layer] = LayerSeen(
            kv_heads=key.shape[1],
            head_dim=key.shape[2],
            window=rows.window,
        )
        behind = _behind(0, 0, len(query), query.device)
        mask = _mask(behind, rows.window, query.dtype)
        keys, values = key.transpose(0, 1), value.transpose(0, 1)
        grouped = query.transpose(0, 1).unflatten(0, (len(keys), -1))
        at = torch.arange(len(query), device=query.device)[None]
        return _flat(plain_attention(rows, grouped, keys, values, mask, at))


class _Attention:
    """One layer's attention in one step, whose K and V are in the pool."""

    __slots__ = ("_rows", "_step")

    def __init__(self, step: Step, rows: LayerRows) -> None:
        self._step = step
        self._rows = rows

    def of(self, span: Span) -> torch.Tensor:
        """One sequence's attention; returns count x (heads * head_dim)."""
        if self._rows.asks_more:
            query = self._rows.query
            scores = CACHED_SCORES if query.device.type == "cpu" else MOST_SCORES
            most = max(_FEWEST, scores // (query.shape[1] * span.end))
            parts = [self._spelled(part) for part in span.parts(most)]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        if span.count == 1:
            return self._of_one(span)
        query, key, value, scaling = self._rows[1:5]
        own = slice(span.row, span.row + span.count)
        queries = query[own].transpose(0, 1)
        window = self._window(span)
        if span.start == 0 and window is None:
            grouped, k, v = _grouped(queries, key[own].transpose(0, 1), value[own].transpose(0, 1))
            return _flat(scaled_dot_product_attention(grouped, k, v, is_causal=True, scale=scaling))
        first, mask = self._step.mask(span, window, query.dtype)
        k, v = self._step.pool.read_heads(self._rows.layer, span.place, first, span.end)
        grouped, k, v = _grouped(queries, k.mT, v)
        out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
        return _flat(out)

    def _window(self, span: Span) -> int | None:
        """The layer's, unless all that came before the span's last token fits into it."""
        window = self._rows.window
        return None if window is None or span.end <= window else window

    def _spelled(self, span: Span) -> torch.Tensor:
        rows, step = self._rows, self._step
        window = self._window(span)
        if span.count == 1:
            first, mask = span.first(window), None
        else:
            first, mask = step.mask(span, window, rows.query.dtype)
        at = None if rows.slopes is None else step.at(span, first)
        k, v = step.pool.read_heads(rows.layer, span.place, first, span.end)
        queries = rows.query[span.row : span.row + span.count].transpose(0, 1)
        grouped = queries.unflatten(0, (len(k), -1))
        return _flat(plain_attention(rows, grouped, k.mT, v, mask, at))

    def spell_out(self, out: torch.Tensor, *, first: int) -> None:
        """Every sequence of one new token, into its row of `out`; they begin with row `first`.

        The heads that share a KV head are attended as if they were its rows: two thirds of the
        time of the fused kernel, which is made for many rows.
        """
        query, key = self._rows.query, self._rows.key
        shape = (len(query) - first, key.shape[1], -1, query.shape[2])
        asked = (query[first:] * self._rows.scaling).view(shape).unbind(0)
        answers = out[first:].view(shape).unbind(0)
        for span in self._step.spans:
            if span.count == 1:
                k, v = self._seen(span)
                weights = torch.softmax(torch.bmm(asked[span.row - first], k), dim=-1)
                torch.bmm(weights, v, out=answers[span.row - first])

    def _of_one(self, span: Span) -> torch.Tensor:
        """One new token; returns 1 x (heads * head_dim)."""
        query = self._rows.query[span.row]
        k, v = self._seen(span)
        grouped = query.reshape(1, len(k), -1, query.shape[-1])
        out = scaled_dot_product_attention(grouped, k.mT[None], v[None], scale=self._rows.scaling)
        return out.reshape(1, -1)

    def _seen(self, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V that a sequence's one new token sees, laid out as in `KvPool.by_head`."""
        first = span.first(self._rows.window)
        return self._step.pool.read_heads(self._rows.layer, span.place, first, span.end)


def _spells_out(query: torch.Tensor) -> bool:
    return query.dtype == torch.float32 and query.device.type == "cpu"


def _filled_up(heads: torch.Tensor, width: int) -> torch.Tensor:
    """... x d -> ... x width, the same but for zeros behind it."""
    return heads if heads.shape[-1] == width else pad(heads, (0, width - heads.shape[-1]))


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    return None


def _flat(out: torch.Tensor) -> torch.Tensor:
    """kv_heads x group x count x head_dim -> count x (heads * head_dim)."""
    return out.flatten(0, 1).transpose(0, 1).flatten(1)


def _grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query heads beside the KV head they share, which is repeated without a copy.

    heads x n x d, kv_heads x t x d  ->  kv_heads x group x n x d, kv_heads x group x t x d
    """
    kv_heads = len(key)
    grouped = query.unflatten(0, (kv_heads, -1))
    shape = (kv_heads, grouped.shape[1], *key.shape[1:])
    return grouped, key.unsqueeze(1).expand(shape), value.unsqueeze(1).expand(shape)


def _behind(start: int, first: int, end: int, device: torch.device) -> torch.Tensor:
    """How far each of the keys from `first` lies behind each of the queries from `start`."""
    query = torch.arange(start, end, device=device)[:, None]
    return query - torch.arange(first, end, device=device)[None]


def _mask(behind: torch.Tensor, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores, so that each query sees no key after it or out of its window."""
    hidden = behind < 0
    if window is not None:
        hidden |= behind >= window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=behind.device)
    return mask.masked_fill_(hidden, float("-inf"))


def _only_hides(mask: torch.Tensor, window: int | None) -> bool:
    """Whether a model's own mask of one whole sequence does what ours does, and no more."""
    shown = mask if mask.dtype == torch.bool else mask == 0
    ours = _mask(_behind(0, 0, mask.shape[-1], mask.device), window, torch.float32)
    weighed = mask.dtype != torch.bool and bool((~shown & (mask > -_HIDES)).any())
    return not weighed and bool((shown == (ours == 0)).all())


def plain_attention(
    rows: LayerRows,
    query: torch.Tensor,  # ... x kv_heads x group x n x d
    key: torch.Tensor,  # ... x kv_heads x t x d
    value: torch.Tensor,  # ... x kv_heads x t x d
    mask: torch.Tensor | None,  # ... x n x t
    at: torch.Tensor | None = None,  # ... x 1 x t
) -> torch.Tensor:
    """Attention spelled out as `rows` has it, with all that fused attention lacks.

    `at` are the keys' positions, which only slopes ask for.
    """
    heads, shape = query.shape[-4:-2], query.shape[-3:-1]
    scores = torch.matmul(query.flatten(-3, -2), key.mT).unflatten(-2, shape) * rows.scaling
    if rows.softcap is not None:
        scores = torch.tanh(scores / rows.softcap) * rows.softcap
    if rows.slopes is not None and at is not None:
        scores = scores + rows.slopes.bias(heads, at)
    if mask is not None:
        scores = scores + mask
    if rows.sinks is not None:
        sinks = rows.sinks.to(scores.dtype).view(*heads, 1, 1)
        scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    seen = weights[..., : key.shape[-2]]
    return torch.matmul(seen.flatten(-3, -2), value).unflatten(-2, shape)
