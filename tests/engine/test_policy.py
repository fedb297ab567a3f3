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


def _long_prompt_beside_writers(link_bytes_per_s: float) -> Decision:
    """A long prompt; the box that writes well is busy writing, the other reads well."""
    reader = BoxView(box="a", prefill_tokens_per_s=4000.0, decode_step_s=0.1)
    writer = BoxView(
        box="b", requests=4, decoding=4, prefill_tokens_per_s=1000.0, decode_step_s=0.02
    )
    question = Question(
        prompt_tokens=4000, max_tokens=100, expected_output_tokens=100, kv_bytes_per_token=50_000
    )
    links = {("a", "b"): link_bytes_per_s, ("b", "a"): link_bytes_per_s}
    decision = decide(ModeSetting(mode="auto"), [reader, writer], links, question, 1)
    assert decision is not None
    return decision


def test_auto_splits_a_long_prompt_while_the_writer_is_busy_and_the_link_is_quick() -> None:
    decision = _long_prompt_beside_writers(1e9)
    assert (decision.kind, decision.prefill_box, decision.decode_box) == ("split", "a", "b")
    assert "a reads and b writes" in decision.why and "disturbs others 0.00" in decision.why


def test_auto_stays_on_one_box_when_the_link_is_slow() -> None:
    decision = _long_prompt_beside_writers(1e6)
    assert (decision.kind, decision.decode_box) == ("colocated", "a")
    assert "next best" in decision.why


def test_auto_passes_over_a_box_without_room_for_the_answer() -> None:
    rates = {"prefill_tokens_per_s": 1000.0, "decode_step_s": 0.02}
    full = box("a", free_tokens=50, **rates)
    free = box("b", free_tokens=5000, pending_prefill_tokens=100, **rates)
    question = Question(prompt_tokens=100, max_tokens=10)
    links = {("a", "b"): 1.0, ("b", "a"): 1.0}
    decision = decide(ModeSetting(mode="auto"), [full, free], links, question, 1)
    assert decision is not None and decision.decode_box == "b"


def test_auto_counts_what_is_queued_on_the_link() -> None:
    rates = {"prefill_tokens_per_s": 4000.0, "decode_step_s": 0.02}
    question = Question(prompt_tokens=1000, max_tokens=10, kv_bytes_per_token=50_000)
    boxes = [
        box("a", handing_over_tokens=50_000, **rates),
        box("b", decoding=2, requests=2, **rates),
    ]
    decision = decide(
        ModeSetting(mode="auto"), boxes, {("a", "b"): 5e8, ("b", "a"): 5e8}, question, 1
    )
    assert decision is not None and decision.kind == "colocated"
