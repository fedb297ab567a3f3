"""The Machines screen: who was found, what the two chosen ones can do, the link between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile, FoundBox
from homesplit.core.reading import Reading
from homesplit.core.state import RunState, link_between
from homesplit.view import numbers
from homesplit.view.spans import (
    EMPTY,
    Line,
    Lines,
    Span,
    bar,
    clean,
    crop,
    fit,
    line,
    width_of,
    wrap,
)

LOOPBACK_LABEL = "loopback: teaches the mechanism, measures no network"
NOTHING_FOUND = (
    "No machine has been found yet.",
    "",
    "Looking for SSH servers that announce themselves (mDNS) and for hosts in your ssh config.",
    "A machine that announces nothing can be added by hand with a.",
    "Only this machine at hand? homesplit demo shows the whole road on it.",
)
LETTERS = ("A", "B")
ALIKE = 1.05
"""Boxes that differ by less are called alike."""


def seconds_since(stamp: str | None, now: datetime) -> float | None:
    """Seconds from an ISO 8601 time to `now`; None when there is no time or no sense in it."""
    then = moment(stamp)
    return None if then is None else (now - then).total_seconds()


def moment(stamp: str | None) -> datetime | None:
    """An ISO 8601 time, of UTC where it says no zone; None when there is no sense in it."""
    if stamp is None:
        return None
    try:
        then = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    return then if then.tzinfo is not None else then.replace(tzinfo=UTC)


class Columns(NamedTuple):
    """Widths of the list's columns; `found_by` 0 where it stands behind the tick instead."""

    name: int
    address: int
    found_by: int
    host_key: int
    measured: int


_NARROW = Columns(13, 14, 0, 10, 12)
_LEAST = Columns(16, 17, 16, 12, 13)
"""What a column keeps when there is not room for all that the columns hold."""
_NAMES = ("name", "address", "found by", "host key", "measured")
_MARK, _USABLE = 4, 20
"""The cells of the letter before a machine and of the tick behind it."""


def columns(state: RunState, width: int) -> Columns:
    """As wide as what they hold, as far as there is room."""
    if width < 90:
        return _NARROW
    found = [len(name) + 2 for name in _NAMES]
    found[3:] = _LEAST[3:]
    for column, text in enumerate((_name, _address, _found_by)):
        found[column] = max(found[column], *(len(text(box)) + 2 for box in state.boxes), 0)
    for column in (2, 0, 1):
        beyond = max(_MARK + _USABLE + sum(found) - width, 0)
        found[column] -= min(beyond, max(found[column] - _LEAST[column], 0))
    return Columns(*found)


def header(state: RunState, width: int) -> Line:
    """The names of the list's columns."""
    parts: list[Span] = [Span(" " * _MARK)]
    wide = columns(state, width)
    for text, cells in zip(_NAMES, wide, strict=True):
        if cells:
            parts.extend(fit(line(Span(text, "dim")), cells))
    parts.append(Span("usable" if wide.found_by else "usable, found by", "dim"))
    return crop(tuple(parts), width)


def row(state: RunState, box: FoundBox, now: datetime, width: int) -> Line:
    """One machine of the list."""
    wide = columns(state, width)
    chosen = state.choices.boxes.index(box.name) if box.name in state.choices.boxes else None
    mark = Span(" " * _MARK) if chosen is None else Span(f" {LETTERS[chosen]}● ", "ab"[chosen])
    cells = (
        Span(_name(box), "strong" if box.usable else "dim"),
        Span(_address(box)),
        Span(_found_by(box), "dim"),
        _trust(box),
        _probe_age(state, box, now),
    )
    parts: list[Span] = [mark]
    for text, cells_wide in zip(cells, wide, strict=True):
        if cells_wide:
            parts.extend(fit(line(text), cells_wide - 1))
            parts.append(Span(" "))
    tried = box.this_machine or box.host_key is not None or box.name in state.profiles
    told = _usable(box, with_source=not wide.found_by) if tried or not box.usable else _UNTRIED
    return crop((*parts, *told), width)


