"""Attention of a few new rows in LLVM's vector code: some heads by keys and values in any slots.

    score:   scores[g + r, t + i] = queries[g + r] . keys[slots[t + i], at:]           four keys
    weigh:   answers[g + r, d + c] += sum over t of weights[g + r, t] * values[slots[t], at + d + c]

A row of keys or values holds all KV heads, one behind the other; `at` is where one begins. The
heads that share a KV head take each key and value together, as it is read once.

What is read here is asked for again `ahead` tokens further on, into the second cache, evenly
between the sums: asked for at once, or into the nearest cache, a core keeps too few lines of
memory on their way.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from homesplit_engine.compiled import vectors
from homesplit_engine.compiled.vectors import FLOAT, FLOATS, INT, LANES, LINE, WORD

KEYS = 4
"""Keys that a score takes at a time."""


def _slot_row(b: Any, array: Any, slots: Any, t: Any) -> Any:
    """The address of array[slots[t]]."""
    place = b.add(b.ptrtoint(slots.data, WORD), b.mul(t, WORD(8)))
    return vectors.row(b, array, vectors.load(b, place, 0, WORD, 8))


def _ahead_row(b: Any, array: Any, slots: Any, t: Any, ahead: Any) -> Any:
    """The address of array[slots[t + ahead]], of the last slot where there are not so many."""
    last = b.sub(b.extract_value(slots.shape, 0), WORD(1))
    later = b.add(t, ahead)
    return _slot_row(b, array, slots, b.select(b.icmp_signed("<", later, last), later, last))


def _four_sums(b: Any, four: list[Any]) -> Any:
    """The sums of four vectors' floats, side by side."""
    lanes = LANES
    while lanes > KEYS:
        lanes //= 2
        four = [
            b.fadd(_pick(b, v, v, range(lanes)), _pick(b, v, v, range(lanes, 2 * lanes)))
            for v in four
        ]
    first, second = (
        b.fadd(_pick(b, x, y, (0, 4, 1, 5)), _pick(b, x, y, (2, 6, 3, 7)))
        for x, y in (four[:2], four[2:])
    )
    return b.fadd(_pick(b, first, second, (0, 1, 4, 5)), _pick(b, first, second, (2, 3, 6, 7)))


def _pick(b: Any, first: Any, second: Any, which: Any) -> Any:
    numbers = list(which)
    return b.shuffle_vector(first, second, ir.Constant(ir.VectorType(INT, len(numbers)), numbers))


class _Score:
    """Writes the code of a score."""

    def __init__(self, b: Any, rows: int) -> None:
        self._b = b
        self._rows = rows

    def write(
        self,
        queries: Any,
        g: Any,
        keys: Any,
        at: Any,
        slots: Any,
        t: Any,
        ahead: Any,
        scores: Any,
    ) -> None:
        """As the module's formula, of as many inputs as fill vectors."""
        b = self._b
        begin = b.mul(at, WORD(4))
        asked = vectors.rows(b, queries, g, self._rows)
        tokens = [b.add(t, WORD(i)) for i in range(KEYS)]
        held = [b.add(_slot_row(b, keys, slots, one), begin) for one in tokens]
        later = [b.add(_ahead_row(b, keys, slots, one, ahead), begin) for one in tokens]

        def step(totals: list[Any], n: Any) -> list[Any]:
            offset = b.mul(n, WORD(4))
            for place in later:
                vectors.ask(b, b.add(place, offset))
            return self._step(totals, asked, held, offset)

        width = b.extract_value(queries.shape, 1)
        whole = b.sub(width, b.srem(width, WORD(LANES)))
        nothing = [vectors.all_of(FLOATS, 0.0)] * (self._rows * KEYS)
        totals = vectors.loop(b, WORD(0), whole, LANES, nothing, step)
        for r in range(self._rows):
            sums = _four_sums(b, totals[r * KEYS : (r + 1) * KEYS])
            place = b.add(vectors.row(b, scores, b.add(g, WORD(r))), b.mul(t, WORD(4)))
            vectors.store(b, sums, place)

    def _step(self, totals: list[Any], asked: list[Any], held: list[Any], offset: Any) -> list[Any]:
        b = self._b
        xs = [vectors.load(b, b.add(x, offset), 0, FLOATS, 4) for x in asked]
        new = list(totals)
        for i, key in enumerate(held):
            part = vectors.load(b, b.add(key, offset), 0, FLOATS, 4)
            for r, x in enumerate(xs):
                new[r * KEYS + i] = vectors.fused(b, x, part, totals[r * KEYS + i])
        return new


