"""Outer-product tiles in LLVM's vector code.

    rows x WIDE:   out[m + r, c] += sum over k of x[m + r, k] * w[k, c]

An input meets WIDE weights that lie side by side, so nothing is left to add up at the end.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from homesplit_engine.compiled import vectors
from homesplit_engine.compiled.vectors import FLOAT, FLOATS, LANES, LINE, WORD

WIDE = 2 * LANES
"""Columns of one tile."""
DEEP = 4
"""Inputs that a tile takes at a time; their number must be a multiple of it."""
TALL = 12 if LANES == 16 else 6
"""Rows of the tallest tile: as many as the registers hold the sums of."""
_AHEAD, _ASKING = 8192, 6 if LANES == 8 else 7
"""Bytes between the weights in use and those asked for meanwhile, and from how many rows on.

Fewer rows use the weights as quickly as memory brings them by itself.
"""


class _Outer:
    """Writes one tile's code."""

    def __init__(self, b: Any, rows: int) -> None:
        self._b = b
        self._rows = rows
        self._places = [(r, c) for r in range(rows) for c in range(2)]

    def write(self, x: Any, w: Any, out: Any, m: Any) -> None:
        """As the module's formula; what was in `out` is asked for first and needed last."""
        b = self._b
        xs, outs = (vectors.rows(b, array, m, self._rows) for array in (x, out))
        places = [b.add(outs[r], WORD(4 * LANES * c)) for r, c in self._places]
        for place in places:
            vectors.ask(b, place, nearest=True, to_write=True)
        for place, total in zip(places, self._totals(xs, w), strict=True):
            vectors.store(b, b.fadd(vectors.load(b, place, 0, FLOATS, 4), total), place)

    def _totals(self, xs: list[Any], w: Any) -> list[Any]:
        b = self._b
        first, stride = b.ptrtoint(w.data, WORD), b.extract_value(w.strides, 0)

        def body(totals: list[Any], k: Any) -> list[Any]:
            for deeper in range(DEEP):
                here = b.add(k, WORD(deeper))
                weights = b.add(first, b.mul(here, stride))
                totals = self._step(totals, xs, weights, b.mul(here, WORD(4)))
            return totals

        nothing = [vectors.all_of(FLOATS, 0.0)] * len(self._places)
        inputs = b.extract_value(w.shape, 0)
        return vectors.loop(b, WORD(0), inputs, DEEP, nothing, body, once=True)

    def _step(self, totals: list[Any], xs: list[Any], weights: Any, offset: Any) -> list[Any]:
        b = self._b
        if self._rows >= _ASKING:
            for line in range(0, 4 * WIDE, LINE):
                vectors.ask(b, b.add(weights, WORD(_AHEAD + line)))
        pair = [vectors.load(b, weights, 4 * LANES * c, FLOATS, 4) for c in range(2)]
        inputs = [
            vectors.spread(b, vectors.load(b, b.add(address, offset), 0, FLOAT, 4))
            for address in xs
        ]
        return [
            vectors.fused(b, inputs[r], pair[c], total)
            for (r, c), total in zip(self._places, totals, strict=True)
        ]


def _outer(rows: int) -> Any:
    """A function for compiled code: `outer(x, w, out, m)`, see `_Outer.write`."""

    def outer(_context: Any, x: Any, w: Any, out: Any, m: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            _Outer(b, rows).write(*vectors.given(context, b, signature, args))
            return context.get_dummy_value()

        return types.void(x, w, out, m), generate

    made: Any = intrinsic(outer)
    return made


outer_1, outer_2, outer_3, outer_4, outer_5, outer_6, outer_7, outer_8, outer_tall = (
    _outer(rows) for rows in (1, 2, 3, 4, 5, 6, 7, 8, TALL)
)
