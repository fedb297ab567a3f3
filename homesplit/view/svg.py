"""Charts as SVG text, with the standard library alone: a notebook carries this very source."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's hues, told apart by most colour-blind people."""


Bar = tuple[str, float | None, float | None, float | None]
"""A name, a value, and the ends of its 95 % interval."""
Stack = tuple[str, Sequence[float]]
"""A name, and its parts."""
Curve = tuple[str, Sequence[tuple[float, float]]]
"""A name, and its points."""
Squares = tuple[str, Sequence[str | None]]
"""A row's name, and the word of each cell; None where nothing is known."""


def bars(title: str, unit: str, rows: Sequence[Bar], note: str = "") -> str:
    """Horizontal bars, one a row, each with its value and a line from end to end of its interval.

    A missing value says "no data". `note` stands under them.
    """
    ends = [end for _, *found in rows for end in found if end is not None]
    most = max(ends, default=0.0) or 1.0
    left = 24 + max([90, *(round(7.2 * len(name)) for name, *_ in rows)])
    width, height = left + 480, 44 + 26 * len(rows) + (24 if note else 0)
    parts = _head(title, width, height)
    for index, (name, value, low, high) in enumerate(rows):
        top, hue = 36 + 26 * index, HUES[index % len(HUES)]
        size, reach = 320.0 * (value or 0.0) / most, 320.0 * max(value or 0.0, high or 0.0) / most
        told = "no data" if value is None else f"{value:.4g} {unit}"
        parts.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{_plain(name)}</text>')
        parts.append(f'<rect x="{left}" y="{top}" width="{size:.1f}" height="18" fill="{hue}"/>')
        if low is not None and high is not None:
            a, b = left + 320.0 * low / most, left + 320.0 * high / most
            line = f"M{a:.1f} {top + 5}v8m0 -4H{b:.1f}m0 -4v8"
            parts.append(f'<path d="{line}" stroke="black" fill="none"/>')
        parts.append(f'<text x="{left + 8 + reach:.1f}" y="{top + 14}">{_plain(told)}</text>')
    return _ended(parts, height, note)


