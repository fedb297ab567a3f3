"""Quicker kernels under the model's own layers, where the machine has them.

A decode step is mostly reading weights for a few rows. oneDNN reads a weight that was laid
out for it beforehand about twice as fast as the plain matrix product does (fp32, x86).
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PACKED_FOR_ROWS = 8
"""The number of rows that the layout is chosen for; other numbers of rows work as well."""


class PackedLinear(nn.Module):
    """`nn.Linear` with its weight in oneDNN's own layout; the same sums in another order."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        ops: Any = torch.ops
        self._apply_packed: Any = ops.mkldnn._linear_pointwise
        self._packed: Any = ops.mkldnn._reorder_linear_weight(
            linear.weight.detach(), PACKED_FOR_ROWS
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """... x in_features -> ... x out_features."""
        return self._apply_packed(rows, self._packed, self.bias, "none", [], "")


class Int8Linear(nn.Module):
    """`nn.Linear` in torch's int8: a scale per output channel, inputs quantised as they come."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        ops: Any = torch.ops
        self._apply_packed: Any = ops.quantized.linear_dynamic
        self._packed: Any = ops.quantized.linear_prepack(_per_channel(linear), linear.bias)
        # Without VNNI the products are summed in 16 bits, which full inputs would overflow.
        self._reduce_range = not _has_vnni()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """... x in_features -> ... x out_features."""
        return self._apply_packed(rows, self._packed, self._reduce_range)


def _per_channel(linear: nn.Linear) -> torch.Tensor:
    weight = linear.weight.detach()
    scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127
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


def pack_linears(model: nn.Module) -> int:
    """Replaces every plain linear layer of a model by a packed one; returns how many."""
    return _replace(model, PackedLinear)


def quantise_linears(model: nn.Module) -> int:
    """Replaces every plain linear layer of a model by an int8 one; returns how many."""
    return _replace(model, Int8Linear)


def _replace(model: nn.Module, kind: Callable[[nn.Linear], nn.Module]) -> int:
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    with torch.inference_mode():
        for parent, name, child in found:
            setattr(parent, name, kind(child))
    return len(found)
