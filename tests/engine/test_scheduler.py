"""The scheduler: steps as values, whole and chunked prompts, hand-off, cancelling, preemption."""

from __future__ import annotations

import itertools

from homesplit_engine.pages import BlockPool
from homesplit_engine.request import Request
from homesplit_engine.scheduler import Limits, Scheduler, StepOutcome, StepPlan
from hypothesis import given, settings
from hypothesis import strategies as st

FIRST_TOKEN = 1000


def request(name: str, tokens: int = 4, **changes: object) -> Request:
    fields: dict[str, object] = {
        "request_id": name,
        "tokens": [sum(name.encode()) + n for n in range(tokens)],
        "prompt_tokens": tokens,
        "max_tokens": 3,
        "arrived_s": 0.0,
        "deadline_s": 100.0,
        "chunk_tokens": 4,
    }
    return Request(**(fields | changes))  # pyright: ignore[reportArgumentType]


def scheduler(blocks: int = 32, block_tokens: int = 4, **limits: int) -> Scheduler:
    chosen = {"max_context": 64, "max_step_tokens": 32} | limits
    return Scheduler(BlockPool(blocks, block_tokens), Limits(**chosen))


def step(subject: Scheduler, now_s: float = 1.0) -> tuple[StepPlan, StepOutcome]:
    plan = subject.schedule(now_s)
    assert plan is not None
    sampled = {work.request.request_id: FIRST_TOKEN for work in plan.prefill}
    sampled |= {item.request_id: FIRST_TOKEN + item.output_tokens for item in plan.decode}
    return plan, subject.finish_step(plan, sampled, now_s=now_s + 0.5)


def slices(plan: StepPlan) -> list[tuple[str, int, int, bool]]:
    return [(w.request.request_id, w.start, w.tokens, w.last) for w in plan.prefill]


def test_an_idle_scheduler_has_no_step() -> None:
    assert scheduler().schedule(0.0) is None


def test_a_chunked_prompt_is_read_beside_the_decoding_requests() -> None:
    subject = scheduler()
    subject.add(request("a", 4), now_s=0.0)
    step(subject)
    subject.add(request("b", 10), now_s=0.0)
    plans = [step(subject)[0] for _ in range(2)]
    assert [slices(plan) for plan in plans] == [[("b", 0, 4, False)], [("b", 4, 4, False)]]
    assert [[r.request_id for r in plan.decode] for plan in plans] == [["a"], ["a"]]


def test_a_whole_prompt_has_a_step_of_its_own_that_the_others_wait_for() -> None:
    subject = scheduler()
    subject.add(request("a", 4), now_s=0.0)
    step(subject)
    subject.add(request("b", 10, chunk_tokens=None), now_s=0.0)
    plan, _ = step(subject)
    assert slices(plan) == [("b", 0, 10, True)]
    assert plan.decode == ()
    plan, _ = step(subject)
    assert [r.request_id for r in plan.decode] == ["a", "b"]


def test_prompts_together_stay_within_one_chunk() -> None:
    subject = scheduler()
    for name in ("a", "b"):
        subject.add(request(name, 3), now_s=0.0)
    plan, _ = step(subject)
    assert slices(plan) == [("a", 0, 3, True), ("b", 0, 1, False)]


def test_the_answer_ends_at_max_tokens_and_everything_is_free() -> None:
    subject = scheduler()
    subject.add(request("a", 4, max_tokens=2), now_s=0.0)
    _, first = step(subject)
    _, second = step(subject)
    assert [(t.index, t.token_id) for t in first.tokens + second.tokens] == [(0, 1000), (1, 1001)]
    assert [(e.request_id, e.reason) for e in second.ended] == [("a", "length")]
    assert subject.pool.blocks_available == 32


def test_a_stop_token_ends_the_answer() -> None:
    subject = scheduler()
    subject.add(request("a", 4, stop_ids=frozenset([FIRST_TOKEN])), now_s=0.0)
    _, outcome = step(subject)
    assert [(e.request_id, e.reason) for e in outcome.ended] == [("a", "stop")]


