"""SVG pictures of the terminal as PNG."""

from __future__ import annotations

import re
from pathlib import Path

CELL = 12.2
"""Width of one character in Textual's SVG."""
_TEXT = re.compile(
    r'<text (class="[^"]*") x="([0-9.]+)" (y="[^"]*") textLength="[0-9.]+"([^>]*)>([^<]*)</text>'
)


def to_png(svg: Path, scale: int = 1) -> Path:
    """Write `svg` beside itself as PNG."""
    import cairosvg

    png = svg.with_suffix(".png")
    cairosvg.svg2png(
        bytestring=_each_word_placed(svg.read_text()).encode(), write_to=str(png), scale=scale
    )
    return png


def _each_word_placed(text: str) -> str:
    """Every run of characters at its own column: cairo knows no `textLength`."""
    return _TEXT.sub(_placed, text).replace("Fira Code", "DejaVu Sans Mono")


def _placed(found: re.Match[str]) -> str:
    kind, x, y, rest, content = found.groups()
    plain = _unescape(content)
    parts: list[str] = []
    for run in re.finditer(r"[^ \u00a0]", plain):
        left = float(x) + run.start() * CELL
        parts.append(f'<text {kind} x="{left:.1f}" {y}{rest}>{_escape(run.group())}</text>')
    return "".join(parts)


def _unescape(text: str) -> str:
    import html

    return html.unescape(text)


def _escape(text: str) -> str:
    import html

    return html.escape(text)
