"""Families whose attention asks no interface of transformers: BLOOM, Falcon, MPT and a few more.

In place of each such module comes one that has its projections, computes what it computes before
and after attending, and asks the plug between. Loading compares the logits of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from homesplit_engine.attention import Plug, Slopes
from homesplit_engine.experts import linear_of

_Turn = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class Apart(nn.Module):
    """Query, key and value from a product each, as in GPT-Neo and XGLM."""

    def __init__(
        self,
        plug: Plug,
        layer: int,
        products: Sequence[nn.Module],
        out: nn.Module,
        *,
        width: int,
        scaling: float | None = None,
        window: int | None = None,
        slopes: Slopes | None = None,
        most: float | None = None,
    ) -> None:
        """No query, key or value is larger than `most`."""
        super().__init__()
        self.layer_idx = layer
        self._plug = plug
        self._width = width
        self._asks: dict[str, Any] = {
            "scaling": scaling,
            "sliding_window": window,
            "slopes": slopes,
        }
        self._most = most
        self.q_proj, self.k_proj, self.v_proj = products
        self.out_proj = out

    def forward(self, hidden_states: torch.Tensor, *_others: Any, **_ignored: Any) -> Sequence[Any]:
        """1 x tokens x hidden -> the same, and None for the weights."""
        products = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (self._heads(product(hidden_states)) for product in products)
        out, _ = self._plug.attend(self, query, key, value, None, **self._asks)
        return self.out_proj(out.flatten(2)), None

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        if self._most:
            rows = rows.clamp(-self._most, self._most)
        return rows.unflatten(-1, (-1, self._width)).transpose(1, 2)


class ApartInList(Apart):
    """As GPT-1's layers want it: a list, without a place for weights that are not wanted."""

    def forward(self, hidden_states: torch.Tensor, *_others: Any, **_ignored: Any) -> Sequence[Any]:
        """1 x tokens x hidden -> the same, in a list."""
        return [super().forward(hidden_states)[0]]


class Fused(nn.Module):
    """All three from one product: of each KV head its queries, its key and its value."""

    def __init__(
        self,
        own: Any,
        plug: Plug,
        layer: int,
        *,
        kv_heads: int,
        width: int,
        turn: _Turn | None = None,
        slopes: Slopes | None = None,
    ) -> None:
        """`turn` puts rope on queries and keys, as Falcon's."""
        super().__init__()
        self.layer_idx = layer
        self._plug = plug
        self._width = width
        self._kv_heads = kv_heads
        self._turn = turn
        self._slopes = slopes
        self.query_key_value: nn.Module = own.query_key_value
        self.dense: nn.Module = own.dense

    def forward(
        self,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None = None,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **_ignored: Any,
    ) -> Sequence[Any]:
        """1 x tokens x hidden -> the same; added to `residual` where the layer gives one."""
        every = self.query_key_value(hidden_states)
        every = every.unflatten(-1, (self._kv_heads, -1, self._width))
        query = every[..., :-2, :].flatten(2, 3).transpose(1, 2)
        key, value = (every[..., at, :].transpose(1, 2) for at in (-2, -1))
        if self._turn is not None and position_embeddings is not None:
            query, key = self._turn(query, key, *position_embeddings)
        out, _ = self._plug.attend(self, query, key, value, None, slopes=self._slopes)
        answer = self.dense(out.flatten(2))
        return answer if residual is None else residual + answer, None


class FusedWithBias(Fused):
    """As the layers of GPT-NeoX-Japanese want it: they add the bias themselves, if there is one."""

    def __init__(self, own: Any, plug: Plug, layer: int, **settings: Any) -> None:
        super().__init__(own, plug, layer, **settings)
        self.dense_bias: nn.Parameter | None = own.dense_bias

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None = None, **given: Any
    ) -> Sequence[Any]:
        """1 x tokens x hidden -> the same, None for the weights, and the bias."""
        return *super().forward(hidden_states, residual, **given), self.dense_bias


def own_way(config: Any) -> str:
    """The way of attending, of transformers' own, that a model is compared with.

    It is spelled out, since not every family's fused one does all; Falcon's spelled out adds ALiBi
    twice, and `generate` fuses it.
    """
    return "sdpa" if getattr(config, "alibi", False) else "eager"


def adapt(model: Any, plug: Plug) -> bool:
    """Has every attention module of a model ask `plug`; False, and nothing done, if unknown here.

    It is known where each layer has one such module, and no other, as cross-attention would be.
    """
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _kind(child) in _KNOWN
    ]
    if not found or len(found) != int(model.config.num_hidden_layers):
        return False
    for layer, (parent, name, child) in enumerate(found):
        setattr(parent, name, _KNOWN[_kind(child)](child, plug, layer))
    for module in model.modules():
        if type(module).__name__ == "FalconLinear":
            # The same sums as a plain one's, and of those alone there are quicker and narrower.
            module.__class__ = nn.Linear
    if model.config.model_type != "mpt":
        # Else a mask as large as the square of each step's row is made, which nobody reads.
        # MPT's code works on it before, so there it must be.
        model.config._attn_implementation = plug.name
    return True


