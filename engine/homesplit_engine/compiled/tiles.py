"""Product tiles in LLVM's vector code: a few rows by a few weights, read ahead as they are used.

What a compiler makes of the plain loop computes and waits for memory in turn; here the next
weights are asked for while the present ones are multiplied, so that the slower of the two is
all there is to wait for.

    4 x 3:   sums[r][c] = x[m + r] . w[n + c]      in vectors of the inputs, added up at the end
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16 if binding.get_host_cpu_features().get("avx512bw") else 8
"""Sums in one vector."""
FLOAT_STEP = 16
"""Inputs that a float tile takes at a time; their number must be a multiple of it."""
INT8_STEP = 32
"""The same of an int8 tile."""

_BYTE, _SHORT, _INT, _WORD = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT = ir.FloatType()


class _Floats:
    """float32 inputs and weights."""

    step, input_bytes, weight_bytes = FLOAT_STEP, 4, 4
    kind = ir.VectorType(_FLOAT, LANES)
    parts = FLOAT_STEP // LANES

    @classmethod
    def input(cls, b: Any, address: Any, part: int) -> Any:
        return _load(b, address, part * LANES * 4, cls.kind, 4)

    weight = input

    @staticmethod
    def added(b: Any, total: Any, x: Any, w: Any) -> Any:
        fused = ("contract",)
        return b.fadd(total, b.fmul(x, w, flags=fused), flags=fused)

    @classmethod
    def whole(cls, b: Any, total: Any) -> Any:
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        reduce = _function(b, name, _FLOAT, [_FLOAT, cls.kind])
        return b.call(reduce, [ir.Constant(_FLOAT, 0.0), total], fastmath=("reassoc",))


class _Ints:
    """int16 inputs and int8 weights, whose products are summed in int32 without any loss."""

    step, input_bytes, weight_bytes = INT8_STEP, 2, 1
    kind = ir.VectorType(_INT, LANES)
    parts = INT8_STEP // (2 * LANES)
    _wide = ir.VectorType(_INT, 2 * LANES)

    @classmethod
    def input(cls, b: Any, address: Any, part: int) -> Any:
        narrow = ir.VectorType(_SHORT, 2 * LANES)
        return b.sext(_load(b, address, part * 4 * LANES, narrow, 2), cls._wide)

    @classmethod
    def weight(cls, b: Any, address: Any, part: int) -> Any:
        narrow = ir.VectorType(_BYTE, 2 * LANES)
        return b.sext(_load(b, address, part * 2 * LANES, narrow, 1), cls._wide)

    @staticmethod
    def added(b: Any, total: Any, x: Any, w: Any) -> Any:
        # Neighbours added to each other: processors have this as one instruction (pmaddwd).
        product = b.mul(x, w)
        halves = [
            b.shuffle_vector(product, product, _numbers(range(first, 2 * LANES, 2)))
            for first in (0, 1)
        ]
        return b.add(total, b.add(*halves))

    @classmethod
    def whole(cls, b: Any, total: Any) -> Any:
        reduce = _function(b, f"llvm.vector.reduce.add.v{LANES}i32", _INT, [cls.kind])
        return b.sitofp(b.call(reduce, [total]), _FLOAT)


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
        xs = [_row(b, x, b.add(m, _WORD(r))) for r in range(self._rows)]
        ws = [_row(b, w, b.add(n, _WORD(c))) for c in range(self._columns)]
        totals = self._loop(xs, ws, count)
        for r in range(self._rows):
            into = _row(b, sums, _WORD(r))
            for c in range(self._columns):
                place = b.inttoptr(b.add(into, _WORD(4 * c)), _FLOAT.as_pointer())
                b.store(numbers.whole(b, totals[r * self._columns + c]), place)

    def _loop(self, xs: list[Any], ws: list[Any], count: Any) -> list[Any]:
        """Through all inputs; the sums of each row and column, still in lanes."""
        b, numbers = self._b, self._numbers
        before = b.block
        loop, done = b.append_basic_block("inputs"), b.append_basic_block("summed")
        b.branch(loop)
        b.position_at_end(loop)
        at = b.phi(_WORD)
        at.add_incoming(_WORD(0), before)
        totals = [b.phi(numbers.kind) for _ in range(len(xs) * len(ws))]
        for total in totals:
            total.add_incoming(ir.Constant(numbers.kind, [0] * LANES), before)
        summed = self._step(totals, xs, ws, at, count)
        following = b.add(at, _WORD(numbers.step))
        at.add_incoming(following, loop)
        for total, new in zip(totals, summed, strict=True):
            total.add_incoming(new, loop)
        b.cbranch(b.icmp_signed("<", following, count), loop, done)
        b.position_at_end(done)
        return summed

    def _step(
        self, totals: list[Any], xs: list[Any], ws: list[Any], at: Any, count: Any
    ) -> list[Any]:
        b, numbers = self._b, self._numbers
        x_at = [b.add(row, b.mul(at, _WORD(numbers.input_bytes))) for row in xs]
        w_at = [b.add(row, b.mul(at, _WORD(numbers.weight_bytes))) for row in ws]
        ahead = b.mul(count, _WORD(self._columns * numbers.weight_bytes))
        for address in w_at:
            _prefetch(b, b.add(address, ahead))
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
            arrays = [
                context.make_array(kind)(context, b, value)
                for kind, value in zip(signature.args[:3], args[:3], strict=True)
            ]
            _Tile(numbers, b, rows=rows, columns=columns).write(*arrays, *args[3:])
            return context.get_dummy_value()

        return types.void(x, w, sums, m, n), generate

    return tile


def _numbers(values: Any) -> Any:
    return ir.Constant(ir.VectorType(_INT, LANES), list(values))


def _function(b: Any, name: str, returns: Any, takes: list[Any]) -> Any:
    return cgutils.get_or_insert_function(b.module, ir.FunctionType(returns, takes), name)


def _row(b: Any, array: Any, index: Any) -> Any:
    """A row's address."""
    stride = b.extract_value(array.strides, 0)
    return b.add(b.ptrtoint(array.data, _WORD), b.mul(index, stride))


def _load(b: Any, address: Any, offset: int, kind: Any, align: int) -> Any:
    loaded = b.load(b.inttoptr(b.add(address, _WORD(offset)), kind.as_pointer()))
    loaded.align = align
    return loaded


def _prefetch(b: Any, address: Any) -> None:
    """Asks for a line of memory; one that does not exist is no error."""
    takes = [_BYTE.as_pointer(), _INT, _INT, _INT]
    prefetch = _function(b, "llvm.prefetch.p0", ir.VoidType(), takes)
    to_read, soon, data = _INT(0), _INT(2), _INT(1)
    b.call(prefetch, [b.inttoptr(address, _BYTE.as_pointer()), to_read, soon, data])


float_1x4, float_2x4, float_4x3 = (_tile(_Floats, *size) for size in ((1, 4), (2, 4), (4, 3)))
int8_1x4, int8_2x4, int8_4x3 = (_tile(_Ints, *size) for size in ((1, 4), (2, 4), (4, 3)))
