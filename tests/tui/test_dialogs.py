"""Whatever lies over a stop fits the smallest window, with its input and its keys; the palette."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module

import pytest
from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import Input

from homesplit.stages.fault import FaultChoice
from homesplit.tui.app import HomesplitApp
from homesplit.tui.screens.base import StageScreen
from homesplit.tui.screens.chat import ChatScreen
from homesplit.tui.screens.dialogs import Ask, Question, Reading, TrustKey
from homesplit.tui.screens.entry import EntryScreen
from homesplit.tui.screens.over import Over
from homesplit.tui.screens.palette import Palette, choices
from homesplit.tui.screens.pick import Pick
from homesplit.tui.widgets.keys import Keys
from homesplit.tui.widgets.rows import Rows
from homesplit.view import help as help_view
from homesplit.view import road
from homesplit.view.spans import line, plain, wrap
from tests.tui.conftest import MakeApp
from tests.tui.test_flows import commands, picture, press, settled

LONG_NAME = "someone@a-box-with-a-long-name.living-room.home.arpa"
LONG_TEXT = "What is lost when it is stopped now is told in a few sentences. " * 4


def long_page(width: int, height: int) -> tuple[object, ...]:
    return wrap("a word " * 2000, width)


SIGNS = {
    "plus": "+",
    "minus": "-",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
}
ROWS = tuple((str(n), line(FaultChoice(box="borea", what="pause").words)) for n in range(40))
DIALOGS: dict[str, Callable[[HomesplitApp], Over[object]]] = {
    "question": lambda app: Question("Quit?", LONG_TEXT, yes="quit all the same", danger=True),
    "trust": lambda app: TrustKey(LONG_NAME, f"ssh-ed25519 SHA256:{'x' * 43}"),
    "secret": lambda app: Ask("Log in", f"The password of {LONG_NAME}.", secret=True),
    "text": lambda app: Ask("Add a note to this entry", LONG_TEXT),
    "help": lambda app: Reading("Help", help_view.drawn("monitor")),
    "error": lambda app: Reading("What went wrong", LONG_TEXT * 20),
    "entry": lambda app: EntryScreen(long_page, repeatable=True),  # type: ignore[arg-type]
    "pick": lambda app: Pick("Break something", LONG_TEXT, ROWS, danger=True),
    "chat": lambda app: ChatScreen(app.controller),
    "palette": lambda app: Palette(),
}


def needed(dialog: Over[object]) -> list[Widget]:
    """What must be seen of a dialog: where one types or chooses, and the keys."""
    return [part for kind in (Input, Rows, Keys) for part in dialog.query(kind)]


@pytest.mark.parametrize(
    ("size", "names"),
    # The smallest window is tight for those with a long text or many rows.
    [((80, 24), tuple(DIALOGS)), ((120, 40), tuple(DIALOGS)), ((60, 20), ("pick", "palette"))],
    ids=["80x24", "120x40", "60x20"],
)
async def test_no_dialog_has_anything_that_is_needed_outside_of_the_window(
    make_app: MakeApp, size: tuple[int, int], names: tuple[str, ...]
) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await press(pilot, "4")
        for name in names:
            dialog = DIALOGS[name](app)
            app.push_screen(dialog)
            await settled(pilot)
            box = dialog.query_one(".dialog")
            assert app.screen.region.contains_region(box.region), name
            for part in needed(dialog):
                told = (name, type(part).__name__)
                assert part.region.height > (2 if isinstance(part, Input | Rows) else 0), told
                assert box.content_region.contains_region(part.region), told
            keys = dialog.query_one(Keys)
            whole = plain(keys._line(999, 1))  # pyright: ignore[reportPrivateUsage]
            assert len(whole.rstrip()) <= keys.size.width or size[0] < 80, name
            app.pop_screen()
            await settled(pilot)


async def test_a_dialog_follows_a_window_that_becomes_small(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, "4", "question_mark")
        assert app.screen.has_class("-tall", "-wide")
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        assert app.screen.has_class("-short", "-narrow")
        box = app.screen.query_one(".dialog")
        assert all(box.content_region.contains_region(part.region) for part in needed(app.screen))  # type: ignore[arg-type]
        await press(pilot, "escape")
        assert app.screen.has_class("-short", "-narrow")


@pytest.mark.parametrize("name", road.SCREENS)
async def test_the_palette_holds_every_key_of_a_screen(make_app: MakeApp, name: str) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await press(pilot, str(road.SCREENS.index(name) + 1))
        held = [choice.command for choice in choices(app)]
        keys = {b.description for b in type(app.screen).BINDINGS if b.description}  # type: ignore[union-attr]
        assert keys - {"Scroll", "Stop"} <= {command.name for command in held}
        assert {"Help", "Quit", "Theme", "Go to Plan"} <= {command.name for command in held}
        assert all(command.told for command in held)


@pytest.mark.parametrize("name", road.SCREENS)
def test_the_help_of_a_screen_names_each_of_its_keys(name: str) -> None:
    module = import_module(f"homesplit.tui.screens.{name}")
    screen: type[StageScreen] = getattr(module, f"{name.capitalize()}Screen")
    listed = f"{help_view.KEYS[name]}\n{help_view.EVERYWHERE}".split("\n")
    named = {key for row in listed for key in re.split("[ ,]+", re.split("  +", row)[0])}
    for binding in screen.BINDINGS:
        assert isinstance(binding, Binding)
        key = binding.key.split(",")[0]
        assert SIGNS.get(key, key) in named, key


async def test_the_palette_does_what_is_typed_and_chosen_and_escape_does_nothing(
    make_app: MakeApp,
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "4", "ctrl+p", *"switch", "enter")
        assert commands(app) == ["mode"]
        await press(pilot, "ctrl+p")
        assert "Switch the mode" in picture(app)
        assert app.screen.query_one(Input).value == ""
        await press(pilot, "down", "down", "escape")
        assert commands(app) == ["mode"]
        await press(pilot, "ctrl+p", "down", "down", "enter")
        assert commands(app) == ["mode", "load"]
        await press(pilot, "ctrl+p", *"nothing such", "enter")
        assert "Nothing is called so" in picture(app)
        await press(pilot, "ctrl+p", "ctrl+p", *"plan", "enter")
        assert app.current_mode == "plan"


async def test_a_theme_is_picked_from_the_palette(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "ctrl+p", *"theme", "enter", "down", "down", "enter")
        assert app.theme == "homesplit-light"
