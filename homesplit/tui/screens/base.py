"""What every stage's screen has: the road on top, news below it, the next step, the keys."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen

from homesplit.controller import Controller
from homesplit.core.state import RunState
from homesplit.tui.ask import ask
from homesplit.tui.screens.dialogs import Question
from homesplit.tui.widgets.footer import KeyLine
from homesplit.tui.widgets.lines import LinesView
from homesplit.view import road
from homesplit.view.spans import Lines, Span, crop, line


class Road(LinesView):
    """The stage bar; a click on a stop goes there."""

    def on_click(self, event: events.Click) -> None:
        """Find the stop's number left of the click."""
        parts = self._current()
        reached, number = 0, None
        for span in parts[0] if parts else ():
            text = span.text.strip()
            if text and text[0].isdigit():
                number = int(text[0])
            reached += len(span.text)
            if event.x < reached:
                break
        if number is not None:
            self.app.switch_mode(road.SCREENS[number - 1])


class News(LinesView):
    """What goes on or went wrong; a click opens the error."""

    async def on_click(self) -> None:
        """As the key for it does."""
        await self.app.run_action("detail")


class NextStep(LinesView):
    """What enter does; a click does it too."""

    async def on_click(self) -> None:
        """As enter does."""
        await self.screen.run_action("advance")


class LongWork(NamedTuple):
    """Work that can be stopped: the stage's name, and what is asked before it is."""

    stage: str
    question: str
    text: str


class StageScreen(Screen[None]):
    """One stop of the road; subclasses give the body and show the state in it."""

    STAGE: ClassVar[str] = ""
    LONG_WORK: ClassVar[tuple[LongWork, ...]] = ()
    """What this stop does that takes its time."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "advance", "Next", id="advance", tooltip="Do what the line above says"),
        Binding("s", "stop", "Stop", id="stop", tooltip="Stop what is being done here"),
    ]

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.controller = controller
        self._shown_work: LongWork | None = None

    @property
    def state(self) -> RunState:
        """The state to draw."""
        return self.controller.state

    def compose(self) -> ComposeResult:
        """Road, news, the screen's own body, next step, keys."""
        yield Road(self._road, id="road")
        yield News(self._news, id="news")
        yield from self.compose_body()
        with Vertical(id="foot"):
            yield NextStep(self._next, id="next")
            yield KeyLine()

    def compose_body(self) -> ComposeResult:
        """The screen's own part."""
        yield Vertical()

    def show_body(self) -> None:
        """Draw the state into the body."""

    @property
    def drawable(self) -> bool:
        """Whether there is something to draw on: no more once it or the app closes.

        Clocks still tick while the app takes its screens apart, widget by widget.
        """
        return self.is_running and self.app.is_running

    def show(self) -> None:
        """Draw the state as it is now."""
        if not self.drawable:
            return
        for name in ("#road", "#news", "#next"):
            self.query_one(name, LinesView).redraw()
        self.show_body()
        if self._shown_work != self.at_work:
            self._shown_work = self.at_work
            self.refresh_bindings()

    @property
    def at_work(self) -> LongWork | None:
        """What goes on here that can be stopped."""
        return next((one for one in self.LONG_WORK if self.controller.running(one.stage)), None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What does not run can't be stopped."""
        return action != "stop" or self.at_work is not None

    @on(events.ScreenResume)
    def _resumed(self) -> None:
        self.show()

    def on_mount(self) -> None:
        """First picture."""
        self.show()

    def on_resize(self) -> None:
        """Rows are made for a width, so a new size needs new ones."""
        self.call_after_refresh(self.show)

    def _road(self, width: int, height: int) -> Lines:
        return (road.road(self.state, self.STAGE, width),)

    def _news(self, width: int, height: int) -> Lines:
        lines = (road.unheard(self.state, width), road.work(self.state, width, self.STAGE))
        return (*road.trouble(self.state, width), *(one for one in lines if one))

    def _next(self, width: int, height: int) -> Lines:
        if self.controller.recorded:
            told = line(
                Span(" a recording", "strong"),
                Span(f" {self.controller.chapter_words}  ", "dim"),
                Span(" > ", "key"),
                "ahead ",
                Span(" < ", "key"),
                "back ",
                Span(" 1 to 6 ", "key"),
                "look around",
            )
            return (crop(told, width),)
        text = road.next_step(self.state, self.STAGE)
        if not text:
            return (line(""),)
        return (crop(line(Span(" ▸ enter ", "key"), Span(text, "strong")), width),)

    def go(self, stage: str) -> None:
        """Show another stop."""
        self.app.switch_mode(stage)

    def tell(self, message: str, *, title: str = "", warning: bool = True) -> None:
        """A notice that goes away by itself, its text shown as written and never as markup."""
        self.notify(
            message,
            title=title,
            severity="warning" if warning else "information",
            timeout=5 if warning else 2,
            markup=False,
        )

    def action_advance(self) -> None:
        """Enter: the sensible thing."""

    @work
    async def action_stop(self) -> None:
        """Ask, then stop what goes on here."""
        one = self.at_work
        if one is None:
            return
        question = Question(one.question, one.text, yes="stop it")
        if await ask(self.app, question):
            self.controller.cancel(one.stage)
