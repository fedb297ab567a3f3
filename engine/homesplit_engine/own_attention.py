"""Families whose attention asks no interface of transformers: BLOOM, Falcon, GPT-Neo, MPT, XGLM.

In place of each such module comes one that has its projections, computes what it computes before
and after attending, and asks the plug between. Loading compares the logits of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from homesplit_engine.attention import Plug
from homesplit_engine.experts import linear_of

_Turn = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class Apart(nn.Module):
    """Query, key and value from a product each, as in GPT-Neo and XGLM."""

    def __init__(
        self,
        own: Any,
        plug: Plug,
        products: Sequence[nn.Module],
        *,
        layer: int,
        scaling: float,
        window: int | None = None,
        slopes: torch.Tensor | None = None,
        most: float | None = None,
    ) -> None:
        """`slopes` are those of ALiBi; no query, key or value is larger than `most`."""
        super().__init__()
        self.layer_idx = layer
        self._plug = plug
        self._width = int(own.head_dim)
        self._asks: dict[str, Any] = {
            "scaling": scaling,
            "sliding_window": window,
            "slopes": slopes,
        }
        self._most = most
        self.q_proj, self.k_proj, self.v_proj = products
        self.out_proj: nn.Module = own.out_proj

    def forward(self, hidden_states: torch.Tensor, **_ignored: Any) -> tuple[torch.Tensor, None]:
        """1 x tokens x hidden -> the same."""
        products = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (self._heads(product(hidden_states)) for product in products)
        out, _ = self._plug.attend(self, query, key, value, None, **self._asks)
        return self.out_proj(out.flatten(2)), None

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        if self._most:
            rows = rows.clamp(-self._most, self._most)
        return rows.unflatten(-1, (-1, self._width)).transpose(1, 2)


class Fused(nn.Module):
    """All three from one product: of each KV head its queries, its key and its value."""

    def __init__(
        self,
        own: Any,
        plug: Plug,
        *,
        kv_heads: int,
        turn: _Turn | None = None,
        slopes: torch.Tensor | None = None,
    ) -> None:
        """`turn` puts rope on queries and keys, as Falcon's; `slopes` are those of ALiBi."""
        super().__init__()
        self.layer_idx = int(own.layer_idx)
        self._plug = plug
        self._width = int(own.head_dim)
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
    ) -> tuple[torch.Tensor, None]:
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


def adapt(model: Any, plug: Plug) -> bool:
    """Has every attention module of a model ask `plug`; False, and nothing done, if unknown here.

    It is known where each layer has one such module, and no other, as cross-attention would be.
    """
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child).__name__ in _KNOWN
    ]
    if not found or len(found) != int(model.config.num_hidden_layers):
        return False
    for parent, name, child in found:
        setattr(parent, name, _KNOWN[type(child).__name__](child, plug))
    for module in model.modules():
        if type(module).__name__ == "FalconLinear":
            # The same sums as a plain one's, and of those alone there are quicker and narrower.
            module.__class__ = nn.Linear
    if model.config.model_type != "mpt":
        # Else a mask as large as the square of each step's row is made, which nobody reads.
        # MPT's code works on it before, so there it must be.
        model.config._attn_implementation = plug.name
    return True


def _bloom(own: Any, plug: Plug) -> nn.Module:
    # Imported here, as below: a family's code is loaded for its own models alone.
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    seen = torch.ones((1, 2), device=own.dense.weight.device)
    # Of two tokens the second has its head's slope more than the first, which has none.
    slopes = build_alibi_tensor(seen, own.num_heads, torch.float32)[:, 0, 1]
    return Fused(own, plug, kv_heads=own.num_heads, slopes=slopes)


def _falcon(own: Any, plug: Plug) -> nn.Module:
    from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb

    alone = 1 if own.multi_query else own.num_heads
    kv_heads = own.num_kv_heads if own.new_decoder_architecture else alone
    return Fused(own, plug, kv_heads=int(kv_heads), turn=apply_rotary_pos_emb)


def _gpt_neo(own: Any, plug: Plug) -> nn.Module:
    window = int(own.config.window_size) if own.attention_type == "local" else None
    products = (own.q_proj, own.k_proj, own.v_proj)
    return Apart(own, plug, products, layer=int(own.layer_id), scaling=1.0, window=window)


def _mpt(own: Any, plug: Plug) -> nn.Module:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    device = own.out_proj.weight.device
    # Of two tokens the first has its head's slope less than the second, which has none.
    slopes = -build_mpt_alibi_tensor(own.n_heads, 2, device=device)[:, 0, 0]
    return Apart(
        own,
        plug,
        [linear_of(third) for third in own.Wqkv.weight.chunk(3)],
        layer=int(own.layer_idx),
        scaling=float(own.softmax_scale),
        slopes=slopes,
        most=own.clip_qkv,
    )


def _xglm(own: Any, plug: Plug) -> nn.Module:
    products = (own.q_proj, own.k_proj, own.v_proj)
    return Apart(own, plug, products, layer=int(own.layer_idx), scaling=float(own.scaling))


_KNOWN: dict[str, Callable[[Any, Plug], nn.Module]] = {
    "BloomAttention": _bloom,
    "FalconAttention": _falcon,
    "GPTNeoSelfAttention": _gpt_neo,
    "MptAttention": _mpt,
    "XGLMAttention": _xglm,
}
