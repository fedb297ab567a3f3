"""The terminal app: a mode for each stop of the road, keys, and ten pictures a second."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import ClassVar

from textual import work
from textual.app import App
from textual.binding import Binding, BindingType

from homesplit.controller import Controller
from homesplit.tui.ask import AskScreens, ask
from homesplit.tui.read import get_ready, read
from homesplit.tui.screens.base import StageScreen
from homesplit.tui.screens.dialogs import Question
from homesplit.tui.theme import FALLBACKS, LIGHT_FALLBACKS, SIXTEEN, THEMES
from homesplit.view import help as help_view
from homesplit.view import road

REFRESH_S = 0.1
STREAM_S = 1.0
"""What the engine's stream of steps changes outside of Monitor follows this often."""
HELP = "Help"
HELP_TOLD = "The keys, the idea, the words"
HELP_OF = {name: help_view.drawn(name) for name in road.SCREENS}
"""A stop's help, drawn by the same function each time, so that it is known to be the same."""
SCREENS_AFTER_S = 0.2
STEP_EACH_S = 0.05
"""The other screens are made ready once the first is painted, step by step between keys."""


def no_colours_wanted() -> bool:
    """Whether `NO_COLOR` asks for none; set to nothing, it asks for nothing (no-color.org)."""
    if not os.environ.get("NO_COLOR"):
        os.environ.pop("NO_COLOR", None)
        return False
    return True


