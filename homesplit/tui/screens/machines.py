"""Machines: who is there, what the two chosen ones can do, the link between them."""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll

from homesplit.tui.ask import ask
from homesplit.tui.screens.base import LongWork, StageScreen
from homesplit.tui.screens.dialogs import Ask
from homesplit.tui.widgets.lines import LinesView
from homesplit.tui.widgets.rows import Rows
from homesplit.view import machines
from homesplit.view.measured_how import measured_how
from homesplit.view.spans import EMPTY, Lines, wrap

LIST_SHARE = 40
"""Per cent of the screen's height that the list may take; beyond that it scrolls."""

TALL = 34
"""Rows from which on a figure has a line of its own above its bar."""

TOWERING, WIDE = 50, 160
"""Rows and characters from which on every figure stands there with how it was measured."""


class MachinesScreen(StageScreen):
    """The first stop."""

    STAGE = "machines"
    LONG_WORK: ClassVar[tuple[LongWork, ...]] = (
        LongWork("probe", "Stop measuring?", "What was measured before stays as it was."),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "choose", "Choose", id="choose", tooltip="Choose this machine, or let go"),
        Binding("p", "probe", "Probe", id="probe", tooltip="Measure the chosen boxes and the link"),
        Binding("a", "add", "Add by hand", id="add", tooltip="Name a machine that says nothing"),
    ]

    def compose_body(self) -> ComposeResult:
        """The list above, the two cards below."""
        with Vertical(id="found", classes="panel") as found:
            found.border_title = "Machines found"
            yield LinesView(self._nobody, id="nobody")
            yield Rows(id="machines", grow=True)
        with VerticalScroll(id="cards", classes="panel", can_focus=False) as cards:
            cards.border_title = "Side by side"
            yield LinesView(self._cards, id="card-lines")

    def show_body(self) -> None:
        """Rows and cards as they are now."""
        rows = self.query_one("#machines", Rows)
        width = max(self.size.width - 4, 20)
        now = self.controller.wall_clock()
        rows.set_rows(
            tuple(
                (box.name, machines.row(self.state, box, now, width)) for box in self.state.boxes
            ),
            machines.header(self.state, width),
        )
        rows.styles.max_height = max(self.size.height * LIST_SHARE // 100, 3)
        rows.display = bool(self.state.boxes)
        nobody = self.query_one("#nobody", LinesView)
        nobody.display = not self.state.boxes
        nobody.redraw()
        if rows.display and self.focused is None:
            rows.focus()
        self.query_one("#card-lines", LinesView).redraw()

    def _nobody(self, width: int, height: int) -> Lines:
        return tuple(
            row for text in machines.NOTHING_FOUND for row in (wrap(text, width, "dim") or ((),))
        )

    def _cards(self, width: int, height: int) -> Lines:
        tall = self.size.height
        cards = machines.cards(self.state, width, tall=tall >= TALL)
        how = measured_how(self.state, width) if tall >= TOWERING and width >= WIDE else ()
        return (*cards, EMPTY, *how) if how else cards

    @on(Rows.Clicked, "#machines")
    def action_choose(self) -> None:
        """Choose the machine under the cursor."""
        name = self.query_one("#machines", Rows).current
        box = next((box for box in self.state.boxes if box.name == name), None)
        if box is None:
            return
        if not box.usable:
            self.tell(box.why or "It can't be used.", title=box.name)
            return
        self.controller.toggle_box(box.name)

    def action_probe(self) -> None:
        """Measure what is chosen."""
        if not self.state.choices.boxes:
            self.tell("Choose one or two machines first, with space.")
            return
        self.controller.probe()

    def action_advance(self) -> None:
        """Choose, then probe, then on to the plan."""
        chosen = self.state.choices.boxes
        if not chosen:
            self.action_choose()
        elif self.controller.needs_probe():
            self.action_probe()
        else:
            self.go("monitor" if self.controller.demo else "plan")

    @work
    async def action_add(self) -> None:
        """Ask for a name or an address."""
        text = await ask(
            self.app,
            Ask(
                "Add a machine",
                "An address or a name that ssh would take, such as 192.168.1.20 or owner@atlas.",
            ),
        )
        if text:
            self.controller.add_box(text)
