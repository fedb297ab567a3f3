"""Figures measured again: whether they differ from what was measured before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from homesplit.core.capacity import CapacityResult
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading
from homesplit.core.say import rate


class Figure(Struct, frozen=True, kw_only=True):
    """One figure then and now, each with how far it could have come out otherwise."""

    name: str
    unit: str
    then: float | None
    now: float | None
    differs: bool | None
    """None where one of the two is missing."""

    @property
    def words(self) -> str:
        """In one sentence."""
        now, then = _shown(self.now, self.unit), _shown(self.then, self.unit)
        if self.differs is None:
            return f"{self.name}: {now}, before {then}: not to be compared."
        judged = "no difference"
        if self.differs and self.now is not None and self.then is not None:
            judged = "more than before" if self.now > self.then else "less than before"
        return f"{self.name}: {judged}; {now}, before {then}."


class Advised(Struct, frozen=True, kw_only=True):
    """What was recommended, or how far something was known, then and now."""

    name: str
    then: str
    now: str

    @property
    def words(self) -> str:
        """In one sentence."""
        if self.now == self.then:
            return f"{self.name}: {self.now}, as then."
        return f"{self.name}: {self.now}, before {self.then}."


def _shown(value: float | None, unit: str) -> str:
    return "not known" if value is None else f"{value:.3g} {unit}"


def capacity_again(then: CapacityResult, now: CapacityResult) -> Figure | Advised:
    """The two capacities; a rate between the one that held and the one that did not is open."""
    if then.high is None or now.high is None:
        # Of one of them it is not known how high it is.
        return Advised(name="capacity", then=_bound(then), now=_bound(now))
    return Figure(
        name="capacity",
        unit="requests/s",
        then=then.capacity_requests_per_s,
        now=now.capacity_requests_per_s,
        differs=_apart((then.low, then.high), (now.low, now.high)),
    )


def _bound(found: CapacityResult) -> str:
    if found.low is None:
        return "not known"
    return f"{'at least ' if found.high is None else ''}{rate(found.low)}"


def box_again(then: BoxProfile, now: BoxProfile) -> tuple[Figure, ...]:
    """What a box was measured to do, then and now."""
    return tuple(
        _reading(f"{now.name} {name}", then_read, now_read, scale, unit)
        for name, then_read, now_read, scale, unit in _box_readings(then, now)
    )


def _box_readings(
    then: BoxProfile, now: BoxProfile
) -> Iterator[tuple[str, Reading, Reading, float, str]]:
    yield "memory", then.memory_bytes_per_s, now.memory_bytes_per_s, 1e9, "GB/s"
    for dtype in sorted(then.flops_per_s.keys() & now.flops_per_s.keys()):
        yield dtype, then.flops_per_s[dtype], now.flops_per_s[dtype], 1e9, "GFLOP/s"


def link_again(then: LinkProfile, now: LinkProfile) -> tuple[Figure, ...]:
    """What a link was measured to carry, then and now."""
    if (then.a, then.b) != (now.a, now.b):
        return ()
    rows = (
        (f"{now.a} to {now.b}", then.a_to_b, now.a_to_b, 1e9 / 8, "Gbit/s"),
        (f"{now.b} to {now.a}", then.b_to_a, now.b_to_a, 1e9 / 8, "Gbit/s"),
        ("round trip", then.latency_s.p50, now.latency_s.p50, 1e-3, "ms"),
    )
    return tuple(_reading(*row) for row in rows)


def _reading(name: str, then: Reading, now: Reading, scale: float, unit: str) -> Figure:
    return Figure(
        name=name,
        unit=unit,
        then=None if then.value is None else then.value / scale,
        now=None if now.value is None else now.value / scale,
        differs=_apart(_range(then), _range(now)),
    )


def _range(reading: Reading) -> tuple[float | None, float | None]:
    """From the smallest to the largest repetition; the figure alone where none are kept."""
    values: Sequence[float | None] = reading.samples or (reading.value,)
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known and reading.known else (None, None)


def _apart(
    then: tuple[float | None, float | None], now: tuple[float | None, float | None]
) -> bool | None:
    """Whether two ranges have nothing in common; None where one has no end known."""
    if then[0] is None or then[1] is None or now[0] is None or now[1] is None:
        return None
    return then[1] < now[0] or now[1] < then[0]
