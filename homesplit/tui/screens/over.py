"""What lies over a stop of the road: the stop stays in sight behind it, darkened."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from rich.console import RenderableType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.renderables.background_screen import BackgroundScreen
from textual.screen import ModalScreen

_T = TypeVar("_T")


class Over(ModalScreen[_T]):
    """A dialog."""

    def render(self) -> RenderableType:
        """The stop behind, each of its styles darkened once and not for every run of text."""
        made = super().render()
        if isinstance(made, BackgroundScreen):
            return _Darkened(made.screen, made.color)
        return made


class _Darkened(BackgroundScreen):
    """The same picture; it is drawn with every step that the strips move behind a dialog."""

    @classmethod
    def process_segments(cls, segments: Iterable[Segment], color: Color) -> Iterable[Segment]:
        """Segments under a veil of `color`."""
        for text, style, control in segments:
            if control:
                yield Segment(text, style, control)
            else:
                yield Segment(text, _veiled(style or _BARE, color))


_BARE = Style()


@lru_cache(2048)
def _veiled(style: Style, veil: Color) -> Style:
    """A style under the veil, without what a click on it would do."""
    bare = style.clear_meta_and_links()
    if veil.a == 0:
        return bare
    colours = [
        None if one is None else (Color.from_rich_color(one) + veil).rich_color
        for one in (bare.color, bare.bgcolor)
    ]
    return bare + Style.from_color(*colours)