class HomesplitApp(App[None]):
    """Shows the controller's state and hands it commands; decides nothing itself."""

    TITLE = "homesplit"
    CSS_PATH = "homesplit.tcss"
    DEFAULT_MODE = "machines"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (180, "-vast")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall"), (50, "-towering")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"go('{name}')", road.TITLES[name], show=False, id=f"go-{name}")
            for number, name in enumerate(road.SCREENS, start=1)
        ),
        Binding("escape", "back", "Back", show=False, tooltip="Hide the error, else one stop back"),
        Binding("e", "detail", "Error detail", show=False, tooltip="The last error at length"),
        Binding("greater_than_sign", "chapter(1)", "Skip ahead", show=False, id="ahead"),
        Binding("less_than_sign", "chapter(-1)", "Skip back", show=False, id="again"),
        Binding("question_mark", "help", "Help", key_display="?", id="help", tooltip=HELP_TOLD),
        Binding("q", "leave", "Quit", id="quit", tooltip="Asks first if something would be lost"),
    ]

    def __init__(
        self,
        controller: Controller,
        *,
        start: str = DEFAULT_MODE,
        on_start: Callable[[], None] | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """`on_start` is called once it is shown.

        With `on_ready` every screen is made before it is asked for, so that its key is answered
        at once; then it is called.
        """
        super().__init__(ansi_color=True if no_colours_wanted() else None)
        self.controller = controller
        controller.ask = AskScreens(self)
        self._start = start
        self._on_start = on_start
        self._on_ready = on_ready
        self._shown = self._shown_stream = -1
        self._stream_due_s = 0.0
        self._led = start
        for theme in THEMES:
            self.register_theme(theme)
        few = self.console.color_system == "standard" and not self.no_color
        self.theme = SIXTEEN if few else "homesplit"
        for name in road.SCREENS:
            self.add_mode(name, partial(self._made, name))

    def _made(self, name: str) -> StageScreen:
        """A stop's screen; its module is imported when it is first made."""
        module = importlib.import_module(f"homesplit.tui.screens.{name}")
        made: StageScreen = getattr(module, f"{name.capitalize()}Screen")(self.controller)
        # It is styled as it is mounted: Textual would style all that there is once more.
        made._css_update_count = self._css_update_count  # pyright: ignore[reportPrivateUsage]
        return made

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our roles' hues for the themes that do not know them."""
        return FALLBACKS if self.current_theme.dark else LIGHT_FALLBACKS

    async def on_mount(self) -> None:
        """Show the first stop, then begin looking about."""
        self.controller.attach()
        if self._start != self.current_mode:
            await self.switch_mode(self._start)
        self.set_interval(REFRESH_S, self._tick)
        if self._on_start is not None:
            self.call_after_refresh(self._on_start)
        self.set_timer(SCREENS_AFTER_S, partial(self._get_ready, tuple(self._preparations())))

    def _preparations(self) -> Iterator[Callable[[], object]]:
        """What is done between keys once the first screen is painted, in small steps."""
        for name in road.SCREENS:
            yield partial(importlib.import_module, f"homesplit.tui.screens.{name}")
        if self._on_ready is not None:
            for name in road.SCREENS:
                yield partial(self._init_mode, name)
            yield partial(get_ready, self, HELP, HELP_OF[self.current_mode])
            chat = importlib.import_module("homesplit.tui.screens.chat")
            yield partial(chat.get_ready, self, self.controller)
            yield partial(importlib.import_module("homesplit.tui.screens.palette").get_ready, self)
            yield self._on_ready

    def _get_ready(self, steps: Sequence[Callable[[], object]]) -> None:
        """Take one step, and the others later."""
        if not self.is_running:
            return
        steps[0]()
        if steps[1:]:
            self.set_timer(STEP_EACH_S, partial(self._get_ready, steps[1:]))

    async def _tick(self) -> None:
        """Draw again when something has happened since the last picture."""
        if not self.is_running:
            return
        await self._follow()
        told, stream = self.controller.version, self.controller.stream_version
        now_s = monotonic()
        if told == self._shown and (stream == self._shown_stream or now_s < self._stream_due_s):
            return
        self._shown, self._shown_stream = told, stream
        self._stream_due_s = now_s + STREAM_S
        screen = self.stage_screen
        if screen is not None and screen.is_mounted:
            screen.show()

    async def _follow(self) -> None:
        """Go where a recording goes, unless the person has gone elsewhere or reads a dialog."""
        leads_to = self.controller.leads_to
        if leads_to is None or leads_to == self._led:
            return
        together = self.current_mode == self._led and isinstance(self.screen, StageScreen)
        self._led = leads_to
        if together:
            await self.switch_mode(leads_to)

    @property
    def stage_screen(self) -> StageScreen | None:
        """The stop that is shown, also when a dialog lies over it."""
        found = [screen for screen in self.screen_stack if isinstance(screen, StageScreen)]
        return found[-1] if found else None

    # ------------------------------------------------------------------------- actions

    async def action_go(self, name: str) -> None:
        """Show a stop of the road."""
        await self.switch_mode(name)

    async def action_back(self) -> None:
        """Escape: a told error goes away first, then one stop back."""
        if self.controller.state.failures:
            self.controller.dismiss_failure()
            return
        place = road.SCREENS.index(self.current_mode) if self.current_mode in road.SCREENS else 0
        if place > 0:
            await self.switch_mode(road.SCREENS[place - 1])

    async def action_chapter(self, by: int) -> None:
        """Another chapter of a recording, on the screen that shows it."""
        self.controller.skip(by)
        self._led = self.controller.leads_to or self._led
        await self.switch_mode(self._led)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only a recording has chapters."""
        return action != "chapter" or self.controller.leads_to is not None

    def action_detail(self) -> None:
        """The newest error at length."""
        text = self.controller.failure_detail()
        if text:
            read(self, "What went wrong", text)

    def action_help(self) -> None:
        """Keys and what the screens mean."""
        read(self, HELP, HELP_OF[self.current_mode])

    @work
    async def action_leave(self) -> None:
        """Quit; ask first when something would be lost."""
        lost = self.controller.would_be_lost()
        if lost:
            question = Question("Quit?", lost, yes="quit all the same", danger=True)
            if not await ask(self, question):
                return
        await self.controller.close()
        self.exit()

    async def action_quit(self) -> None:
        """Textual's own key and command for leaving ask as q does."""
        self.action_leave()

    def action_command_palette(self) -> None:
        """Ours lies ready; Textual's is made anew each time, which takes its time."""
        importlib.import_module("homesplit.tui.screens.palette").open_palette(self)
