"""A CUDA device without one: tensors with shapes, dtypes and a device, but no values.

torch raises when one operation is given tensors of two devices, and when Python asks for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda", 0)


class FakeDeviceMixed(Exception):
    """An operation under watch touched memory that is not the device's."""


@contextmanager
def fake_cuda(*, values: bool = False) -> Generator[Callable[[], AbstractContextManager[Any]]]:
    """Every tensor made inside has no values; those on a device may not meet those of another.

    With `values` Python is given a one for each value that it asks for, else it gets an error.
    Yields what watches that nothing is copied between devices either: a recorded step may not.
    """
    # Small constants would be computed for real as well, also those on the device.
    no_constants = mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1)
    with no_constants, fake_tensor.FakeTensorMode(), _Spelled(values), torch.inference_mode():
        yield _Watched


def moved(model: nn.Module) -> None:
    """What `model.to("cuda")` does, inside `fake_cuda`: parameters and buffers, nothing else."""
    made: dict[int, Any] = {}

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)

    for module in model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            fresh = nn.Parameter(there(tensor), requires_grad=False)
            module.register_parameter(name, made.setdefault(id(tensor), fresh))
        for name, tensor in module.named_buffers(recurse=False):
            setattr(module, name, made.setdefault(id(tensor), there(tensor)))


class _Spelled(TorchFunctionMode):
    """A torch that was built without CUDA refuses these ways to say it, but not what they mean."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self._values = values

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__getitem__ and args[0].device.type != "cpu":
            return _item(args[0], args[1])
        if func is torch.Tensor.__setitem__ and args[0].device.type != "cpu":
            return torch.ops.aten.index_put_(args[0], [args[1]], args[2])
        if func is torch.Tensor.__invert__:
            return torch.bitwise_not(args[0])
        if func is torch.Tensor.copy_:
            return torch.ops.aten.copy_(*args)
        if self._values and func in _VALUES:
            return _VALUES[func](args[0])
        return func(*args, **(kwargs or {}))


_VALUES: dict[Any, Callable[[torch.Tensor], Any]] = {
    torch.Tensor.__int__: lambda _: 1,
    torch.Tensor.__float__: lambda _: 1.0,
    torch.Tensor.item: lambda _: 1,
    torch.Tensor.unique: lambda tensor: (tensor, torch.ones_like(tensor)),
}


class _Watched(TorchDispatchMode):
    """A number that lies with the CPU is passed by value and may take part."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves((args, kwargs, made)):
            if isinstance(one, torch.Tensor) and one.device != DEVICE and one.dim():
                raise FakeDeviceMixed(f"{func}: {tuple(one.shape)} on {one.device}")
        return made


def _item(tensor: torch.Tensor, key: Any) -> torch.Tensor:
    keys: list[Any] = list(key) if isinstance(key, tuple) else [key]
    if any(one is Ellipsis for one in keys):
        at = next(n for n, one in enumerate(keys) if one is Ellipsis)
        taken = sum(one is not None for one in keys) - 1
        keys[at : at + 1] = [slice(None)] * (tensor.dim() - taken)
    dimension = 0
    indices: dict[int, torch.Tensor] = {}
    for one in keys:
        if one is None:
            tensor = tensor.unsqueeze(dimension)
        elif isinstance(one, int):
            tensor = tensor.select(dimension, one)
            continue
        elif isinstance(one, slice):
            tensor = torch.ops.aten.slice(tensor, dimension, one.start, one.stop, one.step or 1)
        else:
            indices[dimension] = one
        dimension += 1
    if indices:
        every = [indices.get(n) for n in range(max(indices) + 1)]
        tensor = torch.ops.aten.index(tensor, every)
    return tensor
