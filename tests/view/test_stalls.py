"""A wait's cause is what took most of it: a prompt, its own hand-off, or the box itself."""

from __future__ import annotations

from homesplit.core import events
from homesplit.core.engine_state import Engine, after
from homesplit.view import stalls
from homesplit.view.spans import plain
from homesplit.view.watch import Stall, Watch
from tests.view.steps import decode, handed_over, prefill, record

TARGET_S = 0.1


def told(*seen: events.EngineEvent, now_s: float = 10.0) -> list[tuple[Stall, str]]:
    """Each stall with its sentence."""
    watch, engine = Watch(), after(Engine(), seen)
    watch.take(engine, TARGET_S)
    return [
        (stall, plain((stalls.sentence(stall, watch, engine),)))
        for stall in watch.stalls_since(-100.0, now_s)
    ]


def test_a_long_prefill_between_two_tokens_is_the_cause() -> None:
    seen = (decode(0, 1, "r1"), prefill(1, 3, "r2", 500), decode(3, 3.05, "r1", "r2"))
    ((stall, sentence),) = told(*seen, now_s=3.05)
    assert (stall.box, stall.start_s, len(stall.waits)) == ("a", 1, 1)
    assert sentence == "✗ 1 answer on a waited 2.05 s: a was reading a prompt of 500 tokens"


def test_a_cause_that_does_not_fit_beside_the_wait_has_a_line_of_its_own() -> None:
    watch = Watch()
    engine = after(Engine(), (decode(0, 1, "r1"), prefill(1, 3, "r2", 500), decode(3, 3.1, "r1")))
    watch.take(engine, TARGET_S)
    (stall,) = watch.stalls_since(-100.0, 3.1)
    told = [
        plain(stalls.sentence_lines(stall, watch, engine, width)).split("\n") for width in (99, 40)
    ]
    assert told == [
        ["✗ 1 answer on a waited 2.10 s: a was reading a prompt of 500 tokens"],
        ["✗ 1 answer on a waited 2.10 s:", "  a was reading a prompt of 500 tokens"],
    ]
    assert len(stalls.sentence_lines(None, watch, engine, 40)) == 1


def test_tokens_within_the_target_are_no_stall() -> None:
    assert told(decode(0, 1, "r1"), decode(1, 1.05, "r1"), now_s=1.05) == []


def test_a_gap_that_is_still_open_counts_until_now() -> None:
    found = told(decode(0, 1, "r1"), prefill(1, 2, "r2", 500), now_s=2.5)
    assert [stall.end_s for stall, _ in found] == [2.5]


def test_a_request_that_the_box_no_longer_decodes_waits_for_nothing() -> None:
    assert told(decode(0, 1, "r1"), decode(1, 1.05, "r2"), decode(1.05, 1.1, "r2"), now_s=1.1) == []


def test_its_own_hand_off_is_the_cause_when_it_took_most_of_the_wait() -> None:
    seen = (prefill(0, 1, "r1", 40, box="b"), handed_over(1, 2, "r1", 40), decode(2, 2.05, "r1"))
    ((_, sentence),) = told(*seen, now_s=2.05)
    assert "the KV of 40 tokens was on its way from b to a" in sentence


def test_another_requests_hand_off_is_no_cause() -> None:
    seen = (decode(0, 1, "r1"), handed_over(1, 2, "r2", 40), decode(2, 2.05, "r1"))
    ((_, sentence),) = told(*seen, now_s=2.05)
    assert sentence.endswith("a itself was held up: no step ran for 1.00 s")


def test_a_short_hand_off_within_a_long_wait_is_no_cause() -> None:
    seen = (prefill(0, 1, "r1", 8, box="b"), handed_over(1, 1.1, "r1", 8), decode(1.1, 3, "r1"))
    ((_, sentence),) = told(*seen, now_s=3)
    assert sentence.endswith("a itself was slow: one step for 1 answer took 1.90 s")


def test_a_slow_step_of_the_box_is_its_own_cause() -> None:
    seen = (decode(0, 0.5, "r1", "r2"), decode(0.5, 1.0, "r1", "r2"))
    ((stall, sentence),) = told(*seen, now_s=1.0)
    assert len(stall.waits) == 2
    assert sentence.endswith("a itself was slow: one step for 2 answers took 500 ms")


def test_a_few_tokens_beside_decode_are_not_blamed_for_a_step_as_long_as_any() -> None:
    steady = [decode(n * 0.5, n * 0.5 + 0.5, "r1") for n in range(6)]
    ((_, sentence),) = told(*steady, prefill(3.0, 3.5, "r2", 8, "r1"), now_s=3.5)[-1:]
    assert sentence.endswith("a itself was slow: one step for 1 answer took 500 ms")


def test_a_chunk_that_made_a_step_much_longer_than_usual_is_the_cause() -> None:
    steady = [decode(n * 0.05, n * 0.05 + 0.05, "r1") for n in range(6)]
    ((_, sentence),) = told(*steady, prefill(0.3, 0.8, "r2", 256, "r1", last=False), now_s=0.8)
    assert sentence.endswith("a was reading 256 tokens of a prompt")


def test_an_answer_taken_over_from_another_box_says_so() -> None:
    ((_, sentence),) = told(decode(0, 1, "r1", box="b"), decode(4, 4.05, "r1"), now_s=4.05)
    assert sentence.endswith("a took over from b")


def test_steps_that_were_never_seen_make_no_stall() -> None:
    watch = Watch()
    engine = after(Engine(), [decode(0, 1, "r1")])
    watch.take(engine, TARGET_S)
    engine = after(engine, [decode(1 + n * 0.05, 1.05 + n * 0.05, "r1") for n in range(3000)])
    watch.take(engine, TARGET_S)
    assert watch.stalls_since(0.0, 151.0) == []


def test_a_step_told_after_its_request_has_ended_does_not_make_it_run_again() -> None:
    watch = Watch()
    engine = after(Engine(), [decode(0, 1, "r1"), record("r1", 1.0)])
    watch.take(engine, TARGET_S)
    engine = after(engine, [decode(8, 9, "r2"), decode(9, 10, "r1")])
    watch.take(engine, TARGET_S)
    assert [name for name, one in watch.live.items() if not one.ended] == ["r2"]


def test_an_engine_started_anew_is_followed_from_its_beginning() -> None:
    watch = Watch()
    watch.take(after(Engine(), [decode(0, 1, "r1"), decode(1, 2, "r1")]), TARGET_S)
    watch.take(after(Engine(), [decode(500, 501, "r9")]), TARGET_S)
    assert list(watch.live) == ["r9"]
    assert watch.stalls_since(0.0, 501.0) == []
