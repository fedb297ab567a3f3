"""Pages of entries that are no load run: what was searched, advised, probed or deployed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from homesplit.core.capacity import Trial, capacity_of, unended
from homesplit.core.link import LatencyReading, LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.plan_map import CurvePoint, PlanMap, RateCurve
from homesplit.core.probe_words import probe_words
from homesplit.core.reading import measured, unknown
from homesplit.stages.capacity import capacity_document
from homesplit.view import svg
from homesplit.view.entry_page import entry_page
from homesplit.view.notebook_kinds import kind_tables
from homesplit.view.notebook_pages import csv_text, ipynb, markdown
from homesplit.view.pictures import charts, pictures
from homesplit.view.spans import plain

TRIALS = (
    Trial(rate_requests_per_s=1.0, offered=100, inside=100, completed=100),
    Trial(rate_requests_per_s=2.0, offered=100, inside=10, completed=90, left=10, runs=2),
    Trial(rate_requests_per_s=1.4, offered=60, inside=0, completed=0),
)
ATLAS = BoxProfile(
    name="atlas",
    source="probe",
    memory_bytes_per_s=measured([2e9, 2e9], unit="B/s", method="memchr"),
    flops_per_s={"fp32": measured([5e11], unit="FLOP/s", method="sgemm")},
    idle_w=unknown("no meter"),
)
LINK = LinkProfile(
    a="atlas",
    b="borea",
    source="probe",
    a_to_b=measured([1.25e8], unit="B/s", method="TCP"),
    b_to_a=measured([1.25e8], unit="B/s", method="TCP"),
    latency_s=LatencyReading(p50=unknown("not asked"), p99=unknown("not asked")),
)
PLAN: dict[str, Any] = {
    "modes": [
        {
            "mode": "split",
            "boxes": ["atlas", "borea"],
            "prefill_box": "atlas",
            "decode_box": "borea",
            "prefill": "chunked",
            "ttft_s": {"p50": 0.5, "p90": 0.9, "low": 0.4, "high": 0.7},
            "tpot_s": {"p50": 0.05, "low": 0.04, "high": 0.06},
            "stall_s": {"p90": None},
            "attainment": 0.95,
            "goodput_requests_per_s": 1.5,
            "capacity_requests_per_s": None,
        }
    ],
    "rules": [
        {
            "id": "prefill_heavy",
            "verdict": "pass",
            "value": 0.5,
            "threshold": 0.3,
            "unit": "share",
            "sentence": "Prefill is 50 % of the work.",
        }
    ],
    "flips": [{"sentence": "Below 1 Gbit/s replica is better."}],
    "guesses": ["The latency is not known."],
}


LEDGER = {
    "mode": "split",
    "class": "all",
    "prompt_tokens": 100,
    "queue_s": 0.0,
    "tokenise_s": 0.1,
    "prefill_s": 0.5,
    "handoff_s": 0.4,
    "handoff_exposed_s": 0.1,
    "first_decode_s": 0.3,
}
MAP = PlanMap(
    other="bytes/s",
    prompt_tokens=(100, 1000),
    others=(1e6, 1e8),
    here_prompt=100.0,
    here_other=1e8,
    cells=(("colocated", "replica"), ("split", None)),
    curve=tuple(
        CurvePoint(prompt_tokens=n, prefill_s=p, handoff_s=h, exposed_s=0.0)
        for n, p, h in ((100, 0.1, 0.2), (1000, 2.0, 1.0))
    ),
    curve_boxes=("atlas", "borea"),
    rates=(
        RateCurve(mode="split", rates_requests_per_s=(1.0, 2.0), goodput_requests_per_s=(1.0, 1.5)),
    ),
    here_rate=1.5,
)


def page(kind: str, body: Any, **settings: Any) -> dict[str, Any]:
    about = {
        "boxes": [],
        "link": None,
        "settings": settings or None,
        "versions": {},
        "seeds": {},
        "model": None,
        "fingerprint": None,
        "git_hash": None,
        "loopback": None,
    }
    return {
        "id": "e",
        "number": 1,
        "kind": kind,
        "at": "today",
        "sentence": "So.",
        "about": about,
        "body": body,
    }


def search(**given: Any) -> dict[str, Any]:
    return page("run", capacity_document(capacity_of(TRIALS)) | given)


def test_a_search_for_capacity_shows_every_rate_with_its_interval_and_no_data_where_none_is() -> (
    None
):
    ((_, (head, first, second, last)),) = kind_tables(search())
    assert first[0] == "1 request/s" and first[-1] == "holds"
    row = dict(zip(head, second, strict=True))
    assert (row["runs"], row["offered"], row["given up"], row["inside"]) == ("2", "100", "10", "10")
    assert row["attainment"] == "0.111" and second[-1] == "too much"
    assert last[head.index("attainment")] == last[head.index("95 % interval")] == "no data"
    assert [each.title for each in pictures(search())] == ["attainment"]
    assert csv_text([search()]).count("requests/s,100") == 1


def test_a_search_that_did_not_end_says_so_and_names_no_capacity() -> None:
    document = capacity_document(unended(TRIALS[:1]))
    assert document["capacity_requests_per_s"] is None and document["low"] == 1.0
    assert document["ended"] is False
    assert document["sentence"].startswith("Search for capacity, not ended after 1 rate;")
    assert "the highest that held is 1 request/s" in document["sentence"]


def test_advice_shows_what_each_mode_is_predicted_to_do_the_rules_and_what_would_change_it() -> (
    None
):
    question = {"boxes": ["atlas", "borea"], "link": None, "model": "m", "workload": "chat"}
    text = markdown([page("plan", PLAN, **question)])
    for line in (
        "**Asked.** Which arrangement of atlas and borea: model m, workload chat.",
        "| prefill heavy | 0.5 | 0.3 | share | speaks for a split | Prefill is 50 % of the work. |",
        "- Below 1 Gbit/s replica is better.",
        "- The latency is not known.",
    ):
        assert line in text.splitlines()
    assert "| split atlas > borea | 0.5 | 0.4 to 0.7 | 0.05 | 0.04 to 0.06 | no data |" in text
    assert "split atlas > borea, predicted" in csv_text([page("plan", PLAN)])
    assert "TTFT p50" in [each.title for each in pictures(page("plan", PLAN))]
    assert "<svg" in ipynb([page("plan", PLAN)])


def draw(chart: Callable[..., str], *given: Any) -> str:
    return chart(*given)


def test_advice_has_the_pictures_that_its_screen_draws() -> None:
    body = {**PLAN, "ledger": [LEDGER], "map": msgspec.to_builtins(MAP)}
    *_, ledger, handoff, rates, winners = pictures(page("plan", body))
    assert ledger.title == "Where a request's time to its second token goes"
    # Tokenise, prefill, what is exposed of the hand-off, first decode step.
    assert ">1 s<" in ledger.drawn and ledger.drawn.count("<rect") == 1 + 5 + 5
    assert handoff.title == "Prefill and hand-off by prompt length, atlas to borea"
    assert ">equal<" in handoff.drawn and ">the question<" in handoff.drawn
    # What is exposed is nothing anywhere: no line of it on a logarithmic axis.
    assert handoff.drawn.count("<polyline") == 2
    assert rates.drawn.count("<polyline") == 1 and "goodput, requests/s" in rates.drawn
    told = [winners.drawn.index(f">{word}<") for word in ("split", "?", "colocated", "replica")]
    assert told == sorted(told) and winners.title == "Who wins, by prompt length and link"
    assert eval(rates.code, {"draw": draw, "curves": svg.curves}) == rates.drawn


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_mark_that_an_axis_does_not_reach_is_left_out(logarithmic: bool) -> None:
    lines = [("prefill", [(10.0, 1.0), (1000.0, 5.0)])]
    marks = [(5.0, "before"), (1000.0, "last"), (1001.0, "behind")]
    drawn = svg.curves("Prefill", ("tokens", "s"), lines, marks, logarithmic)
    told = [word for _, word in marks if f">{word}<" in drawn]
    assert told == (["last"] if logarithmic else ["before", "last"])


def test_pictures_of_a_prediction_span_what_its_costs_give() -> None:
    first = charts(page("plan", PLAN))[0]
    assert first[2] == [("split atlas > borea, predicted", 0.5, 0.4, 0.7)]


def test_a_probe_shows_each_reading_with_how_it_was_made_or_why_it_is_missing() -> None:
    body = {"boxes": [msgspec.to_builtins(ATLAS)], "link": msgspec.to_builtins(LINK)}
    ((_, rows),) = kind_tables(page("probe", body))
    told = {(row[0], row[1]): row[2:] for row in rows}
    assert told["atlas", "memory read"] == ["2", "GB/s", "2", "memchr"]
    assert told["atlas", "power at rest"][0::3] == ["not known", "no meter"]
    assert told["atlas to borea", "payload, one stream"][:2] == ["1", "Gbit/s"]


def test_a_probes_sentence_holds_its_figures() -> None:
    assert probe_words(["atlas", "borea"], [ATLAS], LINK) == (
        "atlas: memory read at 2 GB/s, 500 GFLOP/s in fp32; the link from atlas to borea carries "
        "1 Gbit/s there and 1 Gbit/s back."
    )
    assert probe_words(["a"], [BoxProfile(name="a", source="probe")], None) == (
        "a: memory not measured, arithmetic not measured."
    )
    assert probe_words(["a", "b"], [], None) == "Nothing of a and b was measured."


def test_a_deployment_shows_its_boxes_and_its_mode() -> None:
    body = {
        "boxes": [{"box": "atlas", "state": "running", "fingerprint": "f" * 64}],
        "router_box": "atlas",
        "setting": {"mode": "replica", "prefill": "chunked", "prefill_box": None},
    }
    (_, boxes), (_, setting) = kind_tables(page("deployment", body))
    assert boxes[1] == ["atlas", "running", "f" * 16, "the router runs here"]
    assert setting == [["mode", "prefill"], ["replica", "chunked"]]


@pytest.mark.parametrize("body", [None, {}, {"modes": []}, {"boxes": None}, {"trials": []}])
@pytest.mark.parametrize("kind", ["plan", "probe", "deployment", "run", "note", "comparison"])
def test_an_entry_with_little_in_it_is_still_a_page(kind: str, body: Any) -> None:
    text = markdown([page(kind, body)])
    assert "So." in text and ". ." not in text
    assert entry_page(page(kind, body), {}, [], "", 80)


def test_what_is_not_known_of_an_entrys_making_is_left_out_of_its_last_line() -> None:
    assert markdown([page("note", None)]).rstrip().endswith("Entry e.")
    last = markdown([page("run", None)]).rstrip().splitlines()[-1]
    assert last == (
        "Entry e. Model not told, fingerprint not told. No seed was drawn. Not from a git checkout."
    )


def test_the_screen_shows_the_same_tables() -> None:
    shown = plain(entry_page(search() | {"ended": False}, {}, [], "", 100))
    assert "had not ended" in shown and "1.4 requests/s" in shown and "no data" in shown
    shown = plain(entry_page(page("plan", PLAN), {}, [], "", 120))
    assert "split atlas > borea" in shown and "Prefill is 50 % of the work." in shown
