"""A step that gives a few requests one token each, on a CPU: the lean model's sums, compiled.

Between its products such a step is some dozens of tiny kernels a layer, and what they cost is
starting them, not running them. Here they are three calls, on memory that torch sees too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homesplit_engine.attention import Plug, Step
from homesplit_engine.compiled import rows as compiled
from homesplit_engine.kernels import Array, FastLinear, Int8Linear, gated

MOST_ROWS = 64
"""Steps of more rows go torch's way."""


class FewLayer:
    """`LeanLayer` on arrays, for rows that are each a sequence's only new one."""

    __slots__ = (
        "_down",
        "_gate_up",
        "_heads",
        "_input_norm",
        "_layer",
        "_middle_norm",
        "_norm_eps",
        "_norms",
        "_o",
        "_qkv",
        "_scaling",
        "_width",
        "_window",
    )

    def __init__(self, layer: Any) -> None:
        self._layer: int = layer.layer_idx
        self._heads: int = layer.heads
        self._width: int = layer.width
        self._scaling = np.float32(layer.scaling)
        self._window: int = layer.window or 0
        self._input_norm = FewNorm(layer.input_norm)
        self._middle_norm = FewNorm(layer.middle_norm)
        self._norms = np.empty((0, layer.width), np.float32)
        self._norm_eps = np.float32(0)
        if layer.q_norm is not None and layer.k_norm is not None:
            pair = (layer.q_norm.weight, layer.k_norm.weight)
            self._norms = np.stack([weight.detach().numpy() for weight in pair])
            self._norm_eps = np.float32(layer.q_norm.eps)
        self._qkv: FastLinear | Int8Linear = layer.qkv
        self._o: FastLinear | Int8Linear = layer.o
        self._gate_up: FastLinear | Int8Linear = layer.gate_up.joined
        self._down: FastLinear | Int8Linear = layer.down

    def __call__(self, rows: Array, seen: Seen, step: Step) -> None:
        """tokens x hidden, changed in place."""
        keys, values = step.pool.arrays[self._layer]
        every = self._qkv.of(self._input_norm(rows)).reshape(len(rows), -1, self._width)
        asked = np.empty((len(rows), self._heads, self._width), np.float32)
        compiled.turn(
            every,
            self._norms,
            self._norm_eps,
            seen.turns,
            self._scaling,
            seen.slots,
            keys,
            values,
            asked,
        )
        if step.layer_done is not None:
            step.layer_done(self._layer)
        attended = seen.attended(asked, keys, values, self._window)
        self._o.add_to(rows, attended.reshape(len(rows), -1))
        self._down.add_to(rows, gated(self._gate_up.of(self._middle_norm(rows))))


class FewNorm:
    """`LeanNorm` on arrays."""

    __slots__ = ("_eps", "_weight")

    def __init__(self, norm: Any) -> None:
        self._weight: Array = norm.weight.detach().numpy()
        self._eps = np.float32(norm.eps)

    def __call__(self, rows: Array) -> Array:
        """tokens x width -> the same."""
        normed = np.empty_like(rows)
        compiled.norm(rows, self._weight, self._eps, normed)
        return normed


class Seen:
    """Of a step's rows: their rope, their slots, and the slots of what they see."""

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, step: Step) -> None:
        """`cos` and `sin` as transformers makes them: 1 x tokens x width."""
        self.turns: Array = torch.cat((cos, sin)).float().numpy()
        self.slots: NDArray[np.int64] = step.slots.numpy()
        places = [span.place.index(0, span.end).numpy() for span in step.spans]
        self._seen = np.concatenate(places)
        self._counts = np.array([span.end for span in step.spans], np.int64)
        self._ends = np.cumsum(self._counts)

    def attended(self, asked: Array, keys: Array, values: Array, window: int) -> Array:
        """tokens x heads x width -> the same; K and V of the step are in their slots."""
        return compiled.attend(
            asked,
            keys,
            values,
            self._seen,
            self._ends,
            self._counts,
            window,
            threads=torch.get_num_threads(),
        )


class FewModel:
    """The lean model for steps whose every row is a sequence's only new one."""

    def __init__(self, model: Any, plug: Plug) -> None:
        self._plug = plug
        self._embedding: Array = model.embedding.detach().numpy()
        self._rotary: Any = model.rotary
        self._layers = [FewLayer(layer) for layer in model.layers]
        self._norm = FewNorm(model.norm)
        self._head: FastLinear | Int8Linear = model.head

    def takes(self, step: Step | None, rows: int) -> bool:
        """Whether a step of so many rows is one of those this is made for."""
        if step is None or rows > MOST_ROWS or len(step.spans) != rows:
            return False
        return bool(step.pool.arrays)

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """tokens, 1 x tokens -> the rows `keep`, or all, x vocabulary."""
        step = self._plug.step
        assert step is not None
        rows: Array = self._embedding[token_ids.numpy()]
        cos, sin = self._rotary(torch.from_numpy(rows), position_ids=positions)
        seen = Seen(cos, sin, step)
        for layer in self._layers:
            layer(rows, seen, step)
        kept = rows if keep is None else rows[keep.numpy()]
        return torch.from_numpy(self._head.of(self._norm(kept)))


def few_model(model: Any, plug: Plug) -> FewModel | None:
    """The lean model for few rows, where its products are compiled ones; None elsewhere."""
    products = [model.head]
    for layer in model.layers:
        products += [layer.qkv, layer.o, layer.gate_up.joined, layer.down]
    if not all(isinstance(product, FastLinear | Int8Linear) for product in products):
        return None
    return FewModel(model, plug)
