"""Loads a model that is to have int8 weights in its files' 16 bits: half of what float32 takes.

Matrices of layers that have an int8 form stay as they lie in the files until they are made int8;
all else is float32 from the start. A layer computes in float32 all the same, so what is compared
with transformers' own is what it would be in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from homesplit_engine.experts import may_be_int8

_HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}


def half_dtype(model_dir: Path) -> torch.dtype | None:
    """The 16-bit dtype of all matrices in a model's files; None where they have others."""
    found: set[str] = set()
    for path in model_dir.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            slices = [file.get_slice(name) for name in file.offset_keys()]
            found |= {part.get_dtype() for part in slices if len(part.get_shape()) > 1}
    return _HALVES.get(found.pop()) if len(found) == 1 else None


def narrow_class(config: Any, half: torch.dtype) -> Any:
    """The class of such a model, but that what may become int8 is `half` in one of float32."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        usual: Any = type(AutoModelForCausalLM.from_config(config))

    def begin(self: Any, *args: Any, **settings: Any) -> None:
        usual.__init__(self, *args, **settings)
        for module in filter(may_be_int8, self.modules()):
            for weight in module.parameters(recurse=False):
                # Files' tensors are loaded in the dtype of what they are put into.
                weight.data = weight.data.to(half if weight.dim() > 1 else weight.dtype)

    fields = {"__init__": begin, "__module__": usual.__module__}
    return type(usual.__name__, (usual,), fields)


@contextlib.contextmanager
def computed_wide() -> Generator[None]:
    """Each layer's weights are float32 while it computes, one layer at a time."""
    kept: dict[nn.Parameter, torch.Tensor] = {}

    def widen(module: nn.Module, _given: Any) -> None:
        for weight in module.parameters(recurse=False):
            if weight.dtype in _HALVES.values():
                kept[weight] = weight.data
                weight.data = weight.data.float()

    def narrow(module: nn.Module, _given: Any, _made: Any) -> None:
        for weight in module.parameters(recurse=False):
            if weight in kept:
                weight.data = kept.pop(weight)

    hooks = (
        register_module_forward_pre_hook(widen),
        register_module_forward_hook(narrow, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
