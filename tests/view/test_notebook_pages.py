"""The notebook's list and pages: every kind has its mark, predictions stand under figures."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from homesplit.core.entry import KINDS, LOOPBACK_LABEL
from homesplit.view import svg
from homesplit.view.measured_rows import measured_rows, mode_name
from homesplit.view.notebook import KIND_MARKS
from homesplit.view.notebook_pages import csv_text, table
from homesplit.view.percentiles import percentile_table
from homesplit.view.pictures import charts

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
    "goodput_tokens_per_s": 30.0,
    "throughput_tokens_per_s": 34.5,
    "joules_per_1000_good_tokens": 200.0,
    "intervals": {
        "ttft_s_p50": {"low": 0.2, "high": 0.31},
        "attainment": {"low": 0.8, "high": 0.96},
    },
}


def page(**more: Any) -> dict[str, Any]:
    return {"body": {"modes": [{**MEASURED, **more}]}}


def test_every_kind_of_entry_has_a_mark_of_its_own() -> None:
    assert set(KIND_MARKS) == set(KINDS)
    assert len(set(KIND_MARKS.values())) == len(KINDS)


def test_a_prediction_stands_right_under_what_was_measured() -> None:
    predicted = {"ttft_s": {"p50": 0.2, "p90": 0.4}, "attainment": 1.0}
    _, measured, expected = table(page(predicted=predicted))
    assert measured[0] == "split:whole" and measured[6:] == [
        "0.9 (0.8 to 0.96)",
        "1.5",
        "30",
        "34.5",
    ]
    assert expected[0] == "split:whole, predicted" and expected[6:] == ["1", "", "", ""]
    _, measured, expected, *_ = percentile_table(measured_rows(page(predicted=predicted)))
    assert measured[:3] == ["TTFT", "split:whole", "0.25 (0.2 to 0.31)"]
    assert expected == ["TTFT", "split:whole, predicted", "0.2", "0.4", "", ""]


def test_without_a_prediction_there_is_no_row_for_it() -> None:
    assert len(table(page(predicted=None))) == 2


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ({"mode": "colocated", "prefill": "whole"}, "colocated:whole"),
        ({"mode": "colocated", "prefill": "chunked"}, "colocated:chunked"),
        ({"mode": "replica", "prefill": "chunked"}, "replica"),
        ({"mode": "split", "prefill": "chunked", "setting": {"kv_wire": "same"}}, "split"),
        ({"mode": "split", "prefill": "chunked", "setting": {"kv_wire": "int8"}}, "split:int8"),
        ({"mode": "split", "prefill": "chunked", "kv_wire": "fp16"}, "split:fp16"),
        ({"mode": "other", "url": "http://box:1"}, "other server http://box:1"),
    ],
)
def test_a_column_is_called_as_its_verdict_calls_it(mode: dict[str, Any], name: str) -> None:
    assert mode_name(mode) == name


def test_the_csv_has_every_percentile_with_the_ends_of_its_interval() -> None:
    about = {"id": "e", "kind": "comparison", "at": "t", "sentence": "s", "about": {}}
    (row,) = csv.DictReader(io.StringIO(csv_text([{**about, **page()}])))
    assert (row["ttft_s_p50"], row["ttft_s_p50_low"], row["ttft_s_p50_high"]) == (
        *("0.25", "0.2", "0.31"),
    )
    assert (row["ttft_s_p90"], row["ttft_s_p90_low"], row["itl_s_p99"]) == ("0.5", "", "")
    assert (row["attainment"], row["attainment_high"]) == ("0.9", "0.96")
    assert (row["throughput_tokens_per_s"], row["joules_per_1000_good_tokens"]) == ("34.5", "200.0")


def test_pictures_span_their_intervals_and_carry_what_must_be_known_of_them() -> None:
    predicted = {"ttft_s": {"p50": 0.2, "p90": 0.4}}
    shown = page(predicted=predicted, estimated=["tpot_s"])
    first, second, pace, *_ = charts({**shown, "about": {"loopback": True}})
    assert first == (
        "TTFT p50",
        "s",
        [("split:whole", 0.25, 0.2, 0.31), ("split:whole, predicted", 0.2, None, None)],
        LOOPBACK_LABEL,
    )
    assert second[2][0][1:] == (0.5, None, None)
    assert pace[2][0][0] == "split:whole (estimate)"
    drawn = svg.bars(*first)
    assert drawn.count("<path") == 1 and LOOPBACK_LABEL in drawn and 'height="120"' in drawn
    assert "no data" in svg.bars("t", "s", [("x", None, None, None)]) and "<path" not in svg.bars(
        "t", "s", [("x", 1.0, None, None)]
    )
