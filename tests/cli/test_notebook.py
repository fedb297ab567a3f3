"""`homesplit notebook` as it is read: sentence, what was asked, table, picture; never JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homesplit.cli.main import run
from homesplit.core.entry import About
from homesplit.core.workload import Arrivals, fixed_lengths
from homesplit.io.paths import user_paths
from homesplit.stages.context import Context
from homesplit.stages.notebook import Course, add_note, record

FIGURES: dict[str, Any] = {
    "offered": 10,
    "completed": 9,
    "ttft_s": {"p50": 0.25, "p90": 0.5},
    "tpot_s": {"p50": None, "p90": None},
    "stall_s": {"p90": 0.0},
    "attainment": 0.9,
    "goodput_requests_per_s": 1.5,
}
LOAD = fixed_lengths(8, 2, name="small", arrivals=Arrivals(rate_requests_per_s=2.0))
REQUEST = {"sent_s": 0.0, "arrival_s": [0.25, 0.26]}


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("HOMESPLIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    return Context(paths=user_paths())


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["notebook", *words]) == 0
    return capsys.readouterr().out


def test_a_run_is_read_as_sentence_question_table_picture_notes(
    ctx: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {
        **FIGURES,
        "by_class": {"short": FIGURES, "tall": FIGURES},
        "notes": ["prompts were cut"],
    }
    about = About(settings={"workload": LOAD, "seconds": 5.0})
    key = record(ctx, "run", "It ran.", body, about=about, raw={"requests": [REQUEST]})
    add_note(ctx, "The fan was loud.", entry=key)
    text = shown(capsys, "show", "1")
    lines = text.splitlines()
    order = [
        "It ran.",
        "Asked. Open loop, 2 requests/s (Poisson)",
        "TTFT",
        "  short",
        "TTFT over the run",
        "Gaps between tokens",
        "- prompts were cut",
        "The fan was loud.",
        "Raw records kept (requests: 1).",
        "All of it: homesplit notebook show 1 --json",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places) and lines[0] == "It ran."
    row = next(line for line in lines if line.split()[:1] == ["all"])
    assert " ".join(row.split()) == "all 9 of 10 90 % 1.5"
    assert "{" not in text and '"' not in text and all(len(line) <= 100 for line in lines)


def test_a_comparison_shows_each_mode_with_what_was_predicted_of_it(
    ctx: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    predicted = {"ttft_s": {"p50": 0.125}, "goodput_requests_per_s": 2.0}
    modes = [
        {**FIGURES, "mode": "colocated", "prefill": "whole", "predicted": predicted},
        {**FIGURES, "mode": "other", "prefill": None, "url": "http://x"},
    ]
    body = {"modes": modes, "identical_text": True, "compared_prompts": 3}
    record(ctx, "comparison", "No difference.", body)
    rows = [line.split() for line in shown(capsys, "show", "1").splitlines()]
    assert ["colocated:whole", *["9", "of", "10", "90", "%", "1.5"]] in rows
    assert ["predicted", "125", "ms"] in rows and ["predicted", "no", "data", "2"] in rows
    assert ["other", "server", "http://x", *["9", "of", "10", "90", "%", "1.5"]] in rows
    assert ["-", "text", "of", "all", "modes", "over", "3", "prompts:", "identical"] in rows


def test_a_list_tells_which_entries_go_on(ctx: Context, capsys: pytest.CaptureFixture[str]) -> None:
    course = Course(ctx, "run")
    course.so_far("Begun.", {}, about=About())
    record(ctx, "run", "It ran.", FIGURES)
    first, second = shown(capsys, "list").splitlines()
    assert first.endswith("Begun. (goes on)") and second.endswith("It ran.")
    assert "This measurement is going on." in shown(capsys, "show", "1")
