"""A step on a CPU: the lean model's sums, compiled.

Between its products a step is some dozens of kernels a layer. For a few rows starting them is
what costs, for many reading and writing the rows once for each. Here they are three calls, on
memory that torch sees too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homesplit_engine.attention import Plug, Step
from homesplit_engine.compiled import rows as compiled
from homesplit_engine.compiled.answers import attend
from homesplit_engine.compiled.prompt import attend_prompt, can_attend_prompt
from homesplit_engine.kernels import Array, FastLinear, Int8Linear, gated

Words = NDArray[np.int64]

_PART_ROWS, _TILE_ROWS = 192, 12


class FastLayer:
    """`LeanLayer` on arrays."""

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
        self._input_norm = FastNorm(layer.input_norm)
        self._middle_norm = FastNorm(layer.middle_norm)
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

    def __call__(self, rows: Array, seen: Seen, step: Step, keep: Words | None) -> Array:
        """tokens x hidden, changed in place -> the same, or only its rows `keep`."""
        keys, values = step.pool.arrays[self._layer]
        for part in parts_of(len(rows)):
            every = self._qkv.of(self._input_norm(rows[part]))
            compiled.turn(
                every.reshape(len(every), -1, self._width),
                self._norms,
                self._norm_eps,
                seen.turns[part],
                self._scaling,
                seen.slots[part],
                keys,
                values,
                seen.asked[part],
            )
        if step.layer_done is not None:
            step.layer_done(self._layer)
        attended = seen.attended(keys, values, self._window).reshape(len(rows), -1)
        if keep is not None:
            rows, attended = rows[keep], attended[keep]
        for part in parts_of(len(rows)):
            some = rows[part]
            self._o.add_to(some, attended[part])
            self._down.add_to(some, gated(self._gate_up.of(self._middle_norm(some))))
        return rows


def parts_of(rows: int) -> list[slice]:
    """Rows in about equal parts of at most so many as the nearer caches hold what they become.

    Each but the last is a whole number of tiles.
    """
    tiles = -(-rows // _TILE_ROWS)
    count = max(-(-rows // _PART_ROWS), 1)
    ends = [tiles * number // count * _TILE_ROWS for number in range(count + 1)]
    return [slice(first, min(end, rows)) for first, end in pairwise(ends)]


class FastNorm:
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

    def __init__(
        self, cos: torch.Tensor, sin: torch.Tensor, step: Step, heads: tuple[int, int]
    ) -> None:
        """`cos` and `sin` as transformers makes them: 1 x tokens x width; `heads` x width."""
        self.turns: Array = torch.stack((cos[0], sin[0]), dim=1).float().numpy()
        # Of all layers in turn: large arrays made anew are cleared page by page.
        self.asked: Array = np.empty((len(self.turns), *heads), np.float32)
        self._attended = np.empty_like(self.asked)
        self.slots: Words = step.slots.numpy()
        self._prompts = [
            (slice(span.row, span.row + span.count), span.place.index(0, span.end).numpy())
            for span in step.spans
            if span.count > 1
        ]
        singles = [span for span in step.spans if span.count == 1]
        places = [span.place.index(0, span.end).numpy() for span in singles]
        self._rows = np.array([span.row for span in singles], np.int64)
        self._seen = np.concatenate([np.empty(0, np.int64), *places])
        self._counts = np.array([span.end for span in singles], np.int64)
        self._ends = np.cumsum(self._counts)

    def attended(self, keys: Array, values: Array, window: int) -> Array:
        """What `asked` finds: tokens x heads x width; K and V of the step are in their slots."""
        asked, out = self.asked, self._attended
        if not self._prompts:
            return self._singles(asked, keys, values, window)
        for rows, seen in self._prompts:
            threads = torch.get_num_threads()
            attend_prompt(asked[rows], keys, values, seen, window, threads=threads, out=out[rows])
        if len(self._rows):
            out[self._rows] = self._singles(asked[self._rows], keys, values, window)
        return out

    def _singles(self, asked: Array, keys: Array, values: Array, window: int) -> Array:
        return attend(
            asked,
            keys,
            values,
            self._seen,
            self._ends,
            self._counts,
            window,
            threads=torch.get_num_threads(),
        )


class FastModel:
    """The lean model, where every product is a compiled one."""

    def __init__(self, model: Any, plug: Plug) -> None:
        self._plug = plug
        self._embedding: Array = model.embedding.detach().numpy()
        self._rotary: Any = model.rotary
        self._layers = [FastLayer(layer) for layer in model.layers]
        self._heads = model.layers[0].heads, model.layers[0].width
        self._norm = FastNorm(model.norm)
        self._head: FastLinear | Int8Linear = model.head
        self._prompts = all(can_attend_prompt(layer.width) for layer in model.layers)

    def takes(self, step: Step | None) -> bool:
        """Whether a step is one of those this is made for."""
        if step is None or not step.pool.arrays:
            return False
        return self._prompts or all(span.count == 1 for span in step.spans)

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """tokens, 1 x tokens -> the rows `keep`, or all, x vocabulary."""
        step = self._plug.step
        assert step is not None
        rows: Array = self._embedding[token_ids.numpy()]
        cos, sin = self._rotary(torch.from_numpy(rows), position_ids=positions)
        seen = Seen(cos, sin, step, self._heads)
        last = len(self._layers) - 1
        for at, layer in enumerate(self._layers):
            # Behind the last layer's attention only the rows that are sampled from matter.
            kept = keep.numpy() if at == last and keep is not None else None
            rows = layer(rows, seen, step, kept)
        return torch.from_numpy(self._head.of(self._norm(rows)))


def fast_model(model: Any, plug: Plug) -> FastModel | None:
    """The lean model compiled, where its products are; None elsewhere."""
    products = [model.head]
    for layer in model.layers:
        products += [layer.qkv, layer.o, layer.gate_up.joined, layer.down]
    if not all(isinstance(product, FastLinear | Int8Linear) for product in products):
        return None
    return FastModel(model, plug)
