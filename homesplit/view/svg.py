"""Bar charts as SVG text, with the standard library alone: a notebook carries this very source."""

from __future__ import annotations

from collections.abc import Sequence

HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's hues, told apart by most colour-blind people."""


Bar = tuple[str, float | None, float | None, float | None]
"""A name, a value, and the ends of its 95 % interval."""


def bars(title: str, unit: str, rows: Sequence[Bar], note: str = "") -> str:
    """Horizontal bars, one a row, each with its value and a line from end to end of its interval.

    A missing value says "no data". `note` stands under them.
    """
    ends = [end for _, *found in rows for end in found if end is not None]
    most = max(ends, default=0.0) or 1.0
    left = 24 + max([90, *(round(6.6 * len(name)) for name, *_ in rows)])
    width, height = left + 480, 44 + 26 * len(rows) + (24 if note else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold">{_plain(title)}</text>',
    ]
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
    if note:
        parts.append(f'<text x="12" y="{height - 10}" font-size="11">{_plain(note)}</text>')
    return "".join([*parts, "</svg>"])


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
