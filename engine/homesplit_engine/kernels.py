"""Quicker kernels under the model's own layers, where the machine has them.

A decode step is mostly reading weights for a few rows. oneDNN is quickest for several rows with
a weight laid out for it beforehand; for one row nothing beats reading the transposed weight
from front to end, so that copy is kept too where there is memory for it (fp32, x86).
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import silu

SMALLEST = 1e-30
"""Rows of zeros are not divided by zero."""
PACKED_FOR_ROWS = 8
"""The number of rows that the layout is chosen for; other numbers of rows work as well."""


class GatedUp(nn.Module):
    """silu(gate(x)) * up(x), both products in one."""

    def __init__(self, gate: nn.Linear, up: nn.Linear) -> None:
        super().__init__()
        self.joined = joined(gate, up)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """tokens x hidden -> tokens x intermediate."""
        return _gated(self.joined(rows))


class PackedLinear(nn.Module):
    """`nn.Linear` with its weight in oneDNN's own layout; the same sums in another order.

    `columns` keeps the transposed weight as well, for single rows.
    """

    def __init__(self, linear: nn.Linear, *, columns: bool) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        # torch declares `bias` a Parameter; a layer without one holds None.
        self.bias: Any = linear.bias
        ops: Any = torch.ops
        self._apply_packed: Any = ops.mkldnn._linear_pointwise.default
        self._apply_added: Any = ops.mkldnn._linear_pointwise.binary
        self._packed = _packed(linear.weight)
        self._columns = _columns(linear.weight) if columns else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """... x in_features -> ... x out_features."""
        if self._columns is not None and rows.numel() == self.in_features:
            out = torch.matmul(rows, self._columns)
            return out if self.bias is None else out.add_(self.bias)
        return self._apply_packed(rows, self._packed, self.bias, "none", [], "")

    def plus(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """`forward(rows) + other`, tokens x out_features, in one kernel."""
        if self._columns is not None and len(rows) == 1:
            out = torch.addmm(other, rows, self._columns)
            return out if self.bias is None else out.add_(self.bias)
        return self._apply_added(rows, other, self._packed, self.bias, "add")


class PackedGatedUp(nn.Module):
    """`GatedUp` by oneDNN, which applies silu and the product as it writes."""

    def __init__(self, gated: GatedUp, *, columns: bool) -> None:
        super().__init__()
        weight: torch.Tensor = gated.joined.weight
        bias: Any = gated.joined.bias
        self._half = len(weight) // 2
        ops: Any = torch.ops
        self._apply_packed: Any = ops.mkldnn._linear_pointwise.default
        self._apply_times: Any = ops.mkldnn._linear_pointwise.binary
        self._gate, self._up = _packed(weight[: self._half]), _packed(weight[self._half :])
        halves: Any = (None, None) if bias is None else bias.detach().chunk(2)
        self._gate_bias, self._up_bias = halves
        self._bias = bias
        self._columns = _columns(weight) if columns else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """tokens x hidden -> tokens x intermediate."""
        if self._columns is not None and len(rows) == 1:
            both = torch.mm(rows, self._columns)
            return _gated(both if self._bias is None else both.add_(self._bias))
        gate = self._apply_packed(rows, self._gate, self._gate_bias, "swish", [], "")
        return self._apply_times(rows, gate, self._up, self._up_bias, "mul")


def plus(linear: nn.Module, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`linear(rows) + other`."""
    return linear.plus(rows, other) if isinstance(linear, PackedLinear) else other + linear(rows)


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
    gate, up = both.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def _packed(weight: torch.Tensor) -> torch.Tensor:
    ops: Any = torch.ops
    return ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), PACKED_FOR_ROWS)


