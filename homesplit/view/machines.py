"""The Machines screen: who was found, what the two chosen ones can do, the link between them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile, FoundBox
from homesplit.core.reading import Reading
from homesplit.core.state import RunState, link_between
from homesplit.view import numbers
from homesplit.view.spans import EMPTY, Line, Lines, Span, bar, clean, crop, fit, line, wrap

LOOPBACK_LABEL = "loopback: teaches the mechanism, measures no network"
NOTHING_FOUND = (
    "No machine has been found yet.",
    "",
    "Looking for SSH servers that announce themselves (mDNS) and for hosts in your ssh config.",
    "A machine that announces nothing can be added by hand with a.",
    "Only this machine at hand? homesplit demo shows the whole road on it.",
)
LETTERS = ("A", "B")


def seconds_since(stamp: str | None, now: datetime) -> float | None:
    """Seconds from an ISO 8601 time to `now`; None when there is no time or no sense in it."""
    if stamp is None:
        return None
    try:
        then = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return (now - then).total_seconds()


def _columns(width: int) -> tuple[int, int, int, int, int]:
    """Widths of name, address, found by, trust, probe."""
    if width < 90:
        return 13, 14, 0, 10, 12
    spare = min(max(width - 100, 0) // 3, 10)
    return 16 + spare, 17 + spare, 16 + spare, 12, 13


def header(width: int) -> Line:
    """The names of the list's columns."""
    name, address, found, trust, probe = _columns(width)
    parts: list[Span] = [Span("    ")]
    for text, cells in (
        ("name", name),
        ("address", address),
        ("found by", found),
        ("host key", trust),
        ("measured", probe),
        ("usable", 20),
    ):
        if cells:
            parts.extend(fit(line(Span(text, "dim")), cells))
    return crop(tuple(parts), width)


def row(state: RunState, box: FoundBox, now: datetime, width: int) -> Line:
    """One machine of the list."""
    name, address, found, trust, probe = _columns(width)
    chosen = state.choices.boxes.index(box.name) if box.name in state.choices.boxes else None
    mark = Span("    ") if chosen is None else Span(f" {LETTERS[chosen]}● ", "ab"[chosen])
    cells = [
        (line(Span(clean(box.name), "strong" if box.usable else "dim")), name),
        (line(_address(box)), address),
        (line(Span(clean(", ".join(box.found_by)), "dim")), found),
        (line(_trust(box)), trust),
        (line(_probe_age(state, box, now)), probe),
    ]
    parts: list[Span] = [mark]
    for text, cells_wide in cells:
        if cells_wide:
            parts.extend(fit(text, cells_wide - 1))
            parts.append(Span(" "))
    return crop((*parts, *_usable(box)), width)


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


def _usable(box: FoundBox) -> Line:
    if box.usable:
        return line(Span("✓", "good"), " usable")
    return line(Span("✗ ", "bad"), Span(clean(box.why or "not usable"), "dim"))


# --------------------------------------------------------------------------- two cards


def cards(state: RunState, width: int) -> Lines:
    """The chosen machines side by side and the link between them, or what to do to see them."""
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
    card = (width - 34) // 2 if wide else (width - 2) // 2
    blocks = [_card(state, name, number, card) for number, name in enumerate(chosen)]
    if len(chosen) == 1:
        other = wrap("Choose a second machine with space.", card, "dim")
        blocks.append((line(Span("B", "b"), Span(" – nobody yet", "dim")), EMPTY, *other))
        return _side_by_side(blocks, card, (), 30 if wide else 0)
    link = link_between(state, chosen[0], chosen[1])
    drawn = link_card(chosen[0], chosen[1], link, 30 if wide else width)
    if wide:
        return _side_by_side(blocks, card, (EMPTY, *drawn), 30)
    return (*_side_by_side(blocks, card, (), 0), EMPTY, *drawn)


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


