"""What `up` tells while bytes travel."""

from __future__ import annotations

from homesplit.core.events import Event, Progress
from homesplit.stages.context import Context
from homesplit.stages.deploy_work import byte_counter


def told(*counts: tuple[int, int]) -> list[Progress]:
    """The events of these counts."""
    events: list[Event] = []
    seen = byte_counter(Context(emit=events.append), "atlas", "model", "tiny")
    for done, total in counts:
        seen(done, total)
    return [event for event in events if isinstance(event, Progress)]


def test_every_event_carries_its_box_count_total_and_unit() -> None:
    (event,) = told((5_000_000, 20_000_000))
    assert (event.box, event.step, event.unit) == ("atlas", "model", "bytes")
    assert (event.done, event.total) == (5_000_000, 20_000_000)
    assert event.sentence.startswith("tiny: 5 of 20 MB")


def test_the_time_left_is_unknown_until_bytes_moved_and_none_is_left_at_the_end() -> None:
    first, last = told((5_000_000, 20_000_000), (20_000_000, 20_000_000))
    assert (first.left_s, last.left_s) == (None, 0.0)


def test_a_flood_of_counts_is_few_events_and_the_end_is_always_told() -> None:
    events = told(*((n, 1000) for n in range(1, 1001)))
    assert len(events) < 100
    assert events[-1].done == 1000
