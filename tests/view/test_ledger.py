"""What was refused or failed of late is told with its reason and the keys that help."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Outcome, RequestRecord
from msgspec.structs import replace

from homesplit.core.engine_state import Engine, after
from homesplit.core.events import RequestDone
from homesplit.view import ledger
from homesplit.view.spans import plain, width_of
from tests.view.steps import record

LATE = "The first token would come after about 9.0 s, behind 3 others; the limit is 2 s."


def ended(name: str, outcome: Outcome, error: str | None = None) -> RequestDone:
    known = record(name, 5.0).record
    tokens = known.token_s if outcome == "completed" else ()
    return RequestDone(record=replace(known, outcome=outcome, error=error, token_s=tokens))


@pytest.mark.parametrize(
    ("ends", "told", "offers_less"),
    [
        ((), "", False),
        ((ended("b", "cancelled"),), "", False),
        ((ended("b", "rejected", LATE),), "Of 2 requests 1 refused", True),
        ((ended("b", "failed", "Both boxes were lost."),), "Of 2 requests 1 failed", False),
        (
            (ended("b", "failed", "Both boxes were lost."), ended("c", "rejected", LATE)),
            "Of 3 requests 1 failed and 1 refused",
            True,
        ),
    ],
)
def test_refused_and_failed_requests_are_counted_with_the_newest_reason(
    ends: tuple[RequestDone, ...], told: str, offers_less: bool
) -> None:
    engine = after(Engine(), (ended("a", "completed"), *ends))
    rows = ledger.misses(engine.records, engine.requests, 116)
    shown = " ".join(plain(rows).split())
    assert (told in shown) if told else (shown == "")
    assert ("- offers less" in shown) is offers_less
    if told:
        assert str(ends[-1].record.error) in shown
    for width in (60, 76):
        narrow = ledger.misses(engine.records, engine.requests, width, 1)
        assert len(narrow) == bool(told)
        assert all(width_of(row) <= width for row in narrow)


def test_every_screen_calls_a_refused_request_refused() -> None:
    refused: RequestRecord = ended("a", "rejected", LATE).record
    row = ledger.rows((refused,), {}, 116)[0][1]()
    assert "refused The first token" in plain([row])
    assert "outcome refused" in plain(ledger.request_detail(refused, 80))
