"""A notebook entry to read: its figures as bars, a missing figure as a dash, all of it last."""

from __future__ import annotations

from homesplit.view.entry_page import entry_page
from homesplit.view.spans import plain


def test_a_comparison_has_a_bar_for_each_mode() -> None:
    modes = [
        {"mode": "colocated", "prefill": "whole", "ttft_s": {"p50": 2.0, "p90": 4.0}},
        {"mode": "split", "prefill": "chunked", "ttft_s": {"p50": 1.0, "p90": None}},
    ]
    entry = {"kind": "comparison", "at": "2026-01-01T12:00", "sentence": "Split wins."}
    shown = plain(entry_page({**entry, "body": {"modes": modes}}, {}, ["My note."], "{}", 80))
    whole, split = (
        next(row for row in shown.split("\n") if name in row) for name in ("whole", "  split")
    )
    assert whole.count("█") == 2 * split.count("█") > 0
    assert "2.00 s" in whole
    assert "✎ My note." in shown


def test_a_run_shows_its_first_tokens_over_time_and_its_gaps() -> None:
    body = {"offered": 4, "completed": 4, "ttft_s": {"p50": 0.5, "p90": 0.5}, "attainment": None}
    requests = [{"sent_s": float(n), "arrival_s": [n + 0.5, n + 0.53, n + 2.0]} for n in range(4)]
    entry = {"kind": "run", "at": "", "sentence": "A run.", "body": body}
    shown = plain(entry_page(entry, {"requests": requests}, [], "{}", 80))
    assert "TTFT over the run" in shown
    assert "up to 50.0 ms" in shown
    assert "up to 2.00 s" in shown
    rows = [row.split() for row in shown.split("\n") if row.split()[:1] == ["all"]]
    assert rows[0] == ["all", *["4", "of", "4", "no", "data", "no", "data"]]
    assert rows[1] == ["all", *["500", "ms", "500", "ms", "no", "data", "no", "data"]]


def test_an_entry_of_any_other_kind_is_still_readable() -> None:
    shown = plain(entry_page({"kind": "note", "sentence": "Hello."}, {}, [], '{"a": 1}', 40))
    assert shown.split("\n")[0] == "Hello."
    assert '{"a": 1}' in shown