def _card(state: RunState, name: str, number: int, width: int) -> Lines:
    letter = line(Span(LETTERS[number], "ab"[number]), " ", Span(clean(name), "strong"), Span("  "))
    profile = state.profiles.get(name)
    if profile is None:
        return (letter, EMPTY, *wrap("Not measured yet: p measures it.", width, "dim"))
    others = [state.profiles[box] for box in state.choices.boxes if box in state.profiles]
    what = clean(profile.accelerators[0].name if profile.accelerators else profile.cpu or "")
    lines: list[Line] = [crop((*letter, Span(f"{profile.device} {what}", "dim")), width)]
    best = _best_dtype(profile, others)
    if best:
        lines.append(
            _measure(
                f"arithmetic {best}",
                profile.flops_per_s[best],
                [p.flops_per_s[best] for p in others if best in p.flops_per_s],
                numbers.arithmetic,
                width,
            )
        )
    lines.append(
        _measure(
            "bandwidth",
            profile.memory_bytes_per_s,
            [p.memory_bytes_per_s for p in others],
            numbers.bandwidth,
            width,
        )
    )
    lines.append(
        _measure(
            "memory", profile.memory_bytes, [p.memory_bytes for p in others], numbers.size, width
        )
    )
    lines.extend(_power(profile, width))
    for warning in profile.warnings[:2]:
        told = wrap(warning, width - 2, "dim")
        lines.extend((Span("! " if n == 0 else "  ", "warn"), *row) for n, row in enumerate(told))
    return tuple(lines)


def _best_dtype(profile: BoxProfile, others: list[BoxProfile]) -> str | None:
    """The dtype to compare by: known on all, the fastest here; else the fastest here."""
    known = {d: r.value for d, r in profile.flops_per_s.items() if r.value is not None}
    if not known:
        return next(iter(profile.flops_per_s), None)
    shared = [
        d for d in known if all(d in p.flops_per_s and p.flops_per_s[d].known for p in others)
    ]
    return max(shared or known, key=lambda dtype: known[dtype])


def _measure(
    label: str,
    reading: Reading,
    compared: list[Reading],
    show: Callable[[float | None], str],
    width: int,
) -> Line:
    """A label, a bar against the larger of the two boxes, and the figure or why there is none."""
    head = fit(line(Span(label, "dim")), 16)
    if reading.value is None:
        return crop((*head, Span(f"{numbers.MISSING} {clean(reading.why or '')}", "dim")), width)
    top = max((other.value for other in compared if other.value), default=reading.value)
    figure = show(reading.value)
    spread = f" ±{reading.spread * 50:.0f} %" if reading.spread else ""
    room = width - 16 - 20
    drawn = bar(reading.value / top if top else 0, max(room, 4), "key")
    return crop((*head, *drawn, Span(f" {figure}", "strong"), Span(spread, "dim")), width)


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
    facts: list[Line] = []
    if link.loopback:
        return wrap(LOOPBACK_LABEL, width, "warn")
    if link.label_bytes_per_s:
        label = numbers.link_rate(link.label_bytes_per_s)
        told = (
            f"{numbers.share(forward.value / link.label_bytes_per_s)} of its label {label}"
            if forward.value
            else f"label {label}"
        )
        facts.extend(wrap(told, width, "dim"))
    p50, p99 = link.latency_s.p50, link.latency_s.p99
    if p50.known:
        text = f"round trip {numbers.seconds(p50.value)}, p99 {numbers.seconds(p99.value)}"
        facts.extend(wrap(text, width, "dim"))
    coded = link.encrypted_a_to_b
    if coded.known:
        facts.append(line(Span(f"encrypted {numbers.link_rate(coded.value)}", "dim")))
    for warning in link.warnings[:2]:
        facts.extend(wrap(f"! {warning}", width, "warn"))
    return tuple(crop(fact, width) for fact in facts)


def _arrow(a: str, b: str, text: str, width: int, *, forward: bool, role: str) -> Line:
    label = f" {text} " if text else ""
    room = max(width - 4 - len(label) - 1, 2)
    left, right = room // 2, room - room // 2
    body = "━" * left + label + "━" * right
    drawn = body + "▶" if forward else "◀" + body
    return line(Span(a, "a"), " ", Span(drawn, role), " ", Span(b, "b"))
