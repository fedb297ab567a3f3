"""Quicker kernels under the model's own layers, on a CPU.

A decode step is mostly reading weights for a few rows: its products read the weight as it lies.
Those of many rows want it laid out in panels; that copy is kept where there is memory for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import silu

from homesplit_engine.compiled.outer import WIDE
from homesplit_engine.compiled.pairs import QUICK
from homesplit_engine.compiled.panels import add_panel_product, can_panel, in_panels, panels_shape
from homesplit_engine.compiled.products import add_product
from homesplit_engine.compiled.rows import gate
from homesplit_engine.compiled.vectors import LANES
from homesplit_engine.experts import int8_of
from homesplit_engine.heap import give_freed_memory_back
from homesplit_engine.int8 import Int8AsItLies, Int8InPairs
from homesplit_engine.large_pages import LargePages

SMALLEST = 1e-30
"""Weights of zeros are not divided by zero."""
_BYTE_MOST, _SHORT_MOST, _INT_MOST = 127, 2**15 - 1, 2**31 - 1
FEW_ROWS = 0 if LANES == 16 else 16
"""Up to so many rows the product with the weight as it lies is at least as quick as with panels.

With vectors of 16 floats panels are the quicker for every number: one stream of memory to follow.
"""
TORCH_ROWS = 128
"""Without panels torch's own product is quicker for more than so many."""

LEFT_WIDE = 0.1
"""What may stay wide beside int8 weights, as a share of them: what chooses among experts, say."""

_ROWS_AT_ONCE = 1024

_HEADS = ("head", "lm_head")

Array = NDArray[np.float32]


class GatedUp(nn.Module):
    """silu(gate(x)) * up(x), both products in one."""

    def __init__(self, gate: nn.Linear, up: nn.Linear) -> None:
        super().__init__()
        self.joined: Any = joined(gate, up)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """tokens x hidden -> tokens x intermediate."""
        return _gated(self.joined(rows))


class CompiledLinear(nn.Module):
    """`nn.Linear` in float32 on a CPU, whose product is compiled here."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        # torch declares `bias` a Parameter; a layer without one holds None.
        self.bias: Any = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """... x in_features -> ... x out_features."""
        flat = rows.detach().reshape(-1, self.in_features).contiguous().numpy()
        return torch.from_numpy(self.of(flat)).view(*rows.shape[:-1], self.out_features)

    def of(self, rows: Array) -> Array:
        """tokens x in_features -> tokens x out_features."""
        out = _started(len(rows), self.out_features, self.bias)
        self._add(out, rows)
        return out

    def add_to(self, out: Array, rows: Array) -> None:
        """`out += of(rows)`."""
        if self.bias is not None:
            out += self.bias.detach().numpy()
        self._add(out, rows)

    def _add(self, out: Array, rows: Array) -> None:
        """`out += rows @ weight.T`."""
        raise NotImplementedError


class FastLinear(CompiledLinear):
    """`nn.Linear` in float32 on a CPU; the same sums in another order.

    The weight moves into `memory`, also for others that use it: the embedding may be the head.
    """

    def __init__(self, linear: nn.Linear, *, copy: bool, memory: LargePages) -> None:
        super().__init__(linear)
        self.weight = linear.weight
        self._plain: Array = memory.copy_of(linear.weight.detach().numpy())
        linear.weight.data = torch.from_numpy(self._plain)
        laid_out = copy and can_panel(self.in_features)
        shape = panels_shape(*self._plain.shape)
        panels = memory.empty(shape, np.float32) if laid_out else None
        self._panels = in_panels(self._plain, panels) if laid_out else None

    def _add(self, out: Array, rows: Array) -> None:
        threads = torch.get_num_threads()
        if self._panels is not None and len(rows) > FEW_ROWS:
            add_panel_product(rows, self._panels, out, threads=threads)
        elif len(rows) > TORCH_ROWS:
            # By torch, which keeps to its number of threads.
            torch.from_numpy(out).addmm_(torch.from_numpy(rows), self.weight.detach().T)
        else:
            add_product(rows, self._plain, out, threads=threads)


def joined(*parts: nn.Linear) -> nn.Linear:
    """One linear layer whose output is that of the parts, one behind the other."""
    weight = torch.cat([part.weight.detach() for part in parts])
    # torch declares `bias` a Parameter; a layer without one holds None.
    biases: list[Any] = [part.bias for part in parts]
    biased = biases[0] is not None
    with torch.device("meta"):
        whole = nn.Linear(weight.shape[1], weight.shape[0], bias=biased)
    whole.weight = nn.Parameter(weight, requires_grad=False)
    if biased:
        whole.bias = nn.Parameter(
            torch.cat([bias.detach() for bias in biases]), requires_grad=False
        )
    return whole


def _gated(both: torch.Tensor) -> torch.Tensor:
    if both.dtype != torch.float32 or both.device.type != "cpu":
        first, second = both.chunk(2, dim=-1)
        return silu(first).mul_(second)
    return torch.from_numpy(gated(both.detach().numpy()))


def gated(both: Array) -> Array:
    """silu(first half) * second half of each row."""
    half = both.shape[1] // 2
    out = np.empty((len(both), half), np.float32)
    gate(both, np.empty(-(-half // WIDE) * WIDE, np.float32), out)
    return out


def _started(rows: int, width: int, bias: Any) -> Array:
    if bias is None:
        return np.zeros((rows, width), np.float32)
    out = np.empty((rows, width), np.float32)
    out[:] = bias.detach().numpy()
    return out


class Int8Linear(CompiledLinear):
    """`nn.Linear` with weights of 8 bits, a scale per output, and inputs of up to 16, one per row.

    The inputs have as many levels as their sums of products leave room for in 32 bits, so that
    every sum is exact: a row's answer is the same to the last bit whatever rows are beside it.
    Where whole numbers are no quicker than floats, so much holds for up to INT8_ROWS rows, see
    `Int8AsItLies`.
    """

    def __init__(
        self, linear: nn.Linear, *, copy: bool, memory: LargePages, quick: bool = QUICK
    ) -> None:
        super().__init__(linear)
        self._levels = np.float32(min(_SHORT_MOST, _INT_MOST // (_BYTE_MOST * self.in_features)))
        whole = np.empty(linear.weight.shape, np.int8)
        scales = np.empty(self.out_features, np.float32)
        for first in range(0, self.out_features, _ROWS_AT_ONCE):
            # The layer may be of 16 bits: all of it is never there in float32.
            rows = slice(first, first + _ROWS_AT_ONCE)
            weight: Array = linear.weight.detach()[rows].float().numpy()
            largest = np.maximum(np.abs(weight).max(axis=1), np.float32(SMALLEST))
            scales[rows] = largest / _BYTE_MOST
            whole[rows] = np.rint(weight / scales[rows, None])
        self._weight: Int8InPairs | Int8AsItLies = (
            Int8InPairs(whole, scales, memory)
            if quick
            else Int8AsItLies(whole, scales, copy=copy, memory=memory)
        )

    def _add(self, out: Array, rows: Array) -> None:
        self._weight.add_product(rows, self._levels, out)


def why_no_int8(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why int8 weights can't be had here, None when they can."""
    if device.type != "cpu":
        return f"int8 weights are computed on the CPU only, not on {device.type}"
    if dtype != torch.float32:
        return "int8 weights need the dtype float32 for everything else"
    return None


