"""Plan: what will be asked, and which arrangement the arithmetic recommends for it."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll

from homesplit.tui.screens.base import LongWork, StageScreen
from homesplit.tui.widgets.lines import LinesView
from homesplit.tui.widgets.plot import Plot
from homesplit.tui.widgets.rows import Rows
from homesplit.view import charts, plan_charts, plan_cost, plan_grounds
from homesplit.view import plan as view
from homesplit.view import plan_map as map_view
from homesplit.view.spans import Lines, wrap

_PARTS = ("verdict", "sources", "rules", "predictions", "cost", "ledger", "map", "flips")
GOODPUT = "Goodput by offered rate, requests inside the targets"
CROSSING = "Prefill against the hand-off of its KV, by prompt length"
TURNS = "Turn what the cursor is on; the advice follows"


class PlanScreen(StageScreen):
    """The second stop."""

    STAGE = "plan"
    LONG_WORK: ClassVar[tuple[LongWork, ...]] = (
        LongWork("plan", "Stop working it out?", "What is worked out already stays on the screen."),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "turn(-1)", "Less", id="less", key_display="←", tooltip=TURNS),
        Binding("right,l", "turn(1)", "More", id="more", key_display="→", tooltip=TURNS),
        Binding("a", "again", "Work out", id="work-out", tooltip="Work out the advice anew"),
        Binding("v", "map", "Map", id="map", tooltip="The map over the load, or over the link"),
        Binding("f", "fit", "Fit", id="fit", tooltip="Take targets that these boxes can hold"),
        Binding("tab", "app.focus_next", "Scroll", show=False),
    ]

    def compose_body(self) -> ComposeResult:
        """The question on the left, the advice on the right."""
        with Horizontal(classes="grow"):
            with Vertical(id="question", classes="panel") as question:
                question.border_title = "What will be asked"
                question.border_subtitle = "tab scrolls the advice"
                yield Rows(id="question-rows", grow=True)
                yield LinesView(lambda width, height: self._spaced("guesses", width), id="guesses")
            with VerticalScroll(id="advice", classes="scroll"):
                yield self._panel("verdict", "The advice")
                # Below each other where it is narrow, else the words beside their pictures.
                with Vertical(id="advice-columns"):
                    with Vertical(classes="column"):
                        yield self._panel("sources", "What the figures rest on")
                        yield self._panel("rules", "The rules, in order")
                        yield self._panel("predictions", "Every arrangement, predicted")
                        yield self._panel("cost", "By what it takes")
                    with Vertical(classes="column"):
                        yield self._chart("rates", GOODPUT)
                        yield self._panel("ledger", "Where the time goes")
                        yield self._chart("crossing", CROSSING)
                        yield self._panel("map", "Who wins")
                        yield self._panel("flips", "What would change the answer")

    def _chart(self, name: str, title: str) -> Vertical:
        panel = Vertical(Plot(id=f"{name}-plot"), classes="panel", id=name)
        panel.border_title = title
        return panel

    def _panel(self, name: str, title: str) -> Vertical:
        panel = Vertical(
            LinesView(lambda width, height: self._part(name, width), id=name),
            classes="panel",
            id=f"{name}-panel",
        )
        panel.border_title = title
        return panel

    def _part(self, name: str, width: int) -> Lines:
        plan = self.state.plan
        if name == "verdict":
            return view.verdict(plan, width)
        if plan is None:
            return ()
        if name == "flips" and not plan.flips and self.controller.running("plan"):
            return wrap("Still being worked out.", width, "dim")
        if name == "map":
            return map_view.plan_map(self.state.plan_map, width)
        if name == "ledger":
            return view.ledger(plan, width, self.state.choices.targets.ttft_s)
        makers = {
            "rules": view.rules,
            "predictions": view.predictions,
            "sources": plan_grounds.sources,
            "cost": plan_cost.per_hardware,
            "flips": view.flips,
            "guesses": view.guesses,
        }
        return makers[name](plan, width)

    def _spaced(self, name: str, width: int) -> Lines:
        if self.state.plan is None:
            return ()
        return ((), *self._part(name, width))

    def show_body(self) -> None:
        """Question, advice and chart as they are now."""
        rows = self.query_one("#question-rows", Rows)
        rows.set_rows(view.question_rows(self.state.choices, 28 if self.size.width < 100 else 34))
        plan = self.state.plan
        for name in _PARTS:
            self.query_one(f"#{name}", LinesView).redraw()
            if name != "verdict":
                self.query_one(f"#{name}-panel").display = plan is not None
        anew = plan is not None and self.controller.running("plan")
        grounds = plan_grounds.summary(plan) if plan is not None else ""
        said = "still being worked out" if anew else grounds
        self.query_one("#verdict-panel").border_subtitle = said
        for name in ("crossing", "rates"):
            self.query_one(f"#{name}").display = plan is not None
        self.query_one("#guesses", LinesView).redraw()
        if plan is not None:
            shown = self.state.plan_map
            self.query_one("#crossing-plot", Plot).show(charts.handoff_chart(shown))
            self.query_one("#rates-plot", Plot).show(plan_charts.rates_chart(shown))
            self.query_one("#rates").border_subtitle = plan_charts.rates_words(shown)
            crossing = self.query_one("#crossing", Vertical)
            told = map_view.crossing(shown)
            crossing.border_subtitle = f"p prefill · h hand-off · ┊ you · {told}"
            self.query_one("#map-panel").border_title = map_view.title(shown)
            self.query_one("#map-panel").border_subtitle = "v: by load or by link"
        if self.focused is None:
            rows.focus()

    def action_turn(self, step: int) -> None:
        """Turn the knob under the cursor; the advice is worked out anew once it rests."""
        knob = self.query_one("#question-rows", Rows).current
        if knob == "boxes":
            self.go("machines")
        elif knob is not None:
            self.controller.turn(knob, step)

    @on(Rows.Clicked, "#question-rows")
    def _clicked(self) -> None:
        self.action_turn(1)

    def action_again(self) -> None:
        """Work out the advice."""
        self.controller.make_plan()

    def action_fit(self) -> None:
        """Targets that these boxes can hold, in place of the ones asked about."""
        if not self.controller.take_suited():
            self.tell("The advice names no targets to take: either these are held, or none would.")

    def action_map(self) -> None:
        """The map's other rows."""
        if self.state.plan is None:
            self.tell("There is no map yet: enter works out the advice.")
        else:
            self.controller.turn_map()

    def action_advance(self) -> None:
        """Work out the advice, then prepare the deployment."""
        if self.state.plan is None:
            self.controller.make_plan()
        else:
            self.controller.plan_deployment()
            self.go("deploy")
