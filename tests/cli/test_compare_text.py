"""The table of `homesplit compare`."""

from __future__ import annotations

import msgspec
import pytest

from homesplit.cli.compare import show
from homesplit.core.compare_result import CompareResult, ModeRuns, verdict
from homesplit.core.trade import Trade, headline
from tests.core.test_verdict import QUICK, SLOW, runs


def result(*modes: ModeRuns, traded: Trade | None = None) -> CompareResult:
    told = verdict(modes, None)
    return CompareResult(
        modes=modes,
        verdict=told,
        sentence=headline(told, traded),
        trade=traded.sentence if traded else None,
        identical_text=None,
        compared_prompts=0,
        repeats=1,
        seed=1,
        loopback=None,
    )


def test_every_mode_has_its_percentiles_and_the_verdict_stands_last_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(result(runs("split", [QUICK] * 40), runs("colocated", [SLOW] * 40)))
    *table, last = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in table)
    first = table.index(next(line for line in table if line.startswith("TTFT")))
    block = [line.split() for line in table[first + 1 : first + 3]]
    assert block == [["split", *["500", "ms"] * 4], ["colocated:chunked", *["2.00", "s"] * 4]]
    assert last.startswith("split had the most goodput, by ") and last.count(". ") == 0
    assert "TTFT p50 0.5 s against 2 s, TPOT p50 0.1 s in both" in last


def test_what_the_split_traded_begins_the_verdict_only_where_both_are_about_the_same_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    split, alone = runs("split", [QUICK] * 40), runs("colocated", [SLOW] * 40)
    traded = Trade(sentence="The split saved 1.5 s.", split="split", alone="colocated:chunked")
    show(result(split, alone, traded=traded))
    *table, last = capsys.readouterr().out.splitlines()
    assert last.startswith("The split saved 1.5 s; split had the most goodput")
    assert "- The split saved 1.5 s" not in table
    other = msgspec.structs.replace(runs("replica", [QUICK] * 40), setting=None, url="http://x:1")
    show(result(split, alone, other, traded=traded))
    *table, last = capsys.readouterr().out.splitlines()
    assert last.startswith("No difference in goodput between other server http://x:1 and split (")
    assert "- The split saved 1.5 s" in table and "saved" not in last