def _columns(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().t().contiguous()


class Int8Linear(nn.Module):
    """`nn.Linear` in torch's int8: a scale per output channel and one per row of the inputs.

    torch's kernel has one scale for all rows of a call, so that a row with a few very large
    inputs takes the others' precision, and an answer depends on what else is in the step. Each
    row is therefore brought to a largest input of 1 before, and back after; one more row that
    holds -1 and 1 keeps the kernel's scale the same in every call.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        ops: Any = torch.ops
        self._apply_packed: Any = ops.quantized.linear_dynamic.default
        self._packed: Any = ops.quantized.linear_prepack(_per_channel(linear), None)
        # torch declares `bias` a Parameter; a layer without one holds None.
        bias: Any = linear.bias
        self.bias: Any = None if bias is None else bias.detach()
        self._ends = torch.zeros(1, linear.in_features)
        self._ends[0, 0], self._ends[0, -1] = -1.0, 1.0
        self._few_ends: NDArray[np.float32] = self._ends[0].numpy()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """... x in_features -> ... x out_features."""
        flat = rows.reshape(-1, self.in_features)
        largest = flat.abs().amax(dim=-1, keepdim=True).clamp_(min=SMALLEST)
        even = torch.cat((flat / largest, self._ends))
        out = self._apply_packed(even, self._packed, False)[:-1].mul_(largest)
        if self.bias is not None:
            out.add_(self.bias)
        return out.view(*rows.shape[:-1], self.out_features)

    def few(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """The same for arrays, tokens x in_features, whose small kernels start more quickly."""
        largest = np.abs(rows).max(axis=-1, keepdims=True)
        np.maximum(largest, np.float32(SMALLEST), out=largest)
        even = np.empty((len(rows) + 1, self.in_features), np.float32)
        np.divide(rows, largest, out=even[:-1])
        even[-1] = self._few_ends
        out: NDArray[np.float32] = self._apply_packed(
            torch.from_numpy(even), self._packed, False
        ).numpy()[:-1]
        out *= largest
        if self.bias is not None:
            out += self.bias.numpy()
        return out


def _per_channel(linear: nn.Linear) -> torch.Tensor:
    """The weight with a scale per output channel.

    Without VNNI two products are summed in 16 bits: 255 x 127 x 2 would overflow them. 7 bits
    for the weights, which have a scale a channel, cost less than 7 bits for the inputs.
    """
    weight = linear.weight.detach()
    scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / (127 if _has_vnni() else 63)
    with warnings.catch_warnings():
        # Deprecated, but still the only way into the packed kernels.
        warnings.filterwarnings("ignore", message=".*quantize_per_channel.*")
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)


def _has_vnni() -> bool:
    cpu: Any = torch.cpu
    asks = getattr(cpu, "_is_vnni_supported", None)
    return bool(asks()) if asks is not None else False


def why_no_int8(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why int8 weights can't be had here, None when they can."""
    if device.type != "cpu":
        return f"int8 weights are computed on the CPU only, not on {device.type}"
    if dtype != torch.float32:
        return "int8 weights need the dtype float32 for everything else"
    engines: list[str] = torch.backends.quantized.supported_engines
    if not {"x86", "fbgemm", "qnnpack"} & set(engines):
        return "this build of torch has no int8 kernels"
    return None


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packing is known to help: fp32 on an x86 processor with oneDNN."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()
    )


def columns_fit(model: nn.Module) -> bool:
    """Whether a copy of the linear layers' weights takes at most a quarter of the free memory."""
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    needed = sum(linear.weight.numel() * linear.weight.element_size() for linear in linears)
    return needed <= psutil.virtual_memory().available // 4


def pack_linears(model: nn.Module, *, columns: bool) -> int:
    """Replaces every plain linear layer of a model by a packed one; returns how many."""
    gated = _replace(model, GatedUp, lambda found: PackedGatedUp(found, columns=columns))
    return gated + _replace(model, nn.Linear, lambda found: PackedLinear(found, columns=columns))


def quantise_linears(model: nn.Module) -> int:
    """Replaces every plain linear layer of a model by an int8 one; returns how many."""
    return _replace(model, nn.Linear, Int8Linear)


def _replace(model: nn.Module, old: type, new: Callable[[Any], nn.Module]) -> int:
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is old
    ]
    with torch.inference_mode():
        for parent, name, child in found:
            setattr(parent, name, new(child))
    return len(found)
