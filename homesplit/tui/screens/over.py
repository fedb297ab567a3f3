"""What lies over a stop of the road: the stop stays in sight behind it, darkened."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Self, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual import events, messages
from textual.app import App
from textual.color import Color
from textual.geometry import Region, Size
from textual.screen import ModalScreen, Screen
from textual.strip import Strip

_T = TypeVar("_T")


class Over(ModalScreen[_T]):
    """A dialog. It is drawn with every step that the strips move behind it.

    One whose ground is opaque, such as a page to read, hides the stop and is there sooner.
    """

    def __init__(self) -> None:
        super().__init__()
        self._darkened: tuple[Size, list[Strip]] | None = None
        self._ready = False

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of the stop behind, each of their styles darkened once."""
        behind, veil = self._behind(), self.styles.background
        if behind is None or veil.a >= 1:
            return super().render_lines(crop)
        known = self._darkened
        if known is None or known[0] != self.size:
            strips = behind._compositor.render_strips(self.size)  # pyright: ignore[reportPrivateUsage]
            known = self._darkened = (self.size, [_darkened(strip, veil) for strip in strips])
        strips = known[1][crop.y : crop.bottom]
        if crop.column_span == (0, self.size.width):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def refresh(
        self,
        *regions: Region,
        repaint: bool = True,
        layout: bool = False,
        recompose: bool = False,
    ) -> Self:
        """Paint anew; regions are those that have changed behind."""
        if regions:
            self._darkened = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def lay_out(self) -> None:
        """Lay it out for the app's size now, also before it is shown."""
        self._suit(self.app.size)
        self._layout_required = False
        self._refresh_layout(self.app.size)
        # A clock that has never run lets its first picture wait for a whole turn.
        self._update_timer.resume()

    def make_ready(self) -> None:
        """Lay it out and draw it unseen, so that its first opening is as quick as any other."""
        # It would be hidden as the screen opens without notices, and all laid out once more.
        self.query("ToastRack").set(display=False)
        self.lay_out()
        # A scroll bar that this has brought is styled otherwise as it resumes.
        self.update_node_styles(animate=False)
        self.lay_out()
        self._compositor.render_strips(self.app.size)
        self._ready = True

    def on_layout(self, event: messages.Layout) -> None:
        """One that is ready stays so: it is not left to its opening to lay it out."""
        if self._ready and not self.is_current:
            self.call_later(self._settle)

    def _settle(self) -> None:
        if self._layout_required and not self.is_current:
            self.lay_out()

    def _behind(self) -> Screen[object] | None:
        """The screen that this one lies on."""
        stack = self.app.screen_stack
        place = stack.index(self) if self in stack else 0
        return stack[place - 1] if place else None

    def on_mount(self) -> None:
        """The first layout is by the rules for the size that there is."""
        self._suit(self.app.size)

    def _suit(self, size: Size) -> None:
        """Take on the styles of narrow and wide, short and tall windows."""
        app = self.app
        for marks, room in (
            (app.HORIZONTAL_BREAKPOINTS, size.width),
            (app.VERTICAL_BREAKPOINTS, size.height),
        ):
            for _, name in marks or ():
                self.set_class(name in self._get_breakpoint_classes(room, marks or []), name)

    def on_resize(self, event: events.Resize) -> None:
        """Lay out this one and those behind, each only when it was for another size."""
        event.prevent_default().stop()
        self._suit(event.size)
        for screen in reversed(self.app.screen_stack):
            if screen._compositor.size != event.size:  # pyright: ignore[reportPrivateUsage]
                screen._screen_resized(event.size)  # pyright: ignore[reportPrivateUsage]


def _darkened(strip: Strip, veil: Color) -> Strip:
    return Strip(
        [
            Segment(text, _veiled(style or _BARE, veil), control)
            for text, style, control in strip._segments  # pyright: ignore[reportPrivateUsage]
        ],
        strip.cell_length,
    )


_BARE = Style()


def keep(app: App[Any], made: Over[Any], name: str) -> None:
    """Keep a dialog for the whole session, ready to be opened."""
    app.install_screen(made, name)
    _ = app._get_screen(made)  # pyright: ignore[reportPrivateUsage]
    # The app waits until its parts are there, and asks for a layout then: this comes after that.
    app.call_later(made.make_ready)


@lru_cache(2048)
def _veiled(style: Style, veil: Color) -> Style:
    """A style under the veil, without what a click on it would do."""
    bare = style.clear_meta_and_links()
    colours = [
        None if one is None else (Color.from_rich_color(one) + veil).rich_color
        for one in (bare.color, bare.bgcolor)
    ]
    return bare + Style.from_color(*colours)
