"""Bar charts as SVG text, with the standard library alone: a notebook carries this very source."""

from __future__ import annotations

from collections.abc import Sequence

HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's hues, told apart by most colour-blind people."""


def bars(title: str, unit: str, rows: Sequence[tuple[str, float | None]]) -> str:
    """Horizontal bars, one a row, each with its value; a missing value says "no data"."""
    known = [value for _, value in rows if value is not None]
    most = max(known, default=0.0) or 1.0
    height = 44 + 26 * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="640" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold">{_plain(title)}</text>',
    ]
    for index, (name, value) in enumerate(rows):
        top = 36 + 26 * index
        told = "no data" if value is None else f"{value:.4g} {unit}"
        width = 0.0 if value is None else 320.0 * value / most
        hue = HUES[index % len(HUES)]
        parts.append(f'<text x="172" y="{top + 14}" text-anchor="end">{_plain(name)}</text>')
        parts.append(f'<rect x="180" y="{top}" width="{width:.1f}" height="18" fill="{hue}"/>')
        parts.append(f'<text x="{188 + width:.1f}" y="{top + 14}">{_plain(told)}</text>')
    return "".join([*parts, "</svg>"])


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