class _Weigh:
    """Writes the code that weighs values, for two vectors of places."""

    def __init__(self, b: Any, rows: int) -> None:
        self._b = b
        self._rows = rows

    def write(
        self,
        weights: Any,
        g: Any,
        values: Any,
        at: Any,
        slots: Any,
        first: Any,
        end: Any,
        ahead: Any,
        answers: Any,
        d: Any,
    ) -> None:
        """As the module's formula, for t from `first` to `end`."""
        b = self._b
        offset, begin = b.mul(d, WORD(4)), b.mul(b.add(at, d), WORD(4))
        shares, rows = (vectors.rows(b, array, g, self._rows) for array in (weights, answers))
        starts = [b.add(row, offset) for row in rows]
        into = [b.add(start, WORD(4 * LANES * c)) for start in starts for c in range(2)]

        def step(totals: list[Any], t: Any) -> list[Any]:
            value = b.add(_slot_row(b, values, slots, t), begin)
            later = b.add(_ahead_row(b, values, slots, t, ahead), begin)
            for line in range(0, 8 * LANES, LINE):
                vectors.ask(b, b.add(later, WORD(line)))
            return self._step(totals, shares, value, b.mul(t, WORD(4)))

        started = [vectors.load(b, place, 0, FLOATS, 4) for place in into]
        totals = vectors.loop(b, first, end, 1, started, step)
        for place, total in zip(into, totals, strict=True):
            vectors.store(b, total, place)

    def _step(self, totals: list[Any], shares: list[Any], value: Any, offset: Any) -> list[Any]:
        b = self._b
        pair = [vectors.load(b, value, 4 * LANES * c, FLOATS, 4) for c in range(2)]
        parts = [
            vectors.spread(b, vectors.load(b, b.add(share, offset), 0, FLOAT, 4))
            for share in shares
        ]
        return [
            vectors.fused(b, parts[n // 2], pair[n % 2], total) for n, total in enumerate(totals)
        ]


def _score(rows: int) -> Any:
    """A function for compiled code, see `_Score.write`."""

    @intrinsic
    def score(
        _context: Any,
        queries: Any,
        g: Any,
        keys: Any,
        at: Any,
        slots: Any,
        t: Any,
        ahead: Any,
        scores: Any,
    ) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            _Score(b, rows).write(*vectors.given(context, b, signature, args))
            return context.get_dummy_value()

        return types.void(queries, g, keys, at, slots, t, ahead, scores), generate

    return score


def _weigh(rows: int) -> Any:
    """A function for compiled code, see `_Weigh.write`."""

    @intrinsic
    def weigh(
        _context: Any,
        weights: Any,
        g: Any,
        values: Any,
        at: Any,
        slots: Any,
        first: Any,
        end: Any,
        ahead: Any,
        answers: Any,
        d: Any,
    ) -> Any:
        def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
            _Weigh(b, rows).write(*vectors.given(context, b, signature, args))
            return context.get_dummy_value()

        takes = (weights, g, values, at, slots, first, end, ahead, answers, d)
        return types.void(*takes), generate

    return weigh


score_3, score_2, score_1 = (_score(rows) for rows in (3, 2, 1))
weigh_3, weigh_2, weigh_1 = (_weigh(rows) for rows in (3, 2, 1))
