"""Decoder layers of the common kind, computed with fewer and larger kernels.

    norm -> q, k, v in one product -> rope on q and k together -> attention -> o, residual
         -> norm -> gate and up in one product -> silu * up -> down, residual

A decode step of a small model spends a third of its time between its matrix products. The
sums are those of transformers' own layer; loading compares the logits of the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from homesplit_engine.attention import Plug

_KINDS = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")


class Rope:
    """Cosines and signed sines of one step's positions, made once for all layers."""

    def __init__(self) -> None:
        self._sin: torch.Tensor | None = None
        self._made: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """1 x tokens x width each -> tokens x 1 x width each, the sine's first half negative."""
        if self._made is None or self._sin is not sin:
            low, high = sin[0].chunk(2, dim=-1)
            self._made = cos[0].unsqueeze(1), torch.cat((-low, high), dim=-1).unsqueeze(1)
            self._sin = sin
        return self._made


class LeanLayer(nn.Module):
    """One decoder layer; takes over the weights of transformers' own."""

    def __init__(self, layer: Any, plug: Plug, rope: Rope) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx = int(attention.layer_idx)
        self._plug = plug
        self._rope = rope
        self._width = int(attention.head_dim)
        self._scaling = float(attention.scaling)
        self._window: int | None = _window(layer)
        self._heads = attention.q_proj.out_features // self._width
        self._kv_heads = attention.k_proj.out_features // self._width
        self.input_norm: nn.Module = layer.input_layernorm
        self.middle_norm: nn.Module = layer.post_attention_layernorm
        self.q_norm: nn.Module | None = getattr(attention, "q_norm", None)
        self.k_norm: nn.Module | None = getattr(attention, "k_norm", None)
        self.qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o = attention.o_proj
        self.gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self.down = mlp.down_proj
        if hasattr(layer, "attention_type"):
            self.attention_type = layer.attention_type

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **_ignored: Any,
    ) -> torch.Tensor:
        """1 x tokens x hidden -> the same."""
        rows = hidden_states[0]
        rows = rows + self.o(self._attended(self.input_norm(rows), position_embeddings))
        gate, up = self.gate_up(self.middle_norm(rows)).chunk(2, dim=-1)
        return (rows + self.down(silu(gate) * up))[None]

    def _attended(
        self, rows: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        tokens, heads, kv_heads = rows.shape[0], self._heads, self._kv_heads
        every = self.qkv(rows).view(tokens, heads + 2 * kv_heads, self._width)
        both = every[:, : heads + kv_heads]
        if self.q_norm is not None and self.k_norm is not None:
            both = torch.cat((self.q_norm(both[:, :heads]), self.k_norm(both[:, heads:])), dim=1)
        cos, signed_sin = self._rope.of(*position_embeddings)
        half = self._width // 2
        swapped = torch.cat((both[..., half:], both[..., :half]), dim=-1)
        both = torch.addcmul(both * cos, swapped, signed_sin).transpose(0, 1)[None]
        out, _ = self._plug.attend(
            self,
            both[:, :heads],
            both[:, heads:],
            every[:, heads + kv_heads :].transpose(0, 1)[None],
            None,
            scaling=self._scaling,
            sliding_window=self._window,
        )
        return out.reshape(tokens, heads * self._width)


def make_lean(model: Any, plug: Plug) -> bool:
    """Replaces a model's decoder layers if all are of a kind known here; tells whether."""
    layers: Any = getattr(getattr(model, "model", None), "layers", None)
    if layers is None or any(type(layer).__name__ not in _KINDS for layer in layers):
        return False
    if any(layer.mlp.config.hidden_act != "silu" for layer in layers):
        return False
    rope = Rope()
    for at in range(len(layers)):
        layers[at] = LeanLayer(layers[at], plug, rope)
    return True


def _window(layer: Any) -> int | None:
    if type(layer).__name__ == "MistralDecoderLayer":
        return getattr(layer.self_attn.config, "sliding_window", None)
    return getattr(layer.self_attn, "sliding_window", None)


def _joined(*parts: nn.Linear) -> nn.Linear:
    """One linear layer whose output is that of the parts, one behind the other."""
    weight = torch.cat([part.weight.detach() for part in parts])
    # torch declares `bias` a Parameter; a layer without one holds None.
    biases: list[Any] = [part.bias for part in parts]
    biased = biases[0] is not None
    with torch.device("meta"):
        joined = nn.Linear(weight.shape[1], weight.shape[0], bias=biased)
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if biased:
        joined.bias = nn.Parameter(
            torch.cat([bias.detach() for bias in biases]), requires_grad=False
        )
    return joined
