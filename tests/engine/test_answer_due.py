"""How long a sender waits for the answer to a hand-off: a table."""

from __future__ import annotations

import pytest
from homesplit_engine.handoff.sender import (
    ON_THE_WAY_BYTES,
    SLOWEST_BYTES_PER_S,
    STALL_S,
    answer_due_s,
)

SLOWEST = int(SLOWEST_BYTES_PER_S)


@pytest.mark.parametrize(
    ("begun_s", "unanswered_bytes", "later_s"),
    [
        (100.0, 0, STALL_S),
        (100.0, 4 * SLOWEST, STALL_S + 4),
        (98.0, 4 * SLOWEST, STALL_S + 4),
        (40.0, 4 * SLOWEST, STALL_S + 60),
        (100.0, 900 * SLOWEST, STALL_S + ON_THE_WAY_BYTES / SLOWEST),
    ],
    ids=[
        "nothing was sent",
        "all was taken at once, and is still to go over the link",
        "it took less time than the slowest link needs",
        "what is on the way may take as long as what went before",
        "more than is on the way at a time",
    ],
)
def test_an_answer_is_overdue_when_what_is_on_the_way_had_its_time(
    begun_s: float, unanswered_bytes: int, later_s: float
) -> None:
    assert answer_due_s(begun_s, 100.0, unanswered_bytes) == 100.0 + later_s