def stacked(
    title: str, unit: str, names: Sequence[str], rows: Sequence[Stack], note: str = ""
) -> str:
    """Horizontal bars of parts, one a row; `names` are the parts', as a legend under them."""
    most = max([sum(values) for _, values in rows], default=0.0) or 1.0
    left = 24 + max([90, *(round(7.2 * len(name)) for name, _ in rows)])
    width, height = left + 480, 72 + 26 * len(rows) + (24 if note else 0)
    parts = _head(title, width, height)
    for index, (name, values) in enumerate(rows):
        top, at = 36 + 26 * index, float(left)
        parts.append(f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{_plain(name)}</text>')
        for hue, value in enumerate(values):
            size = 320.0 * value / most
            parts.append(_block(at, top, size, 18, HUES[hue % len(HUES)]))
            at += size
        parts.append(
            f'<text x="{at + 8:.1f}" y="{top + 14}">{sum(values):.4g} {_plain(unit)}</text>'
        )
    parts += _legend(names, left, 36 + 26 * len(rows))
    return _ended(parts, height, note)


def curves(
    title: str,
    axes: tuple[str, str],
    series: Sequence[Curve],
    marks: Sequence[tuple[float, str]] = (),
    logarithmic: bool = False,
    note: str = "",
) -> str:
    """Lines over one axis, with marks across them; both axes logarithmic where asked for.

    A mark that the axis does not reach is left out.
    """
    points = [point for _, drawn in series for point in drawn]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across, up = _axis(xs, 70.0, 550.0, logarithmic), _axis(ys, 300.0, 40.0, logarithmic)
    parts = _head(title, 600, 372 + (24 if note else 0))
    parts.append('<path d="M70 40V300H550" stroke="#555" fill="none"/>')
    for at, told in across[1]:
        parts.append(f'<path d="M{at:.1f} 40V304" stroke="#ddd" fill="none"/>')
        parts.append(
            f'<text x="{at:.1f}" y="318" font-size="11" text-anchor="middle">{told}</text>'
        )
    for at, told in up[1]:
        parts.append(f'<path d="M66 {at:.1f}H550" stroke="#ddd" fill="none"/>')
        parts.append(
            f'<text x="62" y="{at + 4:.1f}" font-size="11" text-anchor="end">{told}</text>'
        )
    for index, (_, drawn) in enumerate(series):
        path = " ".join(f"{across[0](x):.1f},{up[0](y):.1f}" for x, y in drawn)
        # Lines that lie on each other are all seen: each later one is thinner.
        look = f'stroke="{HUES[index % len(HUES)]}" stroke-width="{max(7 - 2.5 * index, 1.5):g}"'
        parts.append(f'<polyline points="{path}" {look} fill="none"/>')
    least = min([x for x in xs if x > 0], default=0.0) if logarithmic else 0.0
    for x, told in marks:
        if not least <= x <= max(xs, default=0.0):
            continue
        at = across[0](x)
        parts.append(f'<path d="M{at:.1f} 40V300" stroke="black" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{at + 4:.1f}" y="52" font-size="11">{_plain(told)}</text>')
    parts.append(f'<text x="550" y="334" font-size="11" text-anchor="end">{_plain(axes[0])}</text>')
    parts.append(f'<text x="588" y="22" font-size="11" text-anchor="end">{_plain(axes[1])}</text>')
    parts += _legend([name for name, _ in series], 70, 340)
    return _ended(parts, 372 + (24 if note else 0), note)


def squares(
    title: str,
    axes: tuple[str, str],
    columns: Sequence[str],
    rows: Sequence[Squares],
    here: tuple[int, int],
    note: str = "",
) -> str:
    """A table of words, each word a hue of its own; the cell `here` (row, column) has a frame."""
    known = sorted({word for _, words in rows for word in words if word})
    width, height = 110 + 76 * len(columns), 96 + 28 * len(rows) + (24 if note else 0)
    parts = _head(title, max(width, 460), height)
    for index, (name, words) in enumerate(rows):
        top = 36 + 28 * index
        parts.append(f'<text x="92" y="{top + 17}" text-anchor="end">{_plain(name)}</text>')
        for column, word in enumerate(words):
            at = 100 + 76 * column
            hue = HUES[known.index(word) % len(HUES)] if word else "#eee"
            parts.append(_block(at, top, 74, 26, hue, ' fill-opacity="0.35"'))
            said = f'<text x="{at + 37}" y="{top + 17}" font-size="11" text-anchor="middle">'
            parts.append(f"{said}{_plain(word or '?')}</text>")
            if (index, column) == here:
                frame = f'<rect x="{at}" y="{top}" width="74" height="26"'
                parts.append(f'{frame} fill="none" stroke="black" stroke-width="2"/>')
    foot = 36 + 28 * len(rows) + 16
    for column, told in enumerate(columns):
        said = f'<text x="{137 + 76 * column}" y="{foot}" font-size="11" text-anchor="middle">'
        parts.append(f"{said}{_plain(told)}</text>")
    told = f"across: {axes[0]}; up: {axes[1]}; the frame is the question"
    parts.append(f'<text x="100" y="{foot + 22}" font-size="11">{_plain(told)}</text>')
    return _ended(parts, height, note)


def _axis(
    values: Sequence[float], start: float, end: float, logarithmic: bool
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Where a value lies on an axis from `start` to `end`, and its ticks."""
    if logarithmic:
        known = [value for value in values if value > 0] or [1.0]
        low, high = math.log10(min(known)), math.log10(max(known))
        wide = high - low or 1.0

        def place(value: float) -> float:
            share = (math.log10(max(value, 10.0**low)) - low) / wide
            return start + (end - start) * share

        powers = [10.0**n for n in range(math.floor(low), math.ceil(high) + 1)]
        ticks = [f * power for power in powers for f in ((1, 2, 5) if wide < 3 else (1,))]
        return place, [(place(t), f"{t:g}") for t in ticks if low <= math.log10(t) <= high]
    top = max([*values, 0.0]) or 1.0

    def place_plain(value: float) -> float:
        return start + (end - start) * value / top

    power = 10.0 ** math.floor(math.log10(top))
    step = next(f * power for f in (0.2, 0.5, 1.0, 2.0) if top / (f * power) <= 6)
    ticks = [step * n for n in range(int(top / step + 1e-9) + 1)]
    return place_plain, [(place_plain(tick), f"{tick:g}") for tick in ticks]


def _head(title: str, width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold">{_plain(title)}</text>',
    ]


def _block(x: float, y: float, width: float, height: float, hue: str, more: str = "") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{hue}"{more}/>'
    )


def _legend(names: Sequence[str], x: float, y: float) -> list[str]:
    parts: list[str] = []
    for index, name in enumerate(names):
        parts.append(_block(x, y, 12, 12, HUES[index % len(HUES)]))
        parts.append(f'<text x="{x + 16:.1f}" y="{y + 11}" font-size="11">{_plain(name)}</text>')
        x += 30 + 6.2 * len(name)
    return parts


def _ended(parts: Sequence[str], height: int, note: str) -> str:
    """The whole of it, with what must be known under it."""
    told = f'<text x="12" y="{height - 10}" font-size="11">{_plain(note)}</text>' if note else ""
    return "".join([*parts, told, "</svg>"])


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
