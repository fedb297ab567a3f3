"""What every part of the controller stands on: the chosen things, and where the engine is."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from homesplit.controller.runner import StageRunner
from homesplit.core import events
from homesplit.core.choices import Choices, toggled
from homesplit.errors import EngineError, HomesplitError


@dataclass(frozen=True, slots=True)
class Served:
    """Where the engine is reached from here."""

    url: str
    api_key: str | None


def stage_module(name: str) -> Any:
    """A stage's module, imported when it is first used; raises HomesplitError without it."""
    try:
        return importlib.import_module(f"homesplit.stages.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"homesplit.stages.{name}":
            raise
        raise HomesplitError(f"this build has no stage {name}") from error


def io_module(name: str) -> Any:
    """A module of the outside, imported when it is first used."""
    return importlib.import_module(f"homesplit.io.{name}")


class Base(StageRunner):
    """The state, the choices, the engine in use."""

    served: Served | None = None
    demo: bool = False
    recorded: bool = False
    """Whether a recording is shown, with no machine behind it."""
    _answered: Any = None
    """The question whose advice and flips are shown already."""

    @property
    def leads_to(self) -> str | None:
        """The screen that a recording shows just now; None without one."""
        return None

    @property
    def chapter_words(self) -> str:
        """Which chapter of a recording is shown; empty without one."""
        return ""

    def skip(self, by: int) -> None:
        """Chapters ahead or back; only a recording has any."""

    def choose(self, choices: Choices) -> None:
        """Take these choices."""
        if choices != self.state.choices:
            self.emit(events.ChoiceMade(choices=choices))

    def toggle_box(self, name: str) -> None:
        """Choose a box or let it go."""
        self.choose(toggled(self.state.choices, name))

    def engine_for(self, stage: str) -> Served | None:
        """The engine that a stage needs; None, and told as its failure, when there is none."""
        if self.served is None:
            self.fail(stage, self.no_engine())
        return self.served

    def no_engine(self) -> EngineError:
        """Why there is no engine to use now."""
        if self.running("serve"):
            return EngineError(
                "the engine can't be reached just now",
                do_next="It is tried again by itself: wait until it is back.",
            )
        if self.running("begin") or self.running("status"):
            return EngineError(
                "what runs on the boxes is still being looked at",
                do_next="Wait until its mode is shown, then press again.",
            )
        return EngineError("nothing is running", do_next="Deploy first (3).")

    def deployed_boxes(self) -> tuple[str, ...]:
        """The names of the boxes that the deployment runs on."""
        deployment = self.state.deployment
        return tuple(box.box for box in deployment.boxes) if deployment is not None else ()
