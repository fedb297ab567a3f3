"""Product tiles in LLVM's vector code: a few rows by a few weights, read ahead as they are used.

What a compiler makes of the plain loop computes and waits for memory in turn; here the next
weights are asked for while the present ones are multiplied, so that the slower of the two is
all there is to wait for.

    4 x 3:   sums[r][c] = x[m + r] . w[n + c]      in vectors of the inputs, added up at the end
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from homesplit_engine.compiled import vectors
from homesplit_engine.compiled.vectors import BYTE, FLOAT, FLOATS, INT, INTS, LANES, SHORT, WORD

FLOAT_STEP = 16
"""Inputs that a float tile takes at a time; their number must be a multiple of it."""
INT8_STEP = 32
"""The same of an int8 tile."""


class _Floats:
    """float32 inputs and weights."""

    step, input_bytes, weight_bytes = FLOAT_STEP, 4, 4
    kind = FLOATS
    parts = FLOAT_STEP // LANES

    @classmethod
    def input(cls, b: Any, address: Any, part: int) -> Any:
        return vectors.load(b, address, part * LANES * 4, cls.kind, 4)

    weight = input

    @staticmethod
    def added(b: Any, total: Any, x: Any, w: Any) -> Any:
        return vectors.fused(b, x, w, total)

    @staticmethod
    def whole(b: Any, total: Any) -> Any:
        return vectors.added_up(b, total)


class _Ints:
    """int16 inputs and int8 weights, whose products are summed in int32 without any loss."""

    step, input_bytes, weight_bytes = INT8_STEP, 2, 1
    kind = INTS
    parts = INT8_STEP // (2 * LANES)
    _wide = ir.VectorType(INT, 2 * LANES)

    @classmethod
    def input(cls, b: Any, address: Any, part: int) -> Any:
        narrow = ir.VectorType(SHORT, 2 * LANES)
        return b.sext(vectors.load(b, address, part * 4 * LANES, narrow, 2), cls._wide)

    @classmethod
    def weight(cls, b: Any, address: Any, part: int) -> Any:
        narrow = ir.VectorType(BYTE, 2 * LANES)
        return b.sext(vectors.load(b, address, part * 2 * LANES, narrow, 1), cls._wide)

    @staticmethod
    def added(b: Any, total: Any, x: Any, w: Any) -> Any:
        return vectors.pairs_added(b, total, x, w)

    @classmethod
    def whole(cls, b: Any, total: Any) -> Any:
        reduce = vectors.function(b, f"llvm.vector.reduce.add.v{LANES}i32", INT, [cls.kind])
        return b.sitofp(b.call(reduce, [total]), FLOAT)


class _Tile:
    """Writes one tile's code."""

    def __init__(self, numbers: Any, b: Any, *, rows: int, columns: int) -> None:
        self._numbers = numbers
        self._b = b
        self._rows = rows
        self._columns = columns

    def write(self, x: Any, w: Any, sums: Any, m: Any, n: Any) -> None:
        """`sums[r, c] = x[m + r] . w[n + c]`."""
        b, numbers = self._b, self._numbers
        count = b.extract_value(x.shape, 1)
        xs, ws = vectors.rows(b, x, m, self._rows), vectors.rows(b, w, n, self._columns)

        def body(totals: list[Any], at: Any) -> list[Any]:
            return self._step(totals, xs, ws, at, count)

        nothing = [ir.Constant(numbers.kind, [0] * LANES)] * (self._rows * self._columns)
        totals = vectors.loop(b, WORD(0), count, numbers.step, nothing, body, once=True)
        for r in range(self._rows):
            into = vectors.row(b, sums, WORD(r))
            for c in range(self._columns):
                total = numbers.whole(b, totals[r * self._columns + c])
                vectors.store(b, total, b.add(into, WORD(4 * c)))

    def _step(
        self, totals: list[Any], xs: list[Any], ws: list[Any], at: Any, count: Any
    ) -> list[Any]:
        b, numbers = self._b, self._numbers
        x_at = [b.add(row, b.mul(at, WORD(numbers.input_bytes))) for row in xs]
        w_at = [b.add(row, b.mul(at, WORD(numbers.weight_bytes))) for row in ws]
        ahead = b.mul(count, WORD(self._columns * numbers.weight_bytes))
        for address in w_at:
            vectors.ask(b, b.add(address, ahead))
        for part in range(numbers.parts):
            weights = [numbers.weight(b, address, part) for address in w_at]
            inputs = [numbers.input(b, address, part) for address in x_at]
            pairs = [(x, w) for x in inputs for w in weights]
            totals = [
                numbers.added(b, total, x, w) for total, (x, w) in zip(totals, pairs, strict=True)
            ]
        return totals


def _tile(numbers: Any, rows: int, columns: int) -> Any:
    """A function for compiled code: `tile(x, w, sums, m, n)`, see `_Tile.write`."""

    @intrinsic
    def tile(_context: Any, x: Any, w: Any, sums: Any, m: Any, n: Any) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            given = vectors.given(context, b, signature, args)
            _Tile(numbers, b, rows=rows, columns=columns).write(*given)
            return context.get_dummy_value()

        return types.void(x, w, sums, m, n), generate

    return tile


float_1x4, float_2x4, float_4x3 = (_tile(_Floats, *size) for size in ((1, 4), (2, 4), (4, 3)))
int8_1x4, int8_2x4, int8_4x3 = (_tile(_Ints, *size) for size in ((1, 4), (2, 4), (4, 3)))
