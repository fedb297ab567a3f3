"""A step that gives a few requests one token each, on a CPU: the lean model's sums, in numpy.

Between its products such a step is some dozens of tiny kernels a layer, and what they cost is
starting them, not running them. numpy starts one in a third of the time that torch takes, on
memory that both see; the products and the attention stay torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import silu

from homesplit_engine.attention import Plug, Step
from homesplit_engine.kernels import GatedUp, Int8Linear

MOST_ROWS = 16
"""From so many rows on torch's kernels are no slower."""

Array = NDArray[np.float32]


class FewNorm:
    """`LeanNorm` on arrays."""

    __slots__ = ("_eps", "_weight")

    def __init__(self, norm: Any) -> None:
        self._weight: Array = norm.weight.detach().numpy()
        self._eps = float(norm.eps)

    def __call__(self, rows: Array) -> Array:
        """... x width -> the same."""
        if rows.shape[0] == 1 and rows.ndim == 2:
            row = rows[0]
            scale = (float(row.dot(row)) / row.shape[0] + self._eps) ** -0.5
            normed = rows * self._weight
            normed *= np.float32(scale)
            return normed
        squares = np.einsum("...i,...i->...", rows, rows)
        squares /= rows.shape[-1]
        squares += self._eps
        np.sqrt(squares, out=squares)
        normed = rows / squares[..., None]
        normed *= self._weight
        return normed


class FewLayer:
    """`LeanLayer` on arrays, for rows that are each a sequence's only new one."""

    __slots__ = (
        "_both",
        "_down",
        "_gate_up",
        "_heads",
        "_input_norm",
        "_k_norm",
        "_kv_heads",
        "_layer",
        "_middle_norm",
        "_o",
        "_plug",
        "_q_norm",
        "_qkv",
        "_width",
        "_window",
    )

    def __init__(self, layer: Any, plug: Plug) -> None:
        self._plug = plug
        self._layer: int = layer.layer_idx
        self._heads: int = layer.heads
        self._kv_heads: int = layer.kv_heads
        self._both = self._heads + self._kv_heads
        self._width: int = layer.width
        self._window: int | None = layer.window
        self._input_norm = FewNorm(layer.input_norm)
        self._middle_norm = FewNorm(layer.middle_norm)
        self._q_norm = None if layer.q_norm is None else FewNorm(layer.q_norm)
        self._k_norm = None if layer.k_norm is None else FewNorm(layer.k_norm)
        self._qkv = few_product(layer.qkv)
        self._o = few_product(layer.o)
        self._gate_up = few_product(layer.gate_up)
        self._down = few_product(layer.down)

    def __call__(self, rows: Array, turn: Turn, step: Step) -> None:
        """tokens x hidden, changed in place."""
        count, heads, both, width = len(rows), self._heads, self._both, self._width
        every = self._qkv(self._input_norm(rows)).reshape(count, -1, width)
        asked = every[:, :both]
        if self._q_norm is not None and self._k_norm is not None:
            every[:, :heads] = self._q_norm(every[:, :heads])
            every[:, heads:both] = self._k_norm(every[:, heads:both])
        turned = turn(asked)
        step.pool.store_few(self._layer, turn.slots, turned[:, heads:], every[:, both:])
        if step.layer_done is not None:
            step.layer_done(self._layer)
        attended = np.empty((count, heads * width), np.float32)
        self._plug.attend_few(
            self._layer,
            torch.from_numpy(turned)[:, :heads].view(count, self._kv_heads, -1, width),
            torch.from_numpy(attended).view(count, self._kv_heads, -1, width),
            self._window,
        )
        rows += self._o(attended)
        rows += self._down(self._gate_up(self._middle_norm(rows)))


class Turn:
    """Rope of one step's positions, and with it the queries' scaling; and the rows' slots."""

    __slots__ = ("_cos", "_shape", "_sin", "slots")

    def __init__(
        self,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        heads: int,
        kv_heads: int,
        scaling: float,
        slots: NDArray[np.int64],
    ) -> None:
        """`cos` and `sin` as transformers makes them: 1 x tokens x width."""
        count, width = cos.shape[1:]
        self._shape = (count, heads + kv_heads, 2, width // 2)
        scales = np.ones((heads + kv_heads, 1, 1), np.float32)
        scales[:heads] = scaling
        turns: Array = cos[0].float().numpy().reshape(count, 1, 2, -1)
        crossed: Array = sin[0].float().numpy().reshape(count, 1, 2, -1).copy()
        crossed[:, :, 0] *= -1.0
        self._cos: Array = turns * scales
        self._sin: Array = crossed * scales
        self.slots = slots

    def __call__(self, heads: Array) -> Array:
        """tokens x heads x width -> the same: a * cos + swapped(a) * sin."""
        halves = heads.reshape(self._shape)
        turned = halves * self._cos
        turned += halves[:, :, ::-1] * self._sin
        return turned.reshape(heads.shape)


class FewModel:
    """The lean model for steps whose every row is a sequence's only new one."""

    def __init__(self, model: Any, plug: Plug) -> None:
        self._plug = plug
        self._embedding: Array = model.embedding.detach().numpy()
        self._rotary: Any = model.rotary
        self._layers = [FewLayer(layer, plug) for layer in model.layers]
        self._norm = FewNorm(model.norm)
        self._head = few_product(model.head)
        first = model.layers[0]
        self._heads: int = first.heads
        self._kv_heads: int = first.kv_heads
        self._scaling: float = first.scaling

    def takes(self, step: Step | None, rows: int) -> bool:
        """Whether a step of so many rows is one of those this is made for."""
        return step is not None and rows <= MOST_ROWS and len(step.spans) == rows and step.pool.few

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """tokens, 1 x tokens -> the rows `keep`, or all, x vocabulary."""
        step = self._plug.step
        assert step is not None
        with np.errstate(all="ignore"):
            # What is no number is found in the logits.
            rows = self._through(self._embedding[token_ids.numpy()], positions, step)
            kept = rows if keep is None else rows[keep.numpy()]
            return torch.from_numpy(self._head(self._norm(kept)))

    def _through(self, rows: Array, positions: torch.Tensor, step: Step) -> Array:
        cos, sin = self._rotary(torch.from_numpy(rows), position_ids=positions)
        turn = Turn(
            cos,
            sin,
            heads=self._heads,
            kv_heads=self._kv_heads,
            scaling=self._scaling,
            slots=step.slots.numpy(),
        )
        for layer in self._layers:
            layer(rows, turn, step)
        return rows


def few_model(model: Any, plug: Plug) -> FewModel | None:
    """The lean model for few rows, where it is in fp32 on a CPU; None elsewhere."""
    parameter: torch.Tensor = model.embedding
    layers = list(model.layers)
    alike = {(layer.heads, layer.kv_heads, layer.scaling) for layer in layers}
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu" or len(alike) != 1:
        return None
    return FewModel(model, plug)


def few_product(module: Any) -> Callable[[Array], Array]:
    """A layer's product, arrays in and out."""
    if isinstance(module, Int8Linear):
        return module.few
    if isinstance(module, GatedUp):
        joined = few_product(module.joined)
        return lambda rows: _gated(joined(rows))
    # Without the detour over a module's call, which looks for hooks every time.
    forward: Any = module.forward
    return lambda rows: forward(torch.from_numpy(rows)).numpy()


def _gated(both: Array) -> Array:
    half = both.shape[-1] // 2
    gated: Array = silu(torch.from_numpy(both[:, :half])).numpy()
    gated *= both[:, half:]
    return gated