_UNTRIED: Line = (Span("? ", "warn"), Span("not tried: choose it, p tries", "dim"))
"""Of a machine that was added by hand and has not answered anybody yet."""


def _name(box: FoundBox) -> str:
    return clean(box.name)


def _found_by(box: FoundBox) -> str:
    return clean(", ".join(box.found_by))


def _address(box: FoundBox) -> str:
    usable = [way for way in box.addresses if way.usable]
    if usable:
        more = f" +{len(usable) - 1}" if len(usable) > 1 else ""
        return clean(usable[0].address) + more
    return clean(box.addresses[0].address) if box.addresses else numbers.MISSING


def _trust(box: FoundBox) -> Span:
    if box.this_machine:
        return Span("this one", "dim")
    if box.trusted:
        return Span("✓ trusted", "good")
    return Span("? new", "warn") if box.host_key else Span(numbers.MISSING, "dim")


def _probe_age(state: RunState, box: FoundBox, now: datetime) -> Span:
    profile = state.profiles.get(box.name)
    if profile is None:
        return Span("not yet", "dim")
    return Span(numbers.age(seconds_since(profile.probed_at, now)))


def _usable(box: FoundBox, *, with_source: bool) -> Line:
    if box.usable:
        return line(Span("✓", "good"), " ", Span(_found_by(box) if with_source else "usable"))
    return line(Span("✗ ", "bad"), Span(clean(box.why or "not usable"), "dim"))


# --------------------------------------------------------------------------- two cards

LINK_WIDTH = 30
_ARRANGEMENTS: tuple[tuple[str, Line, str], ...] = (
    (
        "colocated",
        (Span("A reads", "prefill"), Span(" and "), Span("writes", "decode")),
        "One box does it all. While it reads a long prompt, the answers it is writing wait.",
    ),
    (
        "replica",
        (
            *(Span("A reads", "prefill"), Span(" and "), Span("writes", "decode"), Span(" · ")),
            *(Span("B reads", "prefill"), Span(" and "), Span("writes", "decode")),
        ),
        "A copy on each. Half the requests a box, and the same waiting in each.",
    ),
    (
        "split",
        (
            Span("A reads", "prefill"),
            Span(" ━ KV cache ━▶ ", "handoff"),
            Span("B writes", "decode"),
        ),
        "One reads and hands over what it has read. Answers go on; the link has to carry it.",
    ),
)
_NAME, _DRAWN = 12, 40
DRAWN_FROM = 100
"""Characters a line has from which on the arrangements are drawn too."""


def cards(state: RunState, width: int, *, tall: bool = True) -> Lines:
    """The chosen machines side by side and the link between them, or what to do to see them.

    Where it is not `tall`, figures stand in the same line as their bars.
    """
    roomy = tall and width >= DRAWN_FROM
    taught = arrangements(width) if roomy or not state.choices.boxes else ()
    return (*_chosen_cards(state, width, tall), *_apart(taught))


def arrangements(width: int) -> Lines:
    """What two boxes can do with one model: the three ways in a sentence, drawn if it is wide."""
    is_drawn = width >= DRAWN_FROM
    rows: list[Line] = [
        *((line(Span("What two boxes can do with a model", "strong")),) if is_drawn else ()),
        *wrap(
            "An answer is made in two parts: the prompt is read (prefill), then the answer is "
            "written token by token (decode).",
            width,
            "dim",
        ),
    ]
    column = _NAME + (_DRAWN if is_drawn else 0)
    for name, drawn, words in _ARRANGEMENTS:
        told = wrap(words, max(width - column, 20), "dim")
        named = fit(line(Span(name, "strong")), _NAME)
        head = (*named, *fit(drawn, _DRAWN)) if is_drawn else named
        blank = (Span(" " * column),)
        rows.extend((*(head if n == 0 else blank), *row) for n, row in enumerate(told))
    return tuple(rows)


