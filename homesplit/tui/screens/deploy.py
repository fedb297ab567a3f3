"""Deploy: every change on each box is listed first, then made, side by side."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll

from homesplit.tui.ask import ask
from homesplit.tui.screens.base import LongWork, StageScreen
from homesplit.tui.screens.dialogs import Question
from homesplit.tui.widgets.lines import LinesView
from homesplit.view import deploy, road
from homesplit.view.spans import Lines


class DeployScreen(StageScreen):
    """The third stop."""

    STAGE = "deploy"
    LONG_WORK: ClassVar[tuple[LongWork, ...]] = (
        LongWork(
            "deploy",
            "Stop deploying?",
            "What has been copied stays on the boxes and is used next time; nothing is started.",
        ),
        LongWork("down", "Stop stopping?", "Some boxes may go on running their part."),
        LongWork("remove", "Stop removing?", "What is gone is gone; the rest stays."),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "log", "Log", id="log", tooltip="Show or hide the log"),
        Binding("d", "down", "Stop engine", id="down", tooltip="Stop the engine on the boxes"),
        Binding("r", "remove", "Remove", id="remove", tooltip="Take everything off the boxes"),
        Binding(
            "escape",
            "stop_or_back",
            "Stop, or back",
            show=False,
            tooltip="Stop what goes on here, else one stop back",
        ),
    ]

    def compose_body(self) -> ComposeResult:
        """Summary, boxes side by side, log."""
        with VerticalScroll(id="deploy-body", classes="panel") as body:
            body.border_title = "On each box"
            yield LinesView(lambda width, height: deploy.summary(self.state, width), id="summary")
            yield LinesView(lambda width, height: deploy.body(self.state, width), id="boxes")
        with Vertical(id="log", classes="panel") as log:
            log.border_title = "Log"
            yield LinesView(self._log, id="log-lines", classes="grow")

    def _log(self, width: int, height: int) -> Lines:
        return deploy.log(self.state.log, height, width)

    def show_body(self) -> None:
        """Boxes and log as they are now."""
        for name in ("#summary", "#boxes", "#log-lines"):
            self.query_one(name, LinesView).redraw()

    def on_screen_resume(self) -> None:
        """What lies on the boxes may have changed."""
        if self.is_current:
            self.controller.look_at_boxes()

    def action_log(self) -> None:
        """Show or hide the log."""
        log = self.query_one("#log")
        log.display = not log.display

    def action_advance(self) -> None:
        """List the changes, then make them, then go on."""
        state = self.state
        if self.controller.running("deploy"):
            return
        if road.is_serving(state):
            self.go("monitor")
        elif state.deploy_plan is None:
            self.controller.plan_deployment()
        else:
            self.controller.deploy()

    async def action_stop_or_back(self) -> None:
        """Escape: a told error goes first, then what runs is asked to stop, else back."""
        if self.at_work is not None and not self.state.failures:
            self.action_stop()
        else:
            await self.app.run_action("back")

    @work
    async def action_down(self) -> None:
        """Ask, then stop the engine."""
        if not road.is_serving(self.state):
            self.tell("No engine is running.")
            return
        question = Question(
            "Stop the engine?",
            "Answers that are being written end where they are. What was copied stays on the "
            "boxes, so starting again is quick.",
            yes="stop it",
            danger=True,
        )
        if await ask(self.app, question):
            self.controller.down()

    @work
    async def action_remove(self) -> None:
        """Ask, then take everything off the boxes."""
        boxes = self.controller.removable_boxes()
        if not boxes:
            self.tell("No boxes are chosen.")
            return
        question = Question(
            f"Remove homesplit from {' and '.join(boxes)}?",
            "Stops the engine and deletes everything that homesplit put there: its folder, "
            "Python environment and models. The notebook on this machine stays.",
            yes="remove it all",
            danger=True,
        )
        if await ask(self.app, question):
            self.controller.remove()
