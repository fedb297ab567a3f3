"""An app over the hand-made run: fixed clock, no machine, no network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from homesplit.controller import Opened
from homesplit.core.entry import Entry
from homesplit.core.events import Event
from homesplit.replay import Replay
from homesplit.stages.fault import FaultChoice
from homesplit.tui.app import HomesplitApp
from tests.tui import sample_run


class Recorded(Replay):
    """Plays at once, at a fixed time of day, and keeps what it was told to do."""

    recorded = False

    def __init__(self, told: Sequence[Event]) -> None:
        super().__init__([(0.0, event) for event in told], speed=0)
        self.commands: list[str] = []
        self.own_boxes = False
        self.busy: set[str] = set()

    def attach(self) -> None:
        """All is told as soon as there is an app, and nothing after the first picture."""
        super().attach()
        self.begin()

    def wall_clock(self) -> datetime:
        """Five minutes after the sample's probes."""
        return datetime(2026, 1, 1, 12, 5, tzinfo=UTC)

    def running(self, name: str) -> bool:
        """Whether a stage goes on, as a test says."""
        return name in self.busy or super().running(name)

    def cancel(self, name: str) -> None:
        """Only kept."""
        self.commands.append(f"stop {name}")

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

    def fault_choices(self) -> tuple[Any, ...]:
        """A box that may be paused, unless the run is on boxes of one's own."""
        return () if self.own_boxes else (FaultChoice(box="borea", what="pause"),)

    def inject(self, choice: Any) -> None:
        """Only kept."""
        self.commands.append(choice.words)

    def cancel_request(self, request_id: str) -> None:
        """Only kept."""
        self.commands.append(f"cancel {request_id}")

    def measure_targets(self) -> None:
        """Only kept."""
        self.commands.append("targets")

    def repeat(self, opened: Opened) -> None:
        """Only kept."""
        self.commands.append(f"repeat {opened.entry.id}")

    def add_note(self, text: str, entry_id: str | None = None) -> None:
        """Only kept."""
        self.commands.append(f"note {text} on {entry_id}")

    async def opened(self, entry_id: str) -> Opened | None:
        """A comparison with one raw record."""
        entry = Entry(
            id=entry_id,
            number=1,
            kind="comparison",
            at="2026-01-01T12:00",
            sentence="Split keeps more requests inside the targets.",
            body={"modes": [{"mode": "split", "ttft_s": {"p50": 0.5, "p90": 0.9}}]},
        )
        return Opened(entry=entry, raw={"split round 1": ({"id": 1},)}, notes=("Borea was warm.",))

    async def looked_at(self, entry_id: str) -> Opened | None:
        """The same."""
        return await self.opened(entry_id)

    def toggle_load(self) -> None:
        """Only kept."""
        self.commands.append("load")


MakeApp = Callable[..., HomesplitApp]


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> MakeApp:
    """Makes an app that has been told these events (the whole sample run unless given)."""
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    # The colours of the terminal that the tests happen to run in must not matter.
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def make(told: Sequence[Event] | None = None) -> HomesplitApp:
        controller = Recorded(sample_run.whole_run() if told is None else told)
        return HomesplitApp(controller)

    return make
