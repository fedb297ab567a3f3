"""A row's exponentials and its greatest number in vector code: what a softmax is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

from homesplit_engine.compiled import vectors
from homesplit_engine.compiled.outer import WIDE
from homesplit_engine.compiled.vectors import FLOATS, INTS, LANES, WORD

_LOG2_E, _LN_2, _HALF, _ONE = (
    vectors.all_of(FLOATS, value) for value in (1.44269504, 0.69314718, 0.5, 1.0)
)
_LEAST, _MOST = (vectors.all_of(FLOATS, value) for value in (-87.0, 87.0))
_POLYNOMIAL = [
    vectors.all_of(FLOATS, value)
    for value in (
        *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
        *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    )
]
"""Of expf in S. Moshier's Cephes library."""
_BIAS, _PLACE = vectors.all_of(INTS, 127), vectors.all_of(INTS, 23)
"""Where a float32 has its power of two."""


def _exp(b: Any, values: list[Any]) -> list[Any]:
    """e to each, to about 3 parts in 10^7; below -87 as at -87, what is no number stays so.

    2^n times a polynomial in the rest, |rest| <= ln(2) / 2; powers of two are put together as
    bits. Several vectors at once, step by step, so that one's steps fill the other's waits.
    """
    values = [b.select(b.fcmp_ordered("<", v, _LEAST), _LEAST, v) for v in values]
    values = [b.select(b.fcmp_ordered(">", v, _MOST), _MOST, v) for v in values]
    floor = vectors.function(b, f"llvm.floor.v{LANES}f32", FLOATS, [FLOATS])
    wholes = [b.call(floor, [vectors.fused(b, v, _LOG2_E, _HALF)]) for v in values]
    parts = [b.fsub(v, b.fmul(n, _LN_2)) for v, n in zip(values, wholes, strict=True)]
    sums = [_POLYNOMIAL[0]] * len(values)
    for constant in _POLYNOMIAL[1:]:
        sums = [vectors.fused(b, s, r, constant) for s, r in zip(sums, parts, strict=True)]
    squares = [b.fmul(r, r) for r in parts]
    ends = [b.fadd(r, _ONE) for r in parts]
    sums = [vectors.fused(b, s, q, e) for s, q, e in zip(sums, squares, ends, strict=True)]
    powers = [b.shl(b.add(b.fptosi(n, INTS), _BIAS), _PLACE) for n in wholes]
    return [b.fmul(s, b.bitcast(p, FLOATS)) for s, p in zip(sums, powers, strict=True)]


def _over_row(
    b: Any, array: Any, count: Any, start: Any, step: Callable[..., list[Any]]
) -> list[Any]:
    """What `step(totals, vectors, addresses)` makes of two `start` over the row's vectors."""
    data = b.ptrtoint(array.data, WORD)

    def body(totals: list[Any], at: Any) -> list[Any]:
        address = b.add(data, b.mul(at, WORD(4)))
        places = [address, b.add(address, WORD(4 * LANES))]
        return step(totals, [vectors.load(b, place, 0, FLOATS, 4) for place in places], places)

    return vectors.loop(b, WORD(0), count, WIDE, [start] * 2, body, once=True)


def _exps(_context: Any, row: Any, count: Any, less: Any) -> Any:
    """row[t] = e^(row[t] - less) for the first `count`, a multiple of WIDE; returns their sum."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array, whole, less = vectors.given(context, b, signature, args)
        shift = vectors.spread(b, less)

        def step(totals: list[Any], values: list[Any], places: list[Any]) -> list[Any]:
            made = _exp(b, [b.fsub(value, shift) for value in values])
            for value, place in zip(made, places, strict=True):
                vectors.store(b, value, place)
            return [b.fadd(total, value) for total, value in zip(totals, made, strict=True)]

        first, second = _over_row(b, array, whole, vectors.all_of(FLOATS, 0.0), step)
        return vectors.added_up(b, b.fadd(first, second))

    return types.float32(row, types.int64, types.float32), generate


def _greatest(_context: Any, row: Any, count: Any, least: Any) -> Any:
    """The greatest number of the first `count`, a multiple of WIDE; at least `least`."""

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        array, whole, least = vectors.given(context, b, signature, args)

        def greater(value: Any, total: Any) -> Any:
            return b.select(b.fcmp_ordered(">", value, total), value, total)

        def step(totals: list[Any], values: list[Any], _places: list[Any]) -> list[Any]:
            return [greater(*pair) for pair in zip(values, totals, strict=True)]

        both = _over_row(b, array, whole, vectors.spread(b, least), step)
        return vectors.folded(b, greater(*both), greater)

    return types.float32(row, types.int64, types.float32), generate


exps: Any = intrinsic(_exps)
greatest: Any = intrinsic(_greatest)
