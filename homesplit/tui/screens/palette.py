"""Everything that keys do, by name: type a part of it, enter does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from homesplit.tui.screens.base import StageScreen
from homesplit.tui.screens.over import Over, keep
from homesplit.tui.screens.pick import Pick
from homesplit.tui.widgets.keys import Key, Keys
from homesplit.tui.widgets.rows import Rows
from homesplit.view import palette, road
from homesplit.view.spans import Span, line

KEPT = "palette"
NOT_HERE = ("go(", "command_palette", "quit", "screen.copy_text", "app.focus_")
"""Beginnings of actions that stand here under another name, or do nothing from here."""


class Choice(NamedTuple):
    """A command as it is told, and what does it."""

    command: palette.Command
    run: Callable[[], object | Awaitable[object]]


class Palette(Over[None]):
    """A line to type into over the commands that fit it; it is made once and kept."""

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+p", "close", "Back"),
        *(
            Binding(key, f"move({by})", key, show=False)
            for key, by in (("up", -1), ("down", 1), ("pageup", -10), ("pagedown", 10))
        ),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._choices: Sequence[Choice] = ()

    def compose(self) -> ComposeResult:
        """The line, the commands, the keys."""
        with Vertical(classes="dialog wide") as box:
            box.border_title = "Everything you can do here"
            yield Input(placeholder="Type a part of it")
            rows = Rows(id="commands", led=True)
            rows.can_focus = False
            yield rows
            yield Keys(
                Key("↑", "", "move(-1)"),
                Key("↓", "choose", "move(1)"),
                Key("enter", "does it", "do", first=True),
                Key("escape", "goes back", "close"),
            )

    def hold(self, choices: Sequence[Choice]) -> None:
        """Show these, all of them."""
        self._choices = choices
        for typed in self.query(Input):
            typed.value = ""
            self._fill()

    def on_mount(self) -> None:
        """Fill the list."""
        self._fill()

    def on_resize(self, event: events.Resize) -> None:
        """Rows are made for a width."""
        self.call_after_refresh(self._fill)

    @on(Input.Changed)
    def _fill(self) -> None:
        rows = self.query_one(Rows)
        commands = [choice.command for choice in self._choices]
        fit = palette.matching(commands, self.query_one(Input).value)
        width = rows.size.width
        rows.set_rows(
            tuple((str(place), partial(palette.row, commands[place], width)) for place in fit),
            () if fit else line(Span("Nothing is called so.", "dim")),
        )
        if fit:
            rows.go_to(str(fit[0]))

    @on(Input.Submitted)
    @on(Rows.Clicked)
    def action_do(self) -> None:
        """Close, then do what the cursor is on."""
        place = self.query_one(Rows).current
        if place is None:
            return
        self.dismiss(None)
        self.app.call_later(self._choices[int(place)].run)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.query_one(Rows).action_move(by)

    def action_close(self) -> None:
        """Back."""
        self.dismiss(None)


def get_ready(app: App[Any]) -> Palette:
    """The one palette there is, laid out unseen when it is new."""
    if app.is_screen_installed(KEPT):
        return app.get_screen(KEPT, Palette)
    made = Palette()
    made.hold(tuple(choices(app)))
    keep(app, made, KEPT)
    return made


def open_palette(app: App[Any]) -> None:
    """Show what can be done now."""
    get_ready(app).hold(tuple(choices(app)))
    app.push_screen(KEPT)


def choices(app: App[Any]) -> Iterator[Choice]:
    """Everything that keys do on the present screen, then where one can go, then the rest."""
    yield from _keys(app)
    for number, name in enumerate(road.SCREENS, start=1):
        command = palette.Command(f"Go to {road.TITLES[name]}", str(number), f"Stop {number}")
        yield Choice(command, partial(app.switch_mode, name))
    yield Choice(palette.Command("Theme", "", "Other colours"), partial(_pick_theme, app))
    picture = palette.Command("Screenshot", "", "Save an SVG of this screen")
    yield Choice(picture, partial(app.call_after_refresh, app.deliver_screenshot))


def _keys(app: App[Any]) -> Iterator[Choice]:
    named: set[str] = set()
    for active in app.screen.active_bindings.values():
        binding, node = active.binding, active.node
        name, action = binding.description, binding.action
        ours = isinstance(node, StageScreen | App) and active.enabled and name
        if ours and name not in named and not action.startswith(NOT_HERE):
            named.add(name)
            command = palette.Command(name, app.get_key_display(binding), binding.tooltip)
            yield Choice(command, partial(app.run_action, action, node))


async def _pick_theme(app: App[Any]) -> None:
    rows = tuple((name, line(name)) for name in sorted(app.available_themes))

    def take(picked: str | None) -> None:
        if picked is not None:
            app.theme = picked

    await app.push_screen(Pick("Theme", "Colours for this session.", rows, at=app.theme), take)
