"""Outer-product tiles in LLVM's vector code, for steps of many rows.

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


class _Outer:
    """Writes one tile's code."""

    def __init__(self, b: Any, rows: int) -> None:
        self._b = b
        self._rows = rows
        self._places = [(r, c) for r in range(rows) for c in range(2)]

    def write(self, x: Any, w: Any, out: Any, m: Any) -> None:
        """As the module's formula; what was in `out` is asked for first and needed last."""
        b = self._b
        xs = [vectors.row(b, x, b.add(m, WORD(r))) for r in range(self._rows)]
        outs = [vectors.row(b, out, b.add(m, WORD(r))) for r in range(self._rows)]
        places = [b.add(outs[r], WORD(4 * LANES * c)) for r, c in self._places]
        for place in places:
            vectors.ask(b, place, nearest=True, to_write=True)
        nothing = [vectors.all_of(FLOATS, 0.0)] * len(places)
        totals = self._loop(xs, b.ptrtoint(w.data, WORD), w, nothing)
        for place, total in zip(places, totals, strict=True):
            new = b.fadd(vectors.load(b, place, 0, FLOATS, 4), total)
            b.store(new, b.inttoptr(place, FLOATS.as_pointer())).align = 4

    def _loop(self, xs: list[Any], first: Any, w: Any, started: list[Any]) -> list[Any]:
        b = self._b
        count, stride = b.extract_value(w.shape, 0), b.extract_value(w.strides, 0)
        before = b.block
        loop, done = b.append_basic_block("inputs"), b.append_basic_block("summed")
        b.branch(loop)
        b.position_at_end(loop)
        k = b.phi(WORD)
        k.add_incoming(WORD(0), before)
        totals = [b.phi(FLOATS) for _ in started]
        for total, value in zip(totals, started, strict=True):
            total.add_incoming(value, before)
        summed = totals
        for deeper in range(DEEP):
            here = b.add(k, WORD(deeper))
            summed = self._step(summed, xs, b.add(first, b.mul(here, stride)), b.mul(here, WORD(4)))
        following = b.add(k, WORD(DEEP))
        k.add_incoming(following, loop)
        for total, new in zip(totals, summed, strict=True):
            total.add_incoming(new, loop)
        b.cbranch(b.icmp_signed("<", following, count), loop, done)
        b.position_at_end(done)
        return summed

    def _step(self, totals: list[Any], xs: list[Any], weights: Any, offset: Any) -> list[Any]:
        b = self._b
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
            arrays = vectors.arrays(context, b, signature.args[:3], args[:3])
            given = [*arrays, args[3]]
            _Outer(b, rows).write(*given)
            return context.get_dummy_value()

        return types.void(x, w, out, m), generate

    made: Any = intrinsic(outer)
    return made


def _ask_rows(_context: Any, w: Any, first: Any, count: Any) -> Any:
    """Asks for the rows [first, first + count) of w, each WIDE floats, ahead of their use."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        (array,) = vectors.arrays(context, b, signature.args[:1], args[:1])
        before = b.block
        loop, done = b.append_basic_block("rows"), b.append_basic_block("asked")
        b.cbranch(b.icmp_signed(">", args[2], WORD(0)), loop, done)
        b.position_at_end(loop)
        row = b.phi(WORD)
        row.add_incoming(WORD(0), before)
        address = vectors.row(b, array, b.add(args[1], row))
        for line in range(0, 4 * WIDE, LINE):
            vectors.ask(b, b.add(address, WORD(line)))
        following = b.add(row, WORD(1))
        row.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, args[2]), loop, done)
        b.position_at_end(done)
        return context.get_dummy_value()

    return types.void(w, types.int64, types.int64), generate


ask_rows: Any = intrinsic(_ask_rows)
outer_6, outer_4, outer_2, outer_1 = (_outer(rows) for rows in (6, 4, 2, 1))
