"""Dialogs: a question, a line of text, a text to read. Escape always means no.

Titles are `Content`, for Textual reads a plain string as markup and names are found ones.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input

from homesplit.core.found import SHOW_HOST_KEYS
from homesplit.tui.screens.over import Over
from homesplit.tui.widgets.keys import Key, Keys
from homesplit.tui.widgets.lines import Draw, LinesView
from homesplit.view.spans import EMPTY, Line, Lines, Span, wrap


def _paragraphs(text: str, width: int) -> Lines:
    """Each line of the text broken to the width, as far to the right as it stood."""
    rows: list[Line] = []
    for part in text.split("\n"):
        margin = " " * min(len(part) - len(part.lstrip()), width // 2)
        broken = wrap(part, width - len(margin)) or (EMPTY,)
        rows.extend((Span(margin), *row) if margin else row for row in broken)
    return tuple(rows)


class Question(Over[bool]):
    """A question with yes and no; nothing happens without a yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, title: str, text: str, *, yes: str, danger: bool = False) -> None:
        super().__init__()
        self._title, self._text, self._yes, self._danger = title, text, yes, danger

    def compose(self) -> ComposeResult:
        """Title, text, answers."""
        with Vertical(classes="dialog danger" if self._danger else "dialog") as box:
            box.border_title = Content(self._title)
            yield LinesView(self._body)
            yield Keys(
                Key("y", self._yes, "answer(True)", first=True),
                Key("n", "no (escape)", "answer(False)"),
            )

    def _body(self, width: int, height: int) -> Lines:
        return _paragraphs(self._text, width)

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class TrustKey(Question):
    """Whether an unknown SSH host key is right, with the fingerprint to compare."""

    def __init__(self, box: str, fingerprint: str) -> None:
        super().__init__(
            f"Is this really {box}?",
            f"homesplit has not met {box} before. Its SSH host key is\n\n{fingerprint}\n\n"
            f"Compare it with what the box itself says (on the box: {SHOW_HOST_KEYS}). "
            "The key is remembered, and a change later is refused.",
            yes="it is, trust this key",
        )


class Ask(Over[str | None]):
    """One line of text, or a secret whose characters are not shown."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "Back")]

    def __init__(
        self, title: str, text: str, *, secret: bool = False, placeholder: str = ""
    ) -> None:
        super().__init__()
        self._title, self._text = title, text
        self._secret, self._placeholder = secret, placeholder

    def compose(self) -> ComposeResult:
        """Title, text, input."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(self._title)
            yield LinesView(lambda width, height: wrap(self._text, width))
            yield Input(password=self._secret, placeholder=self._placeholder)
            yield Keys(
                Key("enter", "takes it", "take", first=True), Key("escape", "goes back", "give_up")
            )

    def on_input_submitted(self) -> None:
        """Enter takes what was typed."""
        self.action_take()

    def action_take(self) -> None:
        """Close with what was typed."""
        self.dismiss(self.query_one(Input).value or None)

    def action_give_up(self) -> None:
        """Escape: nothing."""
        self.dismiss(None)


class Reading(Over[None]):
    """Something to read at length."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Back")]

    def __init__(self, title: str, draw: Draw | str) -> None:
        super().__init__()
        self._title, self._draw = title, draw

    def turn_to(self, title: str, draw: Draw | str) -> None:
        """Hold something else, laid out before it is shown so that it is painted once."""
        same = (title, draw) == (self._title, self._draw)
        self._title, self._draw = title, draw
        box = self.query(".dialog")
        if not box:
            return
        self.query_one(".body", VerticalScroll).scroll_home(animate=False)
        if not same:
            box.first().border_title = Content(title)
            self.query_one(".body LinesView", LinesView).redraw()
            self.lay_out()

    def compose(self) -> ComposeResult:
        """Title and scrolled text."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = Content(self._title)
            with VerticalScroll(classes="body"):
                yield LinesView(self._body)
            yield Keys(Key("escape", "goes back", "close", first=True))

    def _body(self, width: int, height: int) -> Lines:
        draw = self._draw
        return _paragraphs(draw, width) if isinstance(draw, str) else draw(width, height)

    def action_close(self) -> None:
        """Back."""
        self.dismiss(None)
