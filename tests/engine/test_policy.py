"""Placement as a table: setting and boxes in, boxes and reason out."""

from __future__ import annotations

import pytest
from homesplit_engine.policy import BoxView, Decision, Question, decide, resume
from homesplit_engine.records import ModeSetting

ASK = Question(prompt_tokens=1000, max_tokens=100, kv_bytes_per_token=1000)
SPLIT = ModeSetting(mode="split", prefill_box="a", decode_box="b")
AUTO = ModeSetting(mode="auto")


def box(name: str, **known: float) -> BoxView:
    return BoxView(box=name, **known)  # type: ignore[arg-type]


def placed(decision: Decision | None) -> tuple[str, str]:
    assert decision is not None
    return decision.prefill_box, decision.decode_box


@pytest.mark.parametrize(
    ("setting", "boxes", "where"),
    [
        (ModeSetting(), ["a", "b"], ("a", "a")),
        (ModeSetting(decode_box="b"), ["a", "b"], ("b", "b")),
        (ModeSetting(decode_box="b"), ["a"], ("a", "a")),
        (SPLIT, ["a", "b"], ("a", "b")),
        (SPLIT, ["b"], ("b", "b")),
        (SPLIT, ["a"], ("a", "a")),
        (ModeSetting(mode="split"), ["a", "b"], ("a", "b")),
        (ModeSetting(mode="split", decode_box="a"), ["a", "b"], ("b", "a")),
    ],
)
def test_a_setting_places_on_what_can_be_used(
    setting: ModeSetting, boxes: list[str], where: tuple[str, str]
) -> None:
    assert placed(decide(setting, [box(name) for name in boxes], {}, ASK, 1)) == where


def test_with_no_box_there_is_no_decision() -> None:
    for mode in ("colocated", "replica", "split", "auto"):
        assert decide(ModeSetting(mode=mode), [], {}, ASK, 1) is None
    assert resume(SPLIT, [], "lost") is None


def test_a_one_token_answer_is_not_handed_over() -> None:
    one = Question(prompt_tokens=1000, max_tokens=1)
    assert placed(decide(SPLIT, [box("a"), box("b")], {}, one, 1)) == ("a", "a")


def test_replica_prefers_the_idle_box_then_the_one_that_knows_the_prompt() -> None:
    replica = ModeSetting(mode="replica")
    assert placed(decide(replica, [box("a", requests=2), box("b")], {}, ASK, 1))[0] == "b"
    assert placed(decide(replica, [box("a"), box("b", cached_tokens=64)], {}, ASK, 0))[0] == "b"


def fast_reader(decoding: int = 4) -> list[BoxView]:
    """`a` reads ten times as fast as `b`, and is busy writing."""
    return [
        box("a", prefill_tokens_per_s=1000.0, decode_step_s=0.02, decoding=decoding),
        box("b", prefill_tokens_per_s=100.0, decode_step_s=0.02),
    ]


def test_auto_hands_over_when_the_link_is_quick_and_the_writer_slow_at_reading() -> None:
    boxes = [
        box("a", prefill_tokens_per_s=1000.0, decode_step_s=0.2),
        box("b", prefill_tokens_per_s=100.0, decode_step_s=0.02),
    ]
    quick, slow = 100e6, 0.01e6
    links = {("a", "b"): quick, ("b", "a"): quick}
    decision = decide(AUTO, boxes, links, ASK, 1)
    assert placed(decision) == ("a", "b")
    assert decision is not None and "a reads and b writes" in decision.why
    links = {("a", "b"): slow, ("b", "a"): slow}
    assert placed(decide(AUTO, boxes, links, ASK, 1)) == ("b", "b")


def test_auto_measures_a_box_that_it_does_not_know() -> None:
    boxes = [box("a", prefill_tokens_per_s=1000.0), box("b")]
    assert placed(decide(AUTO, boxes, {}, ASK, 1)) == ("b", "b")


def test_auto_counts_queues_and_caches() -> None:
    links = {("a", "b"): 1.0, ("b", "a"): 1.0}
    alike = {"prefill_tokens_per_s": 1000.0, "decode_step_s": 0.02}
    queued = [box("a", pending_prefill_tokens=5000, **alike), box("b", **alike)]
    assert placed(decide(AUTO, queued, links, ASK, 1)) == ("b", "b")
    cached = [box("a", cached_tokens=900, **alike), box("b", **alike)]
    assert placed(decide(AUTO, cached, links, ASK, 1)) == ("a", "a")


def test_a_lost_box_is_avoided_unless_it_is_the_only_one() -> None:
    assert placed(resume(SPLIT, [box("a"), box("b")], "a broke", avoid="a")) == ("b", "b")
    decision = resume(SPLIT, [box("a")], "a broke", avoid="a")
    assert placed(decision) == ("a", "a")
    assert decision is not None and decision.why.startswith("a broke; resumed on a")
