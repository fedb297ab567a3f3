"""A load in words: every figure that shapes it, one of a thing and many."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from homesplit.core.load_words import asked_words, load_words
from homesplit.core.replay import Trace, TraceRow, recorded, replay
from homesplit.core.say import counted, rate
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload

KIND = LengthClass(
    name="short",
    share=1.0,
    prompt_tokens_low=1,
    prompt_tokens_high=1,
    output_tokens_low=2,
    output_tokens_high=8,
)
LOAD = Workload(
    name="Chat", classes=(KIND,), arrivals=Arrivals(rate_requests_per_s=2.0), targets=Targets()
)


def with_arrivals(**given: object) -> Workload:
    return replace(LOAD, arrivals=replace(LOAD.arrivals, **given))


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (LOAD, "At 2 requests/s of Chat"),
        (with_arrivals(rate_requests_per_s=1.0), "At 1 request/s of Chat"),
        (with_arrivals(kind="closed", users=1), "With 1 user of Chat"),
        (with_arrivals(kind="closed", users=3), "With 3 users of Chat"),
        (
            with_arrivals(pattern="ramp", ramp_to_requests_per_s=1.0),
            "From 2 to 1 request/s of Chat",
        ),
        (
            with_arrivals(pattern="on_off", on_s=2.0, off_s=3.0),
            "At 2 requests/s for 2 s, none for 3 s in turn, of Chat",
        ),
        (with_arrivals(burstiness=3.0), "At 2 requests/s in bursts, of Chat"),
        (
            replace(with_arrivals(rate_requests_per_s=1.0), turns=3),
            "At 1 conversation/s of 3 turns, of Chat",
        ),
        (
            replace(LOAD, source="trace", speed=2.0),
            "Replaying Chat at 2 times its speed (2 requests/s on average)",
        ),
        (
            replace(LOAD, source="trace", speed=1.0),
            "Replaying Chat at its own speed (2 requests/s on average)",
        ),
    ],
)
def test_a_sentence_begins_with_how_requests_came(load: Workload, words: str) -> None:
    assert load_words(load) == words


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (LOAD, ("Open loop, 2 requests/s (Poisson), for 30 s: 1 prompt token",)),
        (LOAD, ("1 prompt token, 2 to 8 answer tokens", "Targets: TTFT 1 s, TPOT 0.1 s.")),
        (
            with_arrivals(pattern="ramp", ramp_to_requests_per_s=8.0, burstiness=0.0),
            ("from 2 to 8 requests/s (evenly spaced) within 30 s",),
        ),
        (
            with_arrivals(pattern="on_off", on_s=2.0, off_s=3.0, burstiness=3.0),
            ("2 requests/s for 2 s, none for 3 s in turn (gaps gamma distributed, variation 3)",),
        ),
        (
            with_arrivals(kind="closed", users=1, think_s=1.5),
            ("1 user at a time, closed loop, each asking again 1.5 s after an answer, for 30 s",),
        ),
        (
            replace(LOAD, turns=3, turn_think_s=4.0),
            ("2 conversations/s", "3 turns, each question 4 s after the answer before it."),
        ),
        (
            replace(LOAD, cancel_share=0.2, cancel_after_s=1.5),
            ("20% of the users give up, after 1.5 s on average.",),
        ),
        (
            replace(LOAD, shared_prefix_tokens=1, shared_prefix_groups=2),
            ("The first 1 token shared within 2 groups.",),
        ),
        (replace(LOAD, targets=Targets(ttft_s=None, tpot_s=None)), ("Targets: none.",)),
    ],
)
def test_all_that_shapes_a_load_is_told(load: Workload, said: tuple[str, ...]) -> None:
    told = asked_words(load, 30.0)
    assert all(part in told for part in said), told


def test_a_replay_is_told_as_what_it_amounts_to() -> None:
    rows = tuple(TraceRow(at_s=0.5 * n, prompt_tokens=40, output_tokens=4) for n in range(5))
    plan = replay(Trace(name="recorded", rows=rows), seed=1, speed=2.0)
    load = recorded(plan, Targets(ttft_s=None, tpot_s=None))
    told = asked_words(load, plan.seconds)
    assert "Replay of recorded" in told and "for 1.001 s: 40 prompt tokens" in told
    assert "Replay of 5 requests of recorded at 2 times its speed." in told
    assert load.arrivals.rate_requests_per_s == pytest.approx(5 / plan.seconds)


def test_one_of_a_thing_is_no_plural() -> None:
    assert (counted(1, "user"), counted(2, "user")) == ("1 user", "2 users")
    assert (rate(1.0), rate(0.5), rate(1.004)) == ("1 request/s", "0.5 requests/s", "1 request/s")