def _chosen_cards(state: RunState, width: int, tall: bool) -> Lines:
    chosen = state.choices.boxes
    if not chosen:
        return (
            line(Span("Choose two machines with space.", "strong")),
            *wrap(
                "Their arithmetic, memory bandwidth, memory and the link between them then "
                "stand here side by side. p measures them.",
                width,
                "dim",
            ),
        )
    wide = width >= 100
    card = (width - LINK_WIDTH - 4) // 2 if wide else (width - 2) // 2
    blocks = [_card(state, name, number, card, tall) for number, name in enumerate(chosen)]
    notes = [_notes(state, name, card) for name in chosen]
    if len(chosen) == 1:
        other = wrap("Choose a second machine with space.", card, "dim")
        blocks.append((line(Span("B", "b"), Span(" – nobody yet", "dim")), EMPTY, *other))
        both = [(*blocks[0], *notes[0]), blocks[1]]
        return _side_by_side(both, card, (), LINK_WIDTH if wide else 0)
    link = link_between(state, chosen[0], chosen[1])
    drawn = link_card(chosen[0], chosen[1], link, LINK_WIDTH if wide else width)
    told = meaning(state, width)
    if wide:
        both = [(*block, *note) for block, note in zip(blocks, notes, strict=True)]
        return (*_side_by_side(both, card, (EMPTY, *drawn), LINK_WIDTH), *_apart(told))
    below = _side_by_side(notes, card, (), 0)
    return (*_side_by_side(blocks, card, (), 0), EMPTY, *drawn, *_apart(told), *_apart(below))


def _apart(lines: Lines) -> Lines:
    """The lines with an empty one before them; none stay none."""
    return (EMPTY, *lines) if lines else ()


def meaning(state: RunState, width: int) -> Lines:
    """What the difference between the two chosen boxes is good for, in words."""
    profiles = [state.profiles.get(name) for name in state.choices.boxes]
    if len(profiles) != 2 or profiles[0] is None or profiles[1] is None:
        return ()
    a, b = profiles[0], profiles[1]
    dtype = _best_dtype(a, [a, b])
    read = (a.flops_per_s.get(dtype or ""), b.flops_per_s.get(dtype or ""))
    write = (a.memory_bytes_per_s, b.memory_bytes_per_s)
    told = (
        _compared("Reading a prompt (prefill) takes arithmetic", a, b, *read),
        _compared("Writing the answer (decode) takes memory bandwidth", a, b, *write),
    )
    return tuple(row for text in told if text for row in wrap(text, width, "dim"))


def _side_by_side(blocks: list[Lines], card: int, middle: Lines, middle_width: int) -> Lines:
    height = max(*(len(block) for block in blocks), len(middle))
    rows: list[Line] = []
    for number in range(height):
        left, right = (block[number] if number < len(block) else EMPTY for block in blocks)
        centre = middle[number] if number < len(middle) else EMPTY
        gap = (
            (Span("  "), *fit(centre, middle_width), Span("  ")) if middle_width else (Span("  "),)
        )
        rows.append((*fit(left, card), *gap, *fit(right, card)))
    return tuple(rows)


def _card(state: RunState, name: str, number: int, width: int, tall: bool) -> Lines:
    role = "ab"[number]
    letter = line(Span(LETTERS[number], role), " ", Span(clean(name), "strong"), Span("  "))
    profile = state.profiles.get(name)
    if profile is None:
        return (letter, EMPTY, *wrap("Not measured yet: p measures it.", width, "dim"))
    others = [state.profiles[box] for box in state.choices.boxes if box in state.profiles]
    rows: list[Line] = [
        crop((*letter, Span(f"{profile.device} {clean(computes(profile))}", "dim")), width)
    ]
    draw = _measure_tall if tall else _measure
    for label, reading, compared, show in _measures(profile, others):
        top = max((other.value for other in compared if other.value), default=reading.value or 0)
        rows.extend(draw(label, reading, top, show, role, width))
    return tuple(rows)


