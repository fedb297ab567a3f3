"""The keys that work now, in one line; a click on one presses it."""

from __future__ import annotations

from typing import NamedTuple

from textual import events
from textual.screen import Screen

from homesplit.tui.widgets.lines import LinesView
from homesplit.view.spans import Line, Lines, Span, crop, width_of


class Shown(NamedTuple):
    """One key of the line."""

    key: str
    spans: Line
    tooltip: str


class KeyLine(LinesView):
    """What Textual's own footer shows, as one widget: it is drawn anew with every dialog."""

    ALLOW_SELECT = False

    def __init__(self) -> None:
        super().__init__(self._line, id="keys")

    def on_mount(self) -> None:
        """Follow what the screen's keys are."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)

    def _changed(self, screen: Screen[object]) -> None:
        if screen is self.screen and self.is_attached:
            self.redraw()

    def _keys(self) -> list[Shown]:
        found: dict[str, Shown] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if not binding.show or binding.action in found:
                continue
            words: Line = (
                Span(f" {self.app.get_key_display(binding)}", "key" if active.enabled else "dim"),
                Span(f" {binding.description} ", "" if active.enabled else "dim"),
            )
            found[binding.action] = Shown(binding.key, words, binding.tooltip)
        return list(found.values())

    def _line(self, width: int, height: int) -> Lines:
        return (crop(tuple(span for key in self._keys() for span in key.spans), width),)

    def _at(self, x: int) -> Shown | None:
        reached = 0
        for key in self._keys():
            reached += width_of(key.spans)
            if x < reached:
                return key
        return None

    def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        key = self._at(event.x)
        if key is not None:
            self.app.simulate_key(key.key)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Say more of the key under the pointer."""
        key = self._at(event.x)
        self.tooltip = key.tooltip or None if key is not None else None
