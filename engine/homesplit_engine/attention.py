"""The one plug into transformers: an attention function and a mask function of ours.

A step packs all its sequences into one row; positions are explicit and no mask is made.
Each attention layer of the model calls `Plug.attend` with the row's queries, keys and
values; it stores K and V in the pool and lets each sequence attend to its own tokens.
Written for transformers 5.24 (`AttentionInterface`, `AttentionMaskInterface`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

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


class Plug:
    """The attention function of one model; `name` is its `attn_implementation`."""

    def __init__(self) -> None:
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface

        self.name = f"homesplit-{next(_numbers)}"
        self.step: Step | None = None
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
        step = self.step
        if step is None:
            if s_aux is not None:
                raise UnsupportedAttention("attention sinks")
            return self._look(layer, query, key, value, scaling, sliding_window, softcap)
        pool = step.pool.layers[layer]
        if len(step.slots) == 1:
            slot = step.spans[0].place.slots(step.spans[0].start, step.spans[0].end)[0]
            pool[0, slot].copy_(key[0, :, 0])
            pool[1, slot].copy_(value[0, :, 0])
        else:
            pool[0].index_copy_(0, step.slots, key[0].transpose(0, 1))
            pool[1].index_copy_(0, step.slots, value[0].transpose(0, 1))
        if step.layer_done is not None:
            step.layer_done(layer)
        heads = query.shape[1]
        parts = [
            _attend_one(step, span, pool, query, key, value, scaling, sliding_window, softcap)
            for span in step.spans
        ]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined.view(1, len(step.slots), heads, -1), None

    def _look(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
    ) -> tuple[torch.Tensor, None]:
        """Notes the layer's shape and attends within the row, which is one sequence."""
        if layer in self.seen:
            raise UnsupportedAttention(f"two attention modules that share layer {layer}")
        self.seen[layer] = LayerSeen(
            kv_heads=key.shape[1],
            head_dim=key.shape[3],
            value_dim=value.shape[3],
            window=window,
        )
        tokens = query.shape[2]
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
        if window is not None:
            mask &= torch.ones_like(mask).triu(1 - window)
        float_mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
        float_mask.masked_fill_(~mask, float("-inf"))
        grouped, key, value = _grouped(query, key, value)
        out = _plain(grouped, key, value, float_mask, scaling, softcap)
        return out.reshape(1, *query.shape[1:3], -1).transpose(1, 2), None


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    return None


def _attend_one(
    step: Step,
    span: Span,
    pool: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """One sequence's attention; returns count x (heads * head_dim)."""
    if span.count == 1:
        return _decode_one(span, pool, query[:, :, span.row], scaling, window, softcap)
    rows = slice(span.row, span.row + span.count)
    fits = window is None or span.end <= window
    if span.start == 0 and fits and softcap is None:
        grouped, k, v = _grouped(query[:, :, rows], key[:, :, rows], value[:, :, rows])
        out = scaled_dot_product_attention(grouped, k, v, is_causal=True, scale=scaling)
    else:
        first, mask = step.mask(span, None if fits else window, query.dtype)
        k, v = _read(pool, span.place, first, span.end)
        grouped, k, v = _grouped(query[:, :, rows], k[None], v[None])
        if softcap is None:
            out = scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scaling)
        else:
            out = _plain(grouped, k, v, mask, scaling, softcap)
    # kv_heads x group x count x head_dim -> count x heads x head_dim
    return out.flatten(0, 1).transpose(0, 1).reshape(span.count, -1)


def _decode_one(
    span: Span,
    pool: torch.Tensor,
    query: torch.Tensor,  # 1 x heads x head_dim
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """One new token: the heads that share a KV head are attended as if they were its rows."""
    first = 0 if window is None else max(0, span.end - window)
    k, v = _read(pool, span.place, first, span.end)
    grouped = query.reshape(1, k.shape[0], -1, query.shape[-1])
    if softcap is None:
        out = scaled_dot_product_attention(grouped, k[None], v[None], scale=scaling)
    else:
        out = _plain(grouped, k[None], v[None], None, scaling, softcap)
    return out.reshape(1, -1)


def _read(
    pool: torch.Tensor, place: Place, start: int, end: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of tokens [start, end), each kv_heads x tokens x head_dim; no copy if it can be."""
    if place.first is not None:
        part = pool[:, place.first + start : place.first + end]
    else:
        part = pool.index_select(1, place.index(start, end))
    k, v = part.transpose(1, 2).unbind(0)
    return k, v


def _grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query heads beside the KV head they share, which is repeated without a copy.

    1 x heads x n x d, 1 x kv_heads x t x d  ->  kv_heads x group x n x d, kv_heads x group x t x d
    """
    kv_heads = key.shape[1]
    group = query.shape[1] // kv_heads
    grouped = query.view(kv_heads, group, *query.shape[2:])
    shape = (kv_heads, group, *key.shape[2:])
    return grouped, key[0].unsqueeze(1).expand(shape), value[0].unsqueeze(1).expand(shape)


def _plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attention spelled out, for what the fused one lacks (softcap)."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query, key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)