def computes(profile: BoxProfile) -> str:
    """What the model runs on there: the GPU's name, or the processor's, whatever else it has."""
    if profile.device != "cpu" and profile.accelerators:
        return profile.accelerators[0].name
    return profile.cpu or ""


Show = Callable[[float | None], str]


def _measures(
    profile: BoxProfile, others: list[BoxProfile]
) -> Iterator[tuple[str, Reading, list[Reading], Show]]:
    """What is compared: name, this box's reading, all readings, how it is written."""
    best = _best_dtype(profile, others)
    if best:
        shared = [p.flops_per_s[best] for p in others if best in p.flops_per_s]
        yield f"arithmetic {best}", profile.flops_per_s[best], shared, numbers.arithmetic
    bandwidths = [p.memory_bytes_per_s for p in others]
    yield "memory bandwidth", profile.memory_bytes_per_s, bandwidths, numbers.bandwidth
    yield "memory", profile.memory_bytes, [p.memory_bytes for p in others], numbers.size


def _notes(state: RunState, name: str, width: int) -> Lines:
    """Power, and what was odd about the measurement."""
    profile = state.profiles.get(name)
    if profile is None:
        return ()
    rows = list(_power(profile, width))
    for warning in profile.warnings[:2]:
        told = wrap(warning, width - 2, "dim")
        rows.extend((Span("! " if n == 0 else "  ", "warn"), *row) for n, row in enumerate(told))
    return tuple(rows)


def _best_dtype(profile: BoxProfile, others: list[BoxProfile]) -> str | None:
    """The dtype to compare by: known on all, the fastest here; else the fastest here."""
    known = {d: r.value for d, r in profile.flops_per_s.items() if r.value is not None}
    if not known:
        return next(iter(profile.flops_per_s), None)
    shared = [
        d for d in known if all(d in p.flops_per_s and p.flops_per_s[d].known for p in others)
    ]
    return max(shared or known, key=lambda dtype: known[dtype])


def _measure(label: str, reading: Reading, top: float, show: Show, role: str, width: int) -> Lines:
    """A label, a bar against the larger of the two boxes, and the figure or why there is none."""
    head = fit(line(Span(label.removeprefix("memory ") or label, "dim")), 16)
    if reading.value is None:
        why = Span(f"{numbers.MISSING} {clean(reading.why or '')}", "dim")
        return (crop((*head, why), width),)
    drawn = bar(reading.value / top if top else 0, max(width - 16 - 20, 4), f"bar-{role}")
    figure, spread = _figure(reading, show)
    told = (*head, *drawn, Span(" "), figure)
    whole = (*told, spread)
    return (crop(whole if width_of(whole) <= width else told, width),)


def _measure_tall(
    label: str, reading: Reading, top: float, show: Show, role: str, width: int
) -> Lines:
    """The label and the figure or why there is none, and the bar below them."""
    if reading.value is None:
        head = fit(line(Span(label, "dim")), 16)
        why = wrap(f"{numbers.MISSING} {reading.why or ''}", max(width - 16, 10), "dim")
        blank = Span(" " * 16)
        return tuple((*head, *row) if n == 0 else (blank, *row) for n, row in enumerate(why))
    told = _figure(reading, show)
    room = max(width - width_of(told) - 1, 1)
    drawn = bar(reading.value / top if top else 0, width, f"bar-{role}")
    return ((*fit(line(Span(label, "dim")), room), Span(" "), *told), drawn)


def _figure(reading: Reading, show: Show) -> Line:
    spread = f" ±{reading.spread * 50:.0f} %" if reading.spread else ""
    return line(Span(show(reading.value), "strong"), Span(spread, "dim"))