def can_hasten(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the compiled products are for such a model: fp32 on a CPU."""
    return device.type == "cpu" and dtype == torch.float32


def copy_fits(model: nn.Module, *, int8: bool = False) -> bool:
    """Whether a copy of the layers' weights takes at most a quarter of the free memory."""
    linears = [module.weight for module in model.modules() if type(module) is nn.Linear]
    needed = sum(_matrices(model).values()) if int8 else sum(weight.nbytes for weight in linears)
    return needed <= psutil.virtual_memory().available // 4


def hasten_linears(model: nn.Module, *, copy: bool) -> int:
    """Replaces every plain linear layer of a model by a fast one; returns how many.

    With `copy` the weights are kept in panels too, but for those of the model's head: of a prompt
    it sees one row.
    """
    memory = LargePages()

    def fast(child: nn.Module, copy: bool) -> nn.Module | None:
        plain = type(child) is nn.Linear
        return FastLinear(child, copy=copy, memory=memory) if plain else None

    return _replace(model, fast, copy=copy)


def quantise_linears(model: nn.Module, *, copy: bool) -> int:
    """Replaces every layer of a model that has an int8 form; returns how many.

    `copy` as in `hasten_linears`.
    """
    memory = LargePages()

    def narrow(child: nn.Module, copy: bool) -> nn.Module | None:
        # What the layer before took: there may be no room for all of them in both forms.
        give_freed_memory_back()
        return int8_of(child, lambda linear: Int8Linear(linear, copy=copy, memory=memory))

    return _replace(model, narrow, copy=copy)


def left_wide(model: nn.Module) -> str | None:
    """The kinds of layers that `quantise_linears` left as they were, unless these weigh little."""
    left = _matrices(model)
    done = [module for module in model.modules() if isinstance(module, Int8Linear)]
    weights = sum(module.in_features * module.out_features for module in done)
    return ", ".join(sorted(left)) if sum(left.values()) > LEFT_WIDE * weights else None


def _matrices(model: nn.Module) -> dict[str, int]:
    """By kind of layer: its weights in matrices, without those of tables that are looked up."""
    found: dict[str, int] = {}
    for module in model.modules():
        if module is not model and not isinstance(module, nn.Embedding):
            own = [one for one in module.parameters(recurse=False) if one.dim() > 1]
            if own:
                kind = type(module).__name__
                found[kind] = found.get(kind, 0) + sum(one.numel() for one in own)
    return found


def _replace(
    model: nn.Module, new: Callable[[nn.Module, bool], nn.Module | None], *, copy: bool
) -> int:
    """Puts what `new` makes of a layer in its place; returns how often it made something."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
    ]
    replaced = 0
    found.reverse()
    with torch.inference_mode():
        while found:
            # Taken out, so that the weights of what is replaced are given back at once.
            parent, name, child = found.pop()
            made = new(child, copy and name not in _HEADS)
            del child
            if made is not None:
                setattr(parent, name, made)
                replaced += 1
    return replaced
