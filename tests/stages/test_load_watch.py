"""What is kept of the router's events while a load runs."""

from __future__ import annotations

import pytest

from homesplit.core.events import RequestDone, StatusSeen, StepSeen
from homesplit.stages import load_watch
from homesplit.stages.load_watch import EventBox
from tests.core.test_served import beside, record, step


def test_of_a_long_run_the_last_requests_and_readings_are_kept_where_its_steps_no_longer_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_watch, "MAX_EVENTS", 2)
    box = EventBox()
    for _ in range(3):
        box.take(StepSeen(event=step(0.0, 1.0), offset_s=0.0))
    late = [RequestDone(record=record()), StatusSeen(status=beside("a", 0.5))]
    for event in late:
        box.take(event)
    assert len(box.events) == 4 and box.events[2:] == late