def _compared(
    what: str, a: BoxProfile, b: BoxProfile, first: Reading | None, second: Reading | None
) -> str:
    """`what`, and how many times as much of it the stronger box has; empty without figures."""
    if first is None or second is None or not first.value or not second.value:
        return ""
    more, less = (a, b) if first.value >= second.value else (b, a)
    times = max(first.value, second.value) / min(first.value, second.value)
    if times < ALIKE:
        return f"{what}: {a.name} and {b.name} are alike."
    return f"{what}: {more.name} has {numbers.significant(times, 2)} times that of {less.name}."


def _power(profile: BoxProfile, width: int) -> Lines:
    head = fit(line(Span("power", "dim")), 16)
    if profile.load_w.known or profile.idle_w.known:
        idle, load = numbers.watts(profile.idle_w.value), numbers.watts(profile.load_w.value)
        return (crop((*head, Span(f"{load} busy, {idle} idle")), width),)
    why = (profile.load_w.why or "not measured").removeprefix("power is ")
    told = wrap(f"{numbers.MISSING} {why}", max(width - 16, 10), "dim")
    blank = Span(" " * 16)
    return tuple((*head, *row) if n == 0 else (blank, *row) for n, row in enumerate(told))


# ------------------------------------------------------------------------------- link


def link_card(a: str, b: str, link: LinkProfile | None, width: int) -> Lines:
    """The link drawn as two arrows with what each way carries."""
    if link is None:
        return (
            _arrow("A", "B", "not measured", width, forward=True, role="dim"),
            _arrow("A", "B", "", width, forward=False, role="dim"),
            line(Span("p measures the link", "dim")),
        )
    forward, backward = _ways(link, a)
    lines = [
        _arrow("A", "B", numbers.link_rate(forward.value), width, forward=True, role="handoff"),
        _arrow("A", "B", numbers.link_rate(backward.value), width, forward=False, role="handoff"),
    ]
    lines.extend(
        wrap(reading.why or "", width, "dim")[0]
        for reading in (forward, backward)
        if not reading.known and reading.why
    )
    lines.extend(_link_facts(link, forward, width))
    return tuple(lines)


def _ways(link: LinkProfile, a: str) -> tuple[Reading, Reading]:
    return (link.a_to_b, link.b_to_a) if link.a == a else (link.b_to_a, link.a_to_b)


def _link_facts(link: LinkProfile, forward: Reading, width: int) -> Lines:
    if link.loopback:
        return wrap(LOOPBACK_LABEL, width, "warn")
    told: list[str] = []
    if link.label_bytes_per_s:
        label = numbers.link_rate(link.label_bytes_per_s)
        share = numbers.share(forward.value / link.label_bytes_per_s) if forward.value else ""
        told.append(f"{share} of its label {label}" if share else f"label {label}")
    else:
        told.append("label: the adapters tell none")
    p50, p99 = link.latency_s.p50, link.latency_s.p99
    if p50.known:
        told.append(f"round trip {numbers.seconds(p50.value)}, p99 {numbers.seconds(p99.value)}")
    coded = link.encrypted_a_to_b
    if coded.known:
        told.append(f"encrypted {numbers.link_rate(coded.value)}")
    # One after the other where there is room, else a line each.
    facts = [" · ".join(told)] if width >= 60 else told
    rows = [row for fact in facts for row in wrap(fact, width, "dim")]
    for warning in link.warnings[:2]:
        rows.extend(wrap(f"! {warning}", width, "warn"))
    return tuple(rows)


def _arrow(a: str, b: str, text: str, width: int, *, forward: bool, role: str) -> Line:
    label = f" {text} " if text else ""
    room = max(width - 4 - len(label) - 1, 2)
    left, right = room // 2, room - room // 2
    body = "━" * left + label + "━" * right
    drawn = body + "▶" if forward else "◀" + body
    return line(Span(a, "a"), " ", Span(drawn, role), " ", Span(b, "b"))