def _kind(module: nn.Module) -> str:
    kind = type(module)
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"


def _bert(own: Any, plug: Plug, layer: int) -> nn.Module:
    """Of families that attend as BERT once did: the product after attending is another module's."""
    products = own.query, own.key, own.value
    return Apart(plug, layer, products, nn.Identity(), width=int(own.attention_head_size))


def _bloom(own: Any, plug: Plug, layer: int) -> nn.Module:
    # Imported here, as below: a family's code is loaded for its own models alone.
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    seen = torch.ones((1, 2), device=own.dense.weight.device)
    # Of two tokens the second has its head's slope more than the first, which has none.
    slopes = Slopes(build_alibi_tensor(seen, own.num_heads, torch.float32)[:, 0, 1])
    heads, width = int(own.num_heads), int(own.head_dim)
    return Fused(own, plug, layer, kv_heads=heads, width=width, slopes=slopes)


def _falcon(own: Any, plug: Plug, layer: int) -> nn.Module:
    from transformers.models.falcon import modeling_falcon

    alone = 1 if own.multi_query else own.num_heads
    kv_heads = int(own.num_kv_heads if own.new_decoder_architecture else alone)
    width = int(own.head_dim)
    if not own.config.alibi:
        turn = modeling_falcon.apply_rotary_pos_emb
        return Fused(own, plug, layer, kv_heads=kv_heads, width=width, turn=turn)
    seen = torch.ones((1, 2), device=own.dense.weight.device)
    each = modeling_falcon.build_alibi_tensor(seen, own.num_heads, torch.float32)[:, 0, 1]
    slopes = Slopes(each, rounded=float(own.inv_norm_factor))
    return Fused(own, plug, layer, kv_heads=kv_heads, width=width, slopes=slopes)


def _gpt_1(own: Any, plug: Plug, layer: int) -> nn.Module:
    weights, biases = own.c_attn.weight.T.chunk(3), own.c_attn.bias.chunk(3)
    pairs = zip(weights, biases, strict=True)
    way = torch.contiguous_format
    products = [linear_of(weight.clone(memory_format=way), bias) for weight, bias in pairs]
    width = own.split_size // own.n_head
    return ApartInList(plug, layer, products, own.c_proj, width=width)


def _gpt_neo(own: Any, plug: Plug, layer: int) -> nn.Module:
    window = int(own.config.window_size) if own.attention_type == "local" else None
    width = int(own.head_dim)
    return Apart(plug, layer, _three(own), own.out_proj, width=width, scaling=1.0, window=window)


def _gpt_neox_japanese(own: Any, plug: Plug, layer: int) -> nn.Module:
    from transformers.models.gpt_neox_japanese.modeling_gpt_neox_japanese import (
        apply_rotary_pos_emb,
    )

    turned = int(own.rotary_ndims)

    def turn(
        query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rope on the first part of each head's width alone."""
        both = apply_rotary_pos_emb(query[..., :turned], key[..., :turned], cos, sin)
        rests = query[..., turned:], key[..., turned:]
        query, key = (torch.cat(parts, dim=-1) for parts in zip(both, rests, strict=True))
        return query, key

    heads, width = int(own.num_attention_heads), int(own.head_size)
    return FusedWithBias(own, plug, layer, kv_heads=heads, width=width, turn=turn)


def _mpt(own: Any, plug: Plug, layer: int) -> nn.Module:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    device = own.out_proj.weight.device
    # Of two tokens the first has its head's slope less than the second, which has none.
    slopes = Slopes(-build_mpt_alibi_tensor(own.n_heads, 2, device=device)[:, 0, 0])
    return Apart(
        plug,
        layer,
        [linear_of(third) for third in own.Wqkv.weight.chunk(3)],
        own.out_proj,
        width=int(own.head_dim),
        scaling=float(own.softmax_scale),
        slopes=slopes,
        most=own.clip_qkv,
    )


def _xglm(own: Any, plug: Plug, layer: int) -> nn.Module:
    width, scaling = int(own.head_dim), float(own.scaling)
    return Apart(plug, layer, _three(own), own.out_proj, width=width, scaling=scaling)


def _three(own: Any) -> Sequence[nn.Module]:
    return own.q_proj, own.k_proj, own.v_proj


_KNOWN: dict[str, Callable[[Any, Plug, int], nn.Module]] = {
    "modeling_bloom.BloomAttention": _bloom,
    "modeling_falcon.FalconAttention": _falcon,
    "modeling_git.GitSelfAttention": _bert,
    "modeling_gpt_neo.GPTNeoSelfAttention": _gpt_neo,
    "modeling_gpt_neox_japanese.GPTNeoXJapaneseAttention": _gpt_neox_japanese,
    "modeling_megatron_bert.MegatronBertSelfAttention": _bert,
    "modeling_mpt.MptAttention": _mpt,
    "modeling_openai.Attention": _gpt_1,
    "modeling_rembert.RemBertSelfAttention": _bert,
    "modeling_xglm.XGLMAttention": _xglm,
}
