"""What was measured of the chosen machines and their link, each figure with how it was come by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading
from homesplit.core.state import RunState, link_between
from homesplit.view import numbers
from homesplit.view.spans import EMPTY, Line, Lines, Span, beside, clean, crop, fit, line, wrap

NAME, FIGURE = 28, 20
GAP = 4
_Show = Callable[[float | None], str]
_Row = tuple[str, Reading, _Show]


def measured_how(state: RunState, width: int) -> Lines:
    """Every figure of the boxes side by side, below them those of the link, each way of it."""
    chosen = state.choices.boxes
    known = [(name, state.profiles[name]) for name in chosen if name in state.profiles]
    if not known:
        return ()
    card = (width - GAP) // 2
    boxes = [(_box(name, profile, "ab"[chosen.index(name)], card), card) for name, profile in known]
    rows = [line(Span("What was measured, and how", "strong")), *beside(boxes, GAP)]
    link = link_between(state, *chosen) if len(chosen) == 2 else None
    if link is not None and not link.loopback:
        there, back = _ways(link, chosen[0])
        head = f"{chosen[0]} to {chosen[1]}", f"{chosen[1]} to {chosen[0]}"
        blocks = [
            (_block(Span(clean(name), "handoff"), way, card), card)
            for name, way in zip(head, (there, back), strict=True)
        ]
        rows.extend((EMPTY, *beside(blocks, GAP), *_paths(link, width)))
    return tuple(rows)


def _box(name: str, profile: BoxProfile, role: str, width: int) -> Lines:
    facts = [
        profile.os,
        profile.cpu,
        _cores(profile),
        profile.python and f"Python {profile.python}",
    ]
    told = " · ".join(clean(fact) for fact in facts if fact)
    rows = _block(Span(clean(name), role), tuple(_figures(profile)), width)
    return (*rows, crop(line(Span(told, "dim")), width))


def _cores(profile: BoxProfile) -> str | None:
    if profile.cores is None:
        return None
    allowed = profile.cores_allowed
    of = f", {numbers.significant(allowed)} allowed" if allowed is not None else ""
    return f"{profile.cores} core{'s' if profile.cores != 1 else ''}{of}"


def _figures(profile: BoxProfile) -> Iterator[_Row]:
    kinds = sorted(profile.flops_per_s.items(), key=lambda each: (not each[1].known, each[0]))
    for dtype, reading in kinds:
        yield f"arithmetic {dtype}", reading, numbers.arithmetic
    yield "memory read", profile.memory_bytes_per_s, numbers.bandwidth
    yield "memory copied", profile.memory_copy_bytes_per_s, numbers.bandwidth
    yield "memory for the model", profile.memory_bytes, numbers.size
    yield "memory in all", profile.memory_total_bytes, numbers.size
    yield "disk free", profile.disk_free_bytes, numbers.size
    yield "power, idle", profile.idle_w, numbers.watts
    yield "power, busy", profile.load_w, numbers.watts


def _ways(link: LinkProfile, a: str) -> tuple[tuple[_Row, ...], tuple[_Row, ...]]:
    """The same figures from `a` on and back to it."""
    names = (
        "one stream",
        "several streams",
        "while both work",
        "messages",
        "messages sealed",
    )
    there = (link.a_to_b, link.streams_a_to_b, link.busy_a_to_b, link.zmq_a_to_b)
    back = (link.b_to_a, link.streams_b_to_a, link.busy_b_to_a, link.zmq_b_to_a)
    both = ((*there, link.encrypted_a_to_b), (*back, link.encrypted_b_to_a))
    first, second = both if link.a == a else (both[1], both[0])
    rows = [
        tuple((name, reading, numbers.link_rate) for name, reading in zip(names, way, strict=True))
        for way in (first, second)
    ]
    return rows[0], rows[1]


def _block(head: Span, rows: Sequence[_Row], width: int) -> Lines:
    """Figures a line each; those that are missing for the same reason share theirs."""
    made: list[Line] = [line(head)]
    for _, alike in groupby(rows, key=lambda row: row[1].why or row[0]):
        together = tuple(alike)
        first, reading, show = together[0]
        others = [" ".join(name.split()[1:]) or name for name, _, _ in together[1:]]
        made.extend(_row(", ".join((first, *others)), reading, show, width))
    return tuple(made)


def _row(name: str, reading: Reading, show: _Show, width: int) -> Lines:
    label = fit(line(Span(name, "dim")), NAME)
    if reading.value is None:
        why = wrap(f"{numbers.MISSING} {reading.why or ''}", width - NAME, "dim")
        blank = Span(" " * NAME)
        return tuple((*label, *part) if n == 0 else (blank, *part) for n, part in enumerate(why))
    spread = f" ±{reading.spread * 50:.0f} %" if reading.spread else ""
    figure = fit(line(Span(show(reading.value)), Span(spread, "dim")), FIGURE)
    count = len(reading.samples)
    times = f", median of {count}" if count > 1 else ""
    return (crop((*label, *figure, Span(clean(f"{reading.method}{times}"), "dim")), width),)


def _paths(link: LinkProfile, width: int) -> Lines:
    """The pairs of addresses that were tried, and why one was left."""
    rows: list[Line] = []
    for way in link.ways:
        mark = Span("✓ ", "good") if way.used else Span("– ", "dim")
        path = f"{way.address_a or '?'} ({way.interface_a or '?'}) to {way.address_b}"
        rate = numbers.link_rate(way.bytes_per_s) if way.bytes_per_s else ""
        told = way.why or rate or ("the only way" if way.used else "")
        rows.append(crop(line(mark, clean(path), "  ", Span(clean(told), "dim")), width))
    return tuple(rows)