def test_waiting_and_reading_times_are_told_once() -> None:
    subject = scheduler()
    subject.add(request("a", 8), now_s=0.0)
    _, first = step(subject, now_s=2.0)
    _, second = step(subject, now_s=3.0)
    _, third = step(subject, now_s=4.0)
    assert (first.prefilled, third.prefilled) == ((), ())
    assert [(p.queue_s, p.prefill_s) for p in second.prefilled] == [(2.0, 1.5)]


def test_a_repeated_prompt_is_read_from_where_the_cache_ends() -> None:
    subject = scheduler()
    subject.add(request("a", 9, max_tokens=1, chunk_tokens=None), now_s=0.0)
    step(subject)
    again = request("b", 9, chunk_tokens=None)
    again.tokens = request("a", 9).tokens
    subject.add(again, now_s=0.0)
    plan, outcome = step(subject)
    assert slices(plan) == [("b", 8, 1, True)]
    assert outcome.prefilled[0].cached_tokens == 8


def test_a_prompt_that_is_cached_to_its_end_still_computes_one_block() -> None:
    subject = scheduler()
    subject.add(request("a", 8, max_tokens=1, chunk_tokens=None), now_s=0.0)
    step(subject)
    again = request("b", 8, chunk_tokens=None)
    again.tokens = request("a", 8).tokens
    subject.add(again, now_s=0.0)
    assert slices(step(subject)[0]) == [("b", 4, 4, True)]


def test_a_hand_over_keeps_its_blocks_until_the_peer_has_committed() -> None:
    subject = scheduler()
    subject.add(request("a", 4, hand_over=True), now_s=0.0)
    _, outcome = step(subject)
    assert outcome.handing_over == ("a",)
    assert subject.schedule(2.0) is None
    assert subject.pool.blocks_available == 31
    subject.handoff_ended("a")
    assert subject.pool.blocks_available == 32


def test_a_reserved_request_decodes_after_its_commit_and_not_before() -> None:
    subject = scheduler()
    assert subject.reserve(request("a", 6), now_s=0.0) is None
    assert subject.schedule(1.0) is None
    assert subject.commit("a", FIRST_TOKEN)
    plan, outcome = step(subject)
    assert [r.request_id for r in plan.decode] == ["a"]
    assert [(t.index, t.token_id) for t in outcome.tokens] == [(1, 1001)]
    assert outcome.prefilled == ()


def test_a_commit_after_cancel_changes_nothing() -> None:
    subject = scheduler()
    subject.reserve(request("a", 6), now_s=0.0)
    subject.cancel("a")
    assert not subject.commit("a", FIRST_TOKEN)
    assert subject.schedule(1.0) is None
    assert subject.pool.blocks_available == 32


def test_a_request_cancelled_during_its_step_keeps_its_blocks_until_the_step_ends() -> None:
    subject = scheduler()
    subject.add(request("a", 4), now_s=0.0)
    plan = subject.schedule(1.0)
    assert plan is not None
    subject.cancel("a")
    assert subject.pool.blocks_available == 31
    outcome = subject.finish_step(plan, {}, now_s=2.0)
    assert outcome == StepOutcome()
    assert subject.pool.blocks_available == 32


def test_a_hand_over_cancelled_while_read_keeps_its_blocks_for_the_sender() -> None:
    subject = scheduler()
    subject.add(request("a", 8, hand_over=True), now_s=0.0)
    plan = subject.schedule(1.0)
    assert plan is not None
    subject.cancel("a")
    subject.finish_step(plan, {}, now_s=2.0)
    assert subject.schedule(2.0) is None
    assert subject.pool.blocks_available == 30
    subject.handoff_ended("a")
    assert subject.pool.blocks_available == 32


def test_what_can_never_fit_is_refused_with_the_figures() -> None:
    subject = scheduler(blocks=4)
    refusal = subject.add(request("a", 62), now_s=0.0)
    assert refusal is not None and refusal.kind == "too_long" and "context of 64" in refusal.what
    refusal = subject.add(request("b", 16), now_s=0.0)
    assert refusal is not None and refusal.kind == "too_long" and "5 KV blocks" in refusal.what


def test_a_full_queue_and_a_full_pool_refuse() -> None:
    subject = scheduler(blocks=4, max_waiting=1)
    assert subject.add(request("a"), now_s=0.0) is None
    refusal = subject.add(request("b"), now_s=0.0)
    assert refusal is not None and refusal.kind == "full"
    assert subject.reserve(request("c", 12), now_s=0.0) is None
    refusal = subject.reserve(request("d", 8), now_s=0.0)
    assert refusal is not None and refusal.kind == "full" and "1 available" in refusal.what


