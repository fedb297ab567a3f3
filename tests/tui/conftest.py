"""An app over the hand-made run: fixed clock, no machine, no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest

from homesplit.core.events import Event
from homesplit.replay import Replay
from homesplit.tui.app import HomesplitApp
from tests.tui import sample_run


class Recorded(Replay):
    """Plays at once, at a fixed time of day, and keeps what it was told to do."""

    def __init__(self, told: Sequence[Event]) -> None:
        super().__init__([(0.0, event) for event in told], speed=0)
        self.commands: list[str] = []

    def wall_clock(self) -> datetime:
        """Five minutes after the sample's probes."""
        return datetime(2026, 1, 1, 12, 5, tzinfo=UTC)

    def read_notebook(self) -> None:
        """The sample brings its own entries."""

    def probe(self) -> None:
        """Only kept."""
        self.commands.append("probe")

    def deploy(self) -> None:
        """Only kept."""
        self.commands.append("deploy")

    def down(self) -> None:
        """Only kept."""
        self.commands.append("down")

    def next_mode(self) -> None:
        """Only kept."""
        self.commands.append("mode")

    def toggle_load(self) -> None:
        """Only kept."""
        self.commands.append("load")


MakeApp = Callable[..., HomesplitApp]


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> MakeApp:
    """Makes an app that has been told these events (the whole sample run unless given)."""
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")

    def make(told: Sequence[Event] | None = None) -> HomesplitApp:
        controller = Recorded(sample_run.whole_run() if told is None else told)
        return HomesplitApp(controller, on_start=controller.begin)

    return make
