"""Decoder models of the common kind, computed with fewer and larger kernels.

    norm -> q, k, v in one product -> rope on q and k together -> attention -> o, residual
         -> norm -> gate and up in one product -> silu * up -> down, residual

Between its matrix products a decode step of a small model is a few hundred tiny kernels, each
of which costs more to start than to run. The sums are those of transformers' own layers;
loading compares the logits of the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding

from homesplit_engine.attention import LayerRows, Plug
from homesplit_engine.fast import FastModel, fast_model
from homesplit_engine.kernels import GatedUp, joined

_KINDS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
_MODELS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class Rotation:
    """Rope of one step's positions, for heads seen as two halves: a * cos + swapped(a) * sin."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """`cos` and `sin` as transformers makes them: 1 x tokens x width."""
        tokens, width = cos.shape[1:]
        low, high = sin[0].chunk(2, dim=-1)
        self._cos = cos.view(tokens, 1, 2, width // 2)
        self._sin = torch.stack((-low, high), dim=1).unsqueeze(1)

    def turned(self, heads: torch.Tensor) -> torch.Tensor:
        """tokens x heads x width -> the same."""
        halves = heads.unflatten(-1, (2, -1))
        return torch.addcmul(halves * self._cos, halves.flip(2), self._sin).flatten(2)


class LeanNorm(nn.Module):
    """Root-mean-square norm, as transformers computes it, in fewer kernels."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight: nn.Parameter = norm.weight
        self.eps = float(norm.variance_epsilon)
        self._eps = torch.full((), self.eps, device=norm.weight.device)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """... x width -> the same."""
        wide = rows.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=1 / rows.shape[-1]).rsqrt_()
        return (wide * scale).to(rows.dtype).mul_(self.weight)


class LeanLayer(nn.Module):
    """One decoder layer; takes over the weights of transformers' own."""

    def __init__(self, layer: Any, plug: Plug) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx = int(attention.layer_idx)
        self._plug = plug
        self.width = int(attention.head_dim)
        self.scaling = float(attention.scaling)
        self.window: int | None = _window(layer)
        self.heads = attention.q_proj.out_features // self.width
        self.kv_heads = attention.k_proj.out_features // self.width
        self.input_norm = LeanNorm(layer.input_layernorm)
        self.middle_norm = LeanNorm(layer.post_attention_layernorm)
        normed = hasattr(attention, "q_norm")
        self.q_norm = LeanNorm(attention.q_norm) if normed else None
        self.k_norm = LeanNorm(attention.k_norm) if normed else None
        self.qkv: nn.Module = joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o: nn.Module = attention.o_proj
        self.gate_up: nn.Module = GatedUp(mlp.gate_proj, mlp.up_proj)
        self.down: nn.Module = mlp.down_proj

    def forward(
        self, rows: torch.Tensor, rotation: Rotation, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """tokens x hidden -> the same, or only its rows `keep`."""
        attended = self._attended(self.input_norm(rows), rotation)
        if keep is not None:
            rows, attended = rows.index_select(0, keep), attended.index_select(0, keep)
            if len(rows) == 0:
                return rows
        rows = rows + self.o(attended)
        return rows + self.down(self.gate_up(self.middle_norm(rows)))

    def _attended(self, rows: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        heads, kv_heads = self.heads, self.kv_heads
        every = self.qkv(rows).view(-1, heads + 2 * kv_heads, self.width)
        both = every[:, : heads + kv_heads]
        if self.q_norm is not None and self.k_norm is not None:
            both = torch.cat((self.q_norm(both[:, :heads]), self.k_norm(both[:, heads:])), dim=1)
        both = rotation.turned(both)
        query, key, value = both[:, :heads], both[:, heads:], every[:, heads + kv_heads :]
        return self._plug.attend_rows(
            LayerRows(self.layer_idx, query, key, value, self.scaling, self.window)
        )


class Logits:
    """What a model returns, as far as it is used: `logits`, 1 x rows x vocabulary."""

    __slots__ = ("logits",)

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class LeanModel(nn.Module):
    """A whole causal model in lean layers; called as transformers' own is."""

    def __init__(self, model: Any, plug: Plug) -> None:
        super().__init__()
        self.embedding: nn.Parameter = model.model.embed_tokens.weight
        self.rotary: nn.Module = model.model.rotary_emb
        self.layers = nn.ModuleList(LeanLayer(layer, plug) for layer in model.model.layers)
        self.norm = LeanNorm(model.model.norm)
        self.head: nn.Module = model.lm_head
        self._vocab_size = int(model.lm_head.out_features)
        self._plug = plug
        self._fast: FastModel | None = None

    def ready(self) -> None:
        """To be called once the layers' kernels are what they will be."""
        self._fast = fast_model(self, self._plug)

    def forward(
        self,
        input_ids: torch.Tensor,
        *,
        position_ids: torch.Tensor,
        logits_to_keep: torch.Tensor | None = None,
        use_cache: bool = False,
    ) -> Logits:
        """1 x tokens -> logits of the rows `logits_to_keep` (ascending), else of all."""
        if use_cache:
            raise ValueError("a lean model keeps its KV in the engine's pool only")
        fast = self._fast
        if fast is not None and fast.takes(self._plug.step):
            return Logits(fast.logits(input_ids[0], position_ids, logits_to_keep)[None])
        rows = embedding(input_ids[0], self.embedding)
        rotation = Rotation(*self.rotary(rows, position_ids=position_ids))
        whole = logits_to_keep is None or len(logits_to_keep) == len(rows)
        keep = None if whole else logits_to_keep
        last = len(self.layers) - 1
        for at, layer in enumerate(self.layers):
            # Behind the last layer's attention only the rows that are sampled from matter.
            rows = layer(rows, rotation, keep if at == last else None)
        if len(rows) == 0:
            return Logits(rows.new_empty((1, 0, self._vocab_size)))
        return Logits(self.head(self.norm(rows))[None])


def make_lean(model: Any, plug: Plug) -> LeanModel | None:
    """The model in lean layers, which take over its weights; None if its kind is not known here."""
    if type(model).__name__ not in _MODELS:
        return None
    layers: Any = model.model.layers
    if any(type(layer).__name__ not in _KINDS for layer in layers):
        return None
    if any(layer.mlp.config.hidden_act != "silu" for layer in layers):
        return None
    if len({_sizes(layer.self_attn) for layer in layers}) != 1:
        return None
    return LeanModel(model, plug)


def _sizes(attention: Any) -> tuple[int, ...]:
    """Of one layer's heads: what is prepared for one layer is used for all, and by no bounds."""
    products = attention.q_proj, attention.k_proj, attention.v_proj
    return attention.head_dim, *(product.out_features for product in products)


def _window(layer: Any) -> int | None:
    if type(layer).__name__ == "MistralDecoderLayer":
        return getattr(layer.self_attn.config, "sliding_window", None)
    return getattr(layer.self_attn, "sliding_window", None)
