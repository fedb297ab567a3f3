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
from torch.nn.functional import scaled_dot_product_attention

from homesplit_engine.cache import KvPool, Place

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
        self._masks: dict[tuple[int, int | None], torch.Tensor] = {}

    def mask(self, span: Span, window: int | None, dtype: torch.dtype) -> tuple[int, torch.Tensor]:
        """First key that anyone in `span` sees, and the additive mask from there on.

        Shape (count, end - first). Position i sees j when j <= i and i - j < window.
        """
        first = 0 if window is None else max(0, span.start - window + 1)
        mask = self._masks.get((span.row, window))
        if mask is None:
            device = self.slots.device
            query = torch.arange(span.start, span.end, device=device)[:, None]
            key = torch.arange(first, span.end, device=device)[None]
            hidden = key > query
            if window is not None:
                hidden |= query - key >= window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
            mask.masked_fill_(hidden, float("-inf"))
            self._masks[span.row, window] = mask
        return first, mask


class LayerSeen:
    """What one attention layer showed of itself when the model ran once."""

    def __init__(self, *, kv_heads: int, head_dim: int, value_dim: int, window: int | None) -> None:
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.window = window


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
        value: torch.Tensor,  # 1 x kv_heads x tokens x head_dim
        attention_mask: torch.Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **_ignored: Any,
    ) -> tuple[torch.Tensor, None]:
        """One layer of one step; returns 1 x tokens x heads x head_dim."""
        layer: Any = module.layer_idx
        if self.step is None and self.static is None:
            self._check(module, layer, s_aux)
        rows = LayerRows(
            layer,
            query[0].transpose(0, 1),
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            query.shape[-1] ** -0.5 if scaling is None else scaling,
            sliding_window,
            softcap,
        )
        out = self.attend_rows(rows)
        return out.view(1, query.shape[2], query.shape[1], -1), None

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
        if step.first_single is None or rows.softcap is not None or not _spells_out(query):
            parts = [attention.of(span) for span in step.spans]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        out = query.new_empty((len(query), query.shape[1] * query.shape[2]))
        for span in step.spans:
            if span.count > 1:
                out[span.row : span.row + span.count] = attention.of(span)
        attention.spell_out(out, first=step.first_single)
        return out

    def _check(self, module: torch.nn.Module, layer: int, sinks: torch.Tensor | None) -> None:
        """Raises UnsupportedAttention for a layer that asks for more than attention to the past."""
        if sinks is not None:
            raise UnsupportedAttention("attention sinks")
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
            value_dim=value.shape[2],
            window=rows.window,
        )
        tokens = len(query)
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
        if rows.window is not None:
            mask &= torch.ones_like(mask).triu(1 - rows.window)
        float_mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
        float_mask.masked_fill_(~mask, float("-inf"))
        grouped, k, v = _grouped(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1))
        return _flat(plain_attention(grouped, k, v, float_mask, rows.scaling, rows.softcap))


class _Attention:
    """One layer's attention in one step, whose K and V are in the pool."""

    __slots__ = ("_rows", "_step")

    def __init__(self, step: Step, rows: LayerRows) -> None:
        self._step = step
        self._rows = rows

    def of(self, span: Span) -> torch.Tensor:
        """One sequence's attention; returns count x (heads * head_dim)."""
        if span.count == 1:
            return self._of_one(span)
        _, query, key, value, scaling, window, softcap = self._rows
        own = slice(span.row, span.row + span.count)
        queries = query[own].transpose(0, 1)
        fits = window is None or span.end <= window
        if span.start == 0 and fits and softcap is None:
            grouped, k, v = _grouped(queries, key[own].transpose(0, 1), value[own].transpose(0, 1))
            return _flat(scaled_dot_product_attention(grouped, k, v, is_causal=True, scale=scaling))
        first, mask = self._step.mask(span, None if fits else window, query.dtype)
        k, v = self._step.pool.read_heads(self._rows.layer, span.place, first, span.end)
        grouped, k, v = _grouped(queries, k.mT, v)
        if softcap is None:
            out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
        else:
            out = plain_attention(grouped, k, v, mask, scaling, softcap)
        return _flat(out)

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
        query, scaling, softcap = self._rows.query[span.row], self._rows.scaling, self._rows.softcap
        k, v = self._seen(span)
        grouped = query.reshape(1, len(k), -1, query.shape[-1])
        if softcap is not None:
            out = plain_attention(grouped, k.mT[None], v[None], None, scaling, softcap)
        else:
            out = scaled_dot_product_attention(grouped, k.mT[None], v[None], scale=scaling)
        return out.reshape(1, -1)

    def _seen(self, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V that a sequence's last token sees, laid out as in `KvPool.by_head`."""
        window = self._rows.window
        first = 0 if window is None else max(0, span.end - window)
        return self._step.pool.read_heads(self._rows.layer, span.place, first, span.end)


def _spells_out(query: torch.Tensor) -> bool:
    return query.dtype == torch.float32 and query.device.type == "cpu"


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


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention spelled out, for what the fused one lacks (softcap)."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)
