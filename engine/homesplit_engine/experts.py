"""Weights of 8 bits for what is no plain linear layer: a mixture's experts, GPT-2's layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Quantise = Callable[[nn.Linear], nn.Module]


class Int8Experts(nn.Module):
    """One layer's experts, chosen and weighed as by transformers' own, one after another."""

    def __init__(self, experts: Any, quantise: Quantise) -> None:
        """Takes the weights out of `experts`, which keeps its way of gating."""
        super().__init__()
        self._gated: Callable[[torch.Tensor], torch.Tensor] = experts._apply_gate
        self.gate_up, self.down = (
            nn.ModuleList(quantise(one) for one in _linears(experts, name))
            for name in ("gate_up_proj", "down_proj")
        )
        experts.gate_up_proj = experts.down_proj = None

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """tokens x hidden -> the same."""
        out = torch.zeros_like(hidden_states)
        for number, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            rows, places = torch.where(top_k_index == number)
            if len(rows):
                said = down(self._gated(gate_up(hidden_states[rows])))
                out.index_add_(0, rows, said * top_k_weights[rows, places, None])
        return out


def may_be_int8(module: Any) -> bool:
    """Whether `int8_of` takes such layers, as transformers makes them or as we change them."""
    return (
        isinstance(module, nn.Linear)
        or type(module).__name__ == "Conv1D"
        or bool(getattr(module, "has_gate", False))
    )


def int8_of(module: Any, quantise: Quantise) -> nn.Module | None:
    """What takes the module's place; None where its weights stay as they are."""
    if type(module) is nn.Linear:
        return quantise(module)
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return quantise(linear_of(module.weight.T.contiguous(), module.bias))
    usual = getattr(module, "has_gate", False) and not (
        getattr(module, "has_post_expert_norm", False)
    )
    return Int8Experts(module, quantise) if usual else None


def _linears(experts: Any, name: str) -> Iterator[nn.Linear]:
    """One product of each expert, whose weights may lie the other way round."""
    biases = getattr(experts, f"{name}_bias") if experts.has_bias else itertools.repeat(None)
    for weight, bias in zip(getattr(experts, name), biases, strict=False):
        yield linear_of(weight.T.contiguous() if experts.is_transposed else weight, bias)


def linear_of(weight: torch.Tensor, bias: Any = None) -> nn.Linear:
    """A linear layer of these weights, out_features x in_features; no copy is made."""
    with torch.device("meta"):
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made
