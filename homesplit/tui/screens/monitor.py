"""Monitor: figures against targets, the step timeline, the last requests, the boxes."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content

from homesplit.controller import Controller
from homesplit.core.engine_state import MAX_RECORDS, Done
from homesplit.tui.ask import ask
from homesplit.tui.read import read
from homesplit.tui.screens import chat
from homesplit.tui.screens.base import StageScreen
from homesplit.tui.screens.dialogs import Question
from homesplit.tui.screens.pick import Pick
from homesplit.tui.widgets.lines import LinesView, MovingLines, subtitle
from homesplit.tui.widgets.rows import Rows
from homesplit.view import charts, ledger, monitor, road, stalls, timeline
from homesplit.view.history import History
from homesplit.view.link_use import Moves
from homesplit.view.panels import Seen, panel, panel_lines
from homesplit.view.prompt_classes import legend, prompt_classes
from homesplit.view.running import running, running_row
from homesplit.view.scatter import scatter
from homesplit.view.spans import Lines, crop, line, wrap
from homesplit.view.trails import Trails
from homesplit.view.watch import Watch

STRIP_S = 0.5
"""The strips move this often, and no more than a column at a time is worth."""
FIGURES_S = 1.5
SLOW_S = 3.0
WINDOWS_S = (2.0, 5.0, 10.0, 20.0, 60.0)
TILES = ("ttft", "tpot", "gap")
HIGHER = "  ↑ higher"
NEARER, FARTHER = "A shorter stretch of time in the strips", "A longer one"


class MonitorScreen(StageScreen):
    """The fourth stop."""

    STAGE = "monitor"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "mode", "Mode", id="mode", tooltip="Switch the mode while it serves"),
        Binding("l", "load", "Load", id="load", tooltip="Start or stop the load"),
        Binding(
            "plus,equals_sign",
            "rate(1.25)",
            "Rate",
            id="faster",
            key_display="+/-",
            tooltip="More requests a second",
        ),
        Binding(
            "minus",
            "rate(0.8)",
            "Slower",
            show=False,
            id="slower",
            tooltip="Fewer of them a second",
        ),
        Binding(
            "t",
            "targets",
            "Targets",
            show=False,
            id="targets",
            tooltip="Serve a few requests alone and take the targets from them",
        ),
        Binding("x", "cancel", "Cancel", id="cancel", tooltip="Cancel a running request"),
        Binding("c", "chat", "Chat", id="chat", tooltip="Talk to the model, see your own TTFT"),
        Binding("i", "fault", "Fault", id="fault", tooltip="Break something (demo and lab only)"),
        Binding("left_square_bracket", "zoom(-1)", "Zoom in", show=False, tooltip=NEARER),
        Binding(
            "right_square_bracket", "zoom(1)", "Zoom out", id="zoom", show=False, tooltip=FARTHER
        ),
        Binding("f", "freeze", "Hold still", id="freeze", show=False, tooltip="Or let it move on"),
    ]

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._zoom = 2
        self._frozen_s: float | None = None
        self._watch, self._history, self._moves = Watch(), History(), Moves()
        self._trails = Trails()
        self._minute: tuple[Done, ...] = ()
        self._seen = Seen((), ())
        self._moved_s = 0.0

    def compose_body(self) -> ComposeResult:
        """Headline, figures, strips, charts, requests, boxes."""
        yield LinesView(lambda w, h: (monitor.headline(self.state, w),), id="headline")
        with Horizontal(id="tiles"):
            for which in (*TILES, "goodput"):
                yield self._tile(which)
        with Vertical(id="timeline", classes="panel") as strips:
            strips.border_title = "What each box does, step by step"
            strips.border_subtitle = Content("[ ] zoom  f hold still")
            yield MovingLines(self._strips, id="strips")
            yield LinesView(lambda w, h: (timeline.legend(w),), id="legend")
        with Horizontal(id="charts"):
            for which, title in (("ttft", "TTFT, a point a request"), ("tpot", "TPOT")):
                with Vertical(classes="panel grow", id=f"chart-{which}") as chart:
                    chart.border_title = title
                    yield MovingLines(partial(self._chart_lines, which), id=f"plot-{which}")
        with Vertical(id="requests", classes="panel") as requests:
            requests.border_title = "Last requests"
            requests.border_subtitle = Content(ledger.legend())
            yield LinesView(self._unserved, id="unserved")
            yield LinesView(self._misses, id="misses")
            yield Rows(id="request-rows", live=True)
        with Vertical(id="boxes-panel", classes="panel") as boxes:
            boxes.border_title = "Boxes"
            yield MovingLines(
                lambda w, h: monitor.box_lines(self.state, self._moves, w, self.now_s),
                id="box-lines",
            )

    def _tile(self, which: str) -> Vertical:
        titles = {"ttft": "TTFT p50", "tpot": "TPOT p50", "gap": "Longest wait"}
        panel = Vertical(
            MovingLines(lambda w, h: self._tile_lines(which, w), id=f"tile-{which}"),
            classes="panel",
        )
        panel.border_title = titles.get(which, "Goodput")
        return panel

    # ------------------------------------------------------------------------- drawing

    def on_mount(self) -> None:
        """Strips, figures and charts each have a clock, so that they move without events."""
        super().on_mount()
        self.set_interval(STRIP_S, self._move_strips)
        self.set_interval(FIGURES_S, self._show_figures)
        self.set_interval(SLOW_S, self._show_slow)

    @property
    def now_s(self) -> float:
        """The moment at the right edge."""
        return self.controller.engine_now_s() if self._frozen_s is None else self._frozen_s

    @property
    def seen(self) -> bool:
        """Whether it lies before the person and stands."""
        return self.is_current and self.drawable

    @property
    def _window_s(self) -> float:
        return WINDOWS_S[self._zoom]

    def _look(self) -> None:
        """Follow what the engine has told since the last time."""
        engine = self.state.engine
        self._watch.take(engine, self.state.choices.targets.tpot_s)
        self._history.take(engine)
        self._moves.take(engine)
        self._trails.take(engine, prompt_classes(self.state.load))

    def _tile_lines(self, which: str, width: int) -> Lines:
        height = 2 if self.size.height < 34 else 4
        now_s = self.now_s
        if which == "goodput":
            return monitor.goodput_lines(self.state, self._minute, now_s, width, height)
        targets, history = self.state.choices.targets, self._history.of(which, now_s)
        source = self.state.choices.targets_from[which != "ttft"]
        return panel_lines(panel(self._seen, which, targets, history), width, height, source)

    def _strips(self, width: int, height: int) -> Lines:
        names = monitor.box_names(self.state)
        if not names:
            return wrap(monitor.NOTHING_RUNS, width, "dim")
        self._look()
        engine, window_s, now_s = self.state.engine, self._window_s, self.now_s
        strips = timeline.timeline(
            self._watch, engine, now_s=now_s, window_s=window_s, width=width, boxes=names
        )
        fault = monitor.latest_fault(engine, now_s, window_s)
        if fault is not None:
            return (*strips, crop(fault, width))
        if self.state.choices.targets.tpot_s is None:
            return strips
        stall = timeline.telling_stall(self._watch, now_s, window_s)
        return (*strips, *stalls.sentence_lines(stall, self._watch, engine, width))

    def _chart_lines(self, which: str, width: int, height: int) -> Lines:
        targets = self.state.choices.targets
        chart = charts.requests_chart(self.state.engine, self._trails, which, targets, self.now_s)
        return scatter(chart, width, height)

    def _unserved(self, width: int, height: int) -> Lines:
        return wrap(monitor.NOTHING_SERVED, width, "dim")

    def _misses(self, width: int, height: int) -> Lines:
        lines = 1 if self.size.height < 34 else 2
        return ledger.misses(self.state.engine.records, self._minute, width, lines)

    def show_body(self) -> None:
        """Only what is cheap and must follow at once; the rest has its own clock."""
        self._look()
        for name in ("#headline", "#box-lines"):
            self.query_one(name, LinesView).redraw()
        self._tell_classes()

    def on_screen_resume(self) -> None:
        """Draw everything when coming back."""
        if self.seen:
            self._show_figures()
            self._show_slow()
            self._draw_strips()

    def _move_strips(self) -> None:
        """Draw the strips when they have moved by a column; follow the steps even unseen."""
        if not self.seen:
            self._look()
            return
        now_s = self.now_s
        columns = max(self.size.width - timeline.LABEL, 10)
        if self._moved_s and 0 <= now_s - self._moved_s < self._window_s / columns:
            self._look()
            return
        self._moved_s = now_s
        self._draw_strips()

    def _draw_strips(self) -> None:
        self.query_one("#strips", LinesView).redraw()

    def _show_figures(self) -> None:
        if not self.seen:
            return
        self._look()
        now_s = self.now_s
        self._minute = monitor.recent(self.state.engine, now_s)
        self._seen = Seen(self._minute, prompt_classes(self.state.load))
        span = monitor.span_words(self.state.engine, now_s, self.size.width // 4 - 6)
        for which in (*TILES, "goodput"):
            tile = self.query_one(f"#tile-{which}", LinesView)
            tile.redraw()
            if isinstance(tile.parent, Vertical):
                subtitle(tile.parent, span)
        self._show_requests()

    def _show_slow(self) -> None:
        """What covers minutes: charts, boxes, link."""
        if not self.seen:
            return
        self.query_one("#box-lines", LinesView).redraw()
        if not self.query_one("#charts").display:
            return
        self._tell_classes()
        for which in ("ttft", "tpot"):
            self.query_one(f"#plot-{which}", LinesView).redraw()

    def _tell_classes(self) -> None:
        legends = f"{legend(prompt_classes(self.state.load))}  ┈ target  ┊ mode, fault"
        if len(legends) + len(HIGHER) <= self.size.width // 2 - 6:
            legends += HIGHER
        for which in ("ttft", "tpot"):
            subtitle(self.query_one(f"#chart-{which}", Vertical), legends)

    def _show_requests(self) -> None:
        rows = self.query_one("#request-rows", Rows)
        width = max(self.size.width - 4, 40)
        engine, now_s = self.state.engine, self.now_s
        dones = {done.request_id: done for done in engine.requests[-MAX_RECORDS:]}
        now = running(self._watch, now_s)
        rows.set_rows(
            (
                *((one.request_id, running_row(one, now_s, width)) for one in now),
                *ledger.rows(engine.records, dones, width),
            ),
            ledger.header(width),
        )
        rows.display = bool(engine.records or now)
        self.query_one("#misses", LinesView).redraw()
        unserved = self.query_one("#unserved")
        unserved.display = not rows.display
        if rows.display and self.focused is None:
            rows.focus()

    # ------------------------------------------------------------------------- actions

    def action_advance(self) -> None:
        """Open the request under the cursor, or start what is missing."""
        if not road.is_serving(self.state) and not self.state.engine.records:
            if not road.is_starting(self.state):
                self.go("deploy")
        elif self.state.engine.records:
            self._open_request()
        else:
            self.action_load()

    @on(Rows.Clicked, "#request-rows")
    def _open_request(self) -> None:
        current = self.query_one("#request-rows", Rows).current
        record = next((r for r in self.state.engine.records if r.request_id == current), None)
        if record is None:
            self.tell("It is still being served: it can be opened once it has ended.")
        else:
            read(
                self.app,
                "One request, from receipt to last token",
                lambda width, height: ledger.request_detail(record, width),
            )

    def action_mode(self) -> None:
        """The next mode."""
        self.controller.next_mode()

    def action_load(self) -> None:
        """Start or stop the load."""
        self.controller.toggle_load()

    def action_rate(self, factor: float) -> None:
        """More or fewer requests a second."""
        self.controller.turn_load_rate(factor)

    def action_targets(self) -> None:
        """Serve a few requests alone and take the targets from them."""
        if self.state.load.running:
            self.tell("Stop the load first (l): targets come from requests that are alone.")
            return
        self.controller.measure_targets()

    def action_zoom(self, by: int) -> None:
        """A shorter or longer stretch of time."""
        self._zoom = max(0, min(len(WINDOWS_S) - 1, self._zoom + by))
        self._draw_strips()

    def action_freeze(self) -> None:
        """Hold still, or move on."""
        self._frozen_s = self.now_s if self._frozen_s is None else None
        state = "held still: f lets them move on" if self._frozen_s is not None else "moving again"
        self.tell(f"The strips are {state}.", warning=False)

    @work
    async def action_cancel(self) -> None:
        """Ask, then cancel the running request under the cursor, else the newest."""
        request = self._running_one()
        if request is None:
            self.tell("No request is running.")
            return
        question = Question(
            f"Cancel request {request}?",
            "Its answer ends where it is, and its memory is freed on both boxes.",
            yes="cancel it",
            danger=True,
        )
        if await ask(self.app, question):
            self.controller.cancel_request(request)

    def _running_one(self) -> str | None:
        found = [one.request_id for one in running(self._watch, self.now_s)]
        current = self.query_one("#request-rows", Rows).current
        return current if current in found else next(iter(found), None)

    @work
    async def action_fault(self) -> None:
        """Pick something to break for some seconds."""
        choices = self.controller.fault_choices()
        if not choices:
            self.tell("Faults are for the demo and the lab: your own boxes are left in peace.")
            return
        if self.controller.running("fault"):
            self.tell("A fault is on already; it ends by itself.")
            return
        rows = tuple((str(n), line(choice.words)) for n, choice in enumerate(choices))
        told = "It is undone by itself. Requests should pause and go on; none should be lost."
        picked = await ask(self.app, Pick("Break something", told, rows, danger=True))
        if picked is not None:
            self.controller.inject(choices[int(picked)])

    def action_chat(self) -> None:
        """Talk to the model."""
        if not road.is_serving(self.state):
            self.tell("Nothing is running to talk to: 3 deploys.")
            return
        chat.get_ready(self.app, self.controller)
        self.app.push_screen(chat.KEPT)
