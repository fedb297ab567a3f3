"""Words for writing LLVM's vector code: what tiles and exponentials are put together from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types

LANES = 16 if binding.get_host_cpu_features().get("avx512bw") else 8
"""Floats in one vector."""

LINE = 64
"""Bytes that memory brings at a time."""

BYTE, SHORT, INT, WORD = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)
_FUSED = ("contract",)


def given(context: Any, b: Any, signature: Any, args: Any) -> list[Any]:
    """What a function was called with; numba's arrays as what tells their data, shape, strides."""
    return [
        context.make_array(kind)(context, b, value) if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, args, strict=True)
    ]


def row(b: Any, array: Any, index: Any) -> Any:
    """A row's address."""
    stride = b.extract_value(array.strides, 0)
    return b.add(b.ptrtoint(array.data, WORD), b.mul(index, stride))


def rows(b: Any, array: Any, first: Any, count: int) -> list[Any]:
    """The addresses of so many rows from `first` on."""
    return [row(b, array, b.add(first, WORD(r))) for r in range(count)]


def loop(
    b: Any,
    first: Any,
    end: Any,
    step: int,
    started: list[Any],
    body: Callable[[list[Any], Any], list[Any]],
    *,
    once: bool = False,
) -> list[Any]:
    """What `body(totals, at)` makes of `started` for at = first, first + step, ... below end.

    With `once` the first turn is taken unasked: for loops that always have one.
    """
    before = b.block
    again, done = b.append_basic_block("loop"), b.append_basic_block("looped")
    if once:
        b.branch(again)
    else:
        b.cbranch(b.icmp_signed("<", first, end), again, done)
    b.position_at_end(again)
    at = b.phi(WORD)
    totals = [b.phi(start.type) for start in started]
    new = body(totals, at)
    following = b.add(at, WORD(step))
    last = b.block
    b.cbranch(b.icmp_signed("<", following, end), again, done)
    b.position_at_end(done)
    for phi, start, value in zip([at, *totals], [first, *started], [following, *new], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, last)
    if once:
        return new
    ends = [b.phi(start.type) for start in started]
    for phi, start, value in zip(ends, started, new, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, last)
    return ends


def load(b: Any, address: Any, offset: int, kind: Any, align: int) -> Any:
    """What lies `offset` bytes behind an address."""
    loaded = b.load(b.inttoptr(b.add(address, WORD(offset)), kind.as_pointer()))
    loaded.align = align
    return loaded


def store(b: Any, value: Any, address: Any) -> None:
    """Floats to where they need not be aligned as a vector."""
    b.store(value, b.inttoptr(address, value.type.as_pointer())).align = 4


def all_of(kind: Any, value: float) -> Any:
    """A vector of one constant."""
    return ir.Constant(kind, [value] * LANES)


def spread(b: Any, value: Any, kind: Any = FLOATS) -> Any:
    """A vector of one number."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(nothing, value, INT(0))
    return b.shuffle_vector(first, nothing, ir.Constant(INTS, [0] * LANES))


def fused(b: Any, first: Any, second: Any, third: Any) -> Any:
    """first * second + third, rounded once where the processor can."""
    return b.fadd(third, b.fmul(first, second, flags=_FUSED), flags=_FUSED)


def pairs_added(b: Any, total: Any, x: Any, w: Any) -> Any:
    """Each two neighbours of x * w added to each other and to their lane of `total`.

    Of two times as many INTs that were SHORTs or less processors have this as one or two
    instructions (pmaddwd, vpdpwssd).
    """
    product = b.mul(x, w)
    halves = [
        b.shuffle_vector(product, product, ir.Constant(INTS, list(range(first, 2 * LANES, 2))))
        for first in (0, 1)
    ]
    return b.add(total, b.add(*halves))


def added_up(b: Any, total: Any) -> Any:
    """The sum of a vector's floats."""
    reduce = function(b, f"llvm.vector.reduce.fadd.v{LANES}f32", FLOAT, [FLOAT, FLOATS])
    return b.call(reduce, [ir.Constant(FLOAT, 0.0), total], fastmath=("reassoc",))


def folded(b: Any, total: Any, two: Callable[[Any, Any], Any]) -> Any:
    """The one float that `two` makes of two halves of a vector, again and again."""
    lanes = LANES
    while lanes > 1:
        lanes //= 2
        kind = ir.VectorType(INT, lanes)
        halves = [
            b.shuffle_vector(total, total, ir.Constant(kind, list(range(at, at + lanes))))
            for at in (0, lanes)
        ]
        total = two(*halves)
    return b.extract_element(total, INT(0))


def ask(b: Any, address: Any, *, nearest: bool = False, to_write: bool = False) -> None:
    """Asks for a line of memory ahead of its use; one that does not exist is no error.

    It goes into the second cache, with `nearest` into the first; with `to_write` for ourselves.
    """
    takes = [BYTE.as_pointer(), INT, INT, INT]
    prefetch = function(b, "llvm.prefetch.p0", ir.VoidType(), takes)
    write, soon, data = INT(1 if to_write else 0), INT(3 if nearest else 2), INT(1)
    b.call(prefetch, [b.inttoptr(address, BYTE.as_pointer()), write, soon, data])


def function(b: Any, name: str, returns: Any, takes: list[Any]) -> Any:
    """One of LLVM's own functions."""
    return cgutils.get_or_insert_function(b.module, ir.FunctionType(returns, takes), name)
