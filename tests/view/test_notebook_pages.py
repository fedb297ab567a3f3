"""The notebook's list and pages: every kind has its mark, predictions stand under figures."""

from __future__ import annotations

from typing import Any

from homesplit.core.entry import KINDS
from homesplit.view.notebook import KIND_MARKS
from homesplit.view.notebook_pages import table

MEASURED: dict[str, Any] = {
    "mode": "split",
    "prefill": "whole",
    "offered": 10,
    "completed": 9,
    "failed": 1,
    "rejected": 0,
    "ttft_s": {"p50": 0.25, "p90": 0.5},
    "tpot_s": {"p50": 0.02},
    "stall_s": {"p90": 0.0},
    "attainment": 0.9,
    "goodput_requests_per_s": 1.5,
}


def page(**more: Any) -> dict[str, Any]:
    return {"body": {"modes": [{**MEASURED, **more}]}}


def test_every_kind_of_entry_has_a_mark_of_its_own() -> None:
    assert set(KIND_MARKS) == set(KINDS)
    assert len(set(KIND_MARKS.values())) == len(KINDS)


def test_a_prediction_stands_right_under_what_was_measured() -> None:
    predicted = {"ttft_s": {"p50": 0.2, "p90": 0.4}, "attainment": 1.0}
    _, measured, expected = table(page(predicted=predicted))
    assert measured[0] == "split (whole)" and measured[6] == "0.25"
    assert expected[0] == "split (whole), predicted" and expected[6] == "0.2"
    assert expected[8] == ""


def test_without_a_prediction_there_is_no_row_for_it() -> None:
    assert len(table(page(predicted=None))) == 2
