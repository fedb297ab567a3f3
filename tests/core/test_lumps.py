"""Tokens that come in lumps: figures are as text came, and what can't be told is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from homesplit_engine.words import Timeline, figures, itl_s, judgement, stalled_s, tpot_s, ttst_s

from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog, Source, timeline
from homesplit.core.summary import RunSummary, summarise
from homesplit.core.workload import Targets

PLAN = LoadPlan(workload="w", seed=1, seconds=10.0, closed=False, requests=())


def log(
    *arrival_s: float,
    each: tuple[int, ...] = (),
    tokens: int | None = None,
    source: Source = "usage",
    number: int = 0,
) -> RequestLog:
    return RequestLog(
        id=number,
        request_id=str(number),
        class_="all",
        due_s=0.0,
        sent_s=0.0,
        outcome="completed",
        arrival_s=arrival_s,
        arrival_tokens=each,
        ended_s=arrival_s[-1],
        prompt_tokens_asked=1,
        output_tokens_asked=16,
        output_tokens=tokens if tokens is not None else sum(each) or len(arrival_s),
        tokens_from=source,
    )


def summary(logs: Sequence[RequestLog], targets: Targets) -> RunSummary:
    return summarise(PLAN, logs, targets, warm_up=0.0, drain=0.0)


def test_tokens_that_a_reader_saw_at_once_have_no_gap_and_the_wait_before_them_is_a_stall() -> None:
    # Three chunks of a token in one read, two in the next a second later, and one more.
    line = timeline(log(1.0, 1.0, 1.0, 2.0, 2.0, 2.5))
    assert itl_s(line) == (0.0, 0.0, 1.0, 0.0, 0.5)
    assert tpot_s(line) == 1.5 / 5
    assert ttst_s(line) == 1.0
    # A quarter of a second each would have kept the target; one was 0.75 s, one 0.25 s late.
    assert stalled_s(line, 0.25) == 0.75 + 0.25


@pytest.mark.parametrize("each", [1, 2, 4])
def test_tpot_does_not_hang_on_the_tokens_of_a_chunk_but_stalls_are_what_was_waited(
    each: int,
) -> None:
    # Sixteen tokens, one every 0.5 s, sent once a chunk is full.
    moments = [0.5 * n for n in range(1, 17)][each - 1 :: each]
    line = timeline(log(*moments, each=(each,) * len(moments)))
    assert tpot_s(line) == 0.5
    assert len(itl_s(line)) == 15 and sum(itl_s(line)) == moments[-1] - moments[0]
    assert stalled_s(line, 0.5) == (len(moments) - 1) * 0.5 * (each - 1)


@pytest.mark.parametrize(
    ("arrivals", "each", "tokens", "source", "known"),
    [
        ((1.0, 1.0), (), 2, "usage", None),
        ((1.0,), (2,), 2, "usage", None),
        ((1.0,), (), 1, "one a chunk", None),
        ((0.1, 0.1), (), 2, "usage", True),
        ((1.0, 1.1), (), 2, "usage", True),
        ((1.0, 1.6), (), 2, "usage", False),
        ((1.0,), (), 1, "usage", True),
        ((3.0, 3.0), (), 2, "usage", False),
    ],
    ids=[
        "two chunks in one read",
        "two tokens in one chunk",
        "one chunk that nobody counted",
        "so soon that no pace of it was slow",
        "two reads",
        "two reads, too slow",
        "one token",
        "late already",
    ],
)
def test_an_answer_without_a_pace_to_be_seen_is_inside_or_outside_only_where_that_is_sure(
    arrivals: tuple[float, ...],
    each: tuple[int, ...],
    tokens: int,
    source: Source,
    known: bool | None,
) -> None:
    line = timeline(log(*arrivals, each=each, tokens=tokens, source=source))
    assert judgement(line, ttft_target_s=2.0, tpot_target_s=0.5) is known
    if known is None:
        assert tpot_s(line) is None


def test_attainment_tells_how_many_could_not_be_judged() -> None:
    targets = Targets(ttft_s=2.0, tpot_s=0.5)
    logs = [
        *(log(1.0, 1.1, number=n) for n in range(3)),
        log(1.0, 1.9, number=3),
        *(log(1.0, 1.0, number=n) for n in range(4, 10)),
    ]
    found = summary(logs, targets)
    told = found.figures
    assert (told.offered, told.completed, told.inside) == (10, 10, 3)
    assert (told.unjudged, told.judged, told.attainment) == (6, 4, 0.75)
    assert told.tpot_s.count == 4 and told.goodput_requests_per_s == 0.3
    share = found.intervals["attainment"]
    assert share is not None and (share.value, share.count) == (0.75, 4)
    assert (
        "6 answers of several tokens came all at one moment and so have no TPOT; 6 of them can't "
        "be judged by the TPOT target and count neither way: attainment is over the other 4 "
        "requests, goodput a lower bound"
    ) in found.notes


def test_without_a_tpot_target_there_is_nothing_that_could_not_be_judged() -> None:
    found = summary([log(1.0, 1.0)], Targets(ttft_s=2.0, tpot_s=None))
    assert (found.figures.unjudged, found.figures.attainment) == (0, 1.0)
    assert any(note.endswith("came all at one moment and so have no TPOT") for note in found.notes)


def test_answers_of_one_token_are_told_for_they_have_no_tpot() -> None:
    found = summary([log(1.0, tokens=1), log(1.0, 1.1)], Targets(ttft_s=2.0, tpot_s=0.5))
    assert (found.figures.unjudged, found.figures.judged, found.figures.inside) == (0, 2, 2)
    assert "1 answer of one token: no TPOT, ITL or stall, and judged by TTFT alone" in found.notes


def test_a_run_of_which_nothing_could_be_judged_has_no_goodput_instead_of_none() -> None:
    lines = [Timeline(request_id="r", outcome="completed", start_s=0.0, token_s=(1.0, 1.0))]
    found = figures(lines, ttft_target_s=None, tpot_target_s=0.5, window_s=1.0)
    assert (found.unjudged, found.attainment, found.goodput_requests_per_s) == (1, None, None)


@pytest.mark.parametrize(
    ("logs", "estimated"),
    [
        ([log(1.0, 1.0, 2.0)], ()),
        (
            [log(1.0, 2.0, each=(4, 4))],
            ("tpot_s", "ttst_s", "attainment", "goodput_requests_per_s"),
        ),
        ([log(1.0, 2.0, each=(4, 4), source="per-chunk usage")], ()),
    ],
    ids=["chunks in one read", "several tokens a chunk", "each chunk tells its count"],
)
def test_only_what_hangs_on_uncounted_tokens_is_an_estimate(
    logs: list[RequestLog], estimated: tuple[str, ...]
) -> None:
    assert summary(logs, Targets(ttft_s=2.0, tpot_s=1.0)).estimated == estimated