def test_a_passed_deadline_frees_the_request() -> None:
    subject = scheduler()
    subject.reserve(request("a", 4, deadline_s=5.0), now_s=0.0)
    assert subject.expire(4.9) == ()
    assert [r.request_id for r in subject.expire(5.0)] == ["a"]
    assert subject.pool.blocks_available == 32


def test_the_newest_gives_way_when_blocks_run_out_and_still_gets_its_whole_answer() -> None:
    subject = scheduler(blocks=4)
    subject.add(request("old", 4, max_tokens=8, chunk_tokens=None), now_s=0.0)
    subject.add(request("new", 4, max_tokens=8, chunk_tokens=None, arrived_s=1.0), now_s=1.0)
    indices: dict[str, list[int]] = {"old": [], "new": []}
    preempted: list[str] = []
    while (plan := subject.schedule(2.0)) is not None:
        preempted += plan.preempted
        sampled = {w.request.request_id: 1 for w in plan.prefill} | {
            r.request_id: 1 for r in plan.decode
        }
        for token in subject.finish_step(plan, sampled, now_s=2.0).tokens:
            indices[token.request_id].append(token.index)
    assert preempted == ["new"]
    assert indices == {"old": list(range(8)), "new": list(range(8))}


_ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.integers(1, 8),
        st.sampled_from([None, 1, 3, 8]),
        st.sampled_from(["here", "here", "hand over", "reserve"]),
        st.integers(0, 12),
        st.sampled_from([None, None, None, 2, 5]),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=200, deadline=None)
@given(_ARRIVALS, st.integers(8, 20))
def test_every_request_gets_each_token_once_and_every_block_comes_back(
    arrivals: list[tuple[int, int, int | None, str, int, int | None]], blocks: int
) -> None:
    subject = scheduler(blocks=blocks, max_batch_requests=5)
    got: dict[str, list[int]] = {}
    wanted: dict[str, int] = {}
    cancelled: set[str] = set()
    for clock in itertools.count():
        for number, (tokens, answer, chunk, way, arrival, _) in enumerate(arrivals):
            name = str(number)
            if arrival != clock:
                continue
            item = request(
                name,
                tokens,
                max_tokens=answer,
                chunk_tokens=chunk,
                arrived_s=float(clock),
                hand_over=way == "hand over",
                deadline_s=1e9,
            )
            take = subject.reserve if way == "reserve" and answer > 1 else subject.add
            if take(item, now_s=float(clock)) is None:
                got[name] = []
                wanted[name] = 1 if way == "hand over" else answer
        for number, (*_, arrival, patience) in enumerate(arrivals):
            name = str(number)
            if patience is not None and clock == arrival + patience and name in got:
                subject.cancel(name)
                subject.handoff_ended(name)
                cancelled.add(name)
            if name in got and clock > arrival and subject.commit(name, 1):
                got[name].append(0)
        plan = subject.schedule(float(clock))
        if plan is not None:
            works = [*plan.prefill, *plan.decode]
            assert works
            held: list[int] = []
            for item in [*(w.request for w in plan.prefill), *plan.decode]:
                assert len(item.blocks) * 4 >= len(item.tokens)
                held += item.blocks[item.remembered :]
            assert len(held) == len(set(held)), "two requests write into one block"
            sampled = {w.request.request_id: 7 for w in plan.prefill if w.last}
            sampled |= {r.request_id: 7 for r in plan.decode}
            outcome = subject.finish_step(plan, sampled, now_s=float(clock))
            for token in outcome.tokens:
                got[token.request_id].append(token.index)
            for name in (*outcome.handing_over, *(e.request_id for e in outcome.ended)):
                subject.handoff_ended(name)
        elif clock > 20:
            break
        assert clock < 2000, "the scheduler does not come to an end"
    for name, indices in got.items():
        assert indices == list(range(len(indices)))
        assert name in cancelled or len(indices) == wanted[name]
    assert subject.pool.blocks_available == blocks
    assert (subject.running, subject.waiting, subject.reserved, subject.handing_over) == (0,) * 4
