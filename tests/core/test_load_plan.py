"""The plan of a load: fixed beforehand, seeded, with the rate and lengths asked for."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from msgspec.structs import replace

from homesplit.core.arrivals import send_times
from homesplit.core.candidates import longest_tokens
from homesplit.core.ledger import classes_of
from homesplit.core.load import plan_load
from homesplit.core.prng import Prng
from homesplit.core.prompts import TokenFit, fit_tokens, messages
from homesplit.core.workload import Arrivals, LengthClass, Workload


def length_class(name: str = "short", *, prompt: int = 20, output: int = 8) -> LengthClass:
    return LengthClass(
        name=name,
        share=1.0,
        prompt_tokens_low=prompt,
        prompt_tokens_high=prompt,
        output_tokens_low=output,
        output_tokens_high=output,
    )


def workload(arrivals: Arrivals | None = None, **changes: Any) -> Workload:
    base = Workload(
        name="small",
        classes=(length_class(),),
        arrivals=arrivals or Arrivals(rate_requests_per_s=10.0),
    )
    return replace(base, **changes)


def text(request: Any, salt: int = 0) -> str:
    return " ".join(said for _, said in messages(request, TokenFit(), salt))


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    first, again = (plan_load(workload(), seed=7, seconds=30) for _ in range(2))
    assert first == again
    assert plan_load(workload(), seed=8, seconds=30).requests != first.requests


def test_poisson_arrivals_come_at_the_rate_with_gaps_as_spread_as_their_mean() -> None:
    times = send_times(Arrivals(rate_requests_per_s=50.0), seconds=200, rng=Prng(1))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
    assert len(times) == pytest.approx(10_000, rel=0.03)
    assert spread == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.5, 2.0])
def test_gamma_bursts_have_the_coefficient_of_variation_asked_for(burstiness: float) -> None:
    arrivals = Arrivals(rate_requests_per_s=100.0, burstiness=burstiness)
    times = send_times(arrivals, seconds=400, rng=Prng(2))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
    assert mean == pytest.approx(0.01, rel=0.05)
    assert spread == pytest.approx(burstiness, rel=0.07)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 5.0])
def test_bursts_begin_no_sooner_than_any_other_part_of_the_load(burstiness: float) -> None:
    arrivals = Arrivals(rate_requests_per_s=10.0, burstiness=burstiness)
    counts = [len(send_times(arrivals, seconds=10, rng=Prng(seed))) for seed in range(400)]
    # Bursts of 5 that began with an arrival would send 112 on average.
    assert sum(counts) / len(counts) == pytest.approx(100, abs=6)


def test_an_even_load_has_equal_gaps_from_half_a_gap_on() -> None:
    arrivals = Arrivals(rate_requests_per_s=2.0, burstiness=0.0)
    assert send_times(arrivals, seconds=2, rng=Prng(1)) == (0.25, 0.75, 1.25, 1.75)


def test_on_and_off_phases_alternate_and_nothing_is_sent_while_off() -> None:
    arrivals = Arrivals(
        rate_requests_per_s=2.0, burstiness=0.0, pattern="on_off", on_s=1.0, off_s=3.0
    )
    assert send_times(arrivals, seconds=8, rng=Prng(1)) == (0.25, 0.75, 4.25, 4.75)


def test_a_ramp_sends_as_many_as_its_mean_rate_with_shrinking_gaps() -> None:
    arrivals = Arrivals(
        rate_requests_per_s=1.0, burstiness=0.0, pattern="ramp", ramp_to_requests_per_s=9.0
    )
    times = send_times(arrivals, seconds=10, rng=Prng(1))
    assert len(times) == 50
    assert times[1] - times[0] > 5 * (times[-1] - times[-2])


def test_prompts_differ_from_the_first_word_and_hold_the_words_asked_for() -> None:
    plan = plan_load(workload(), seed=1, seconds=10)
    texts = [text(request) for request in plan.requests]
    assert all(len(said.split()) == 20 for said in texts)
    firsts = [said.split()[0] for said in texts[:100]]
    assert len(set(firsts)) == len(firsts)
    assert len({tuple(said.split()[:2]) for said in texts}) == len(texts)


def test_a_salt_changes_every_text_and_no_length() -> None:
    plan = plan_load(workload(), seed=1, seconds=5)
    for request in plan.requests:
        one, other = text(request).split(), text(request, salt=9).split()
        assert len(one) == len(other) and one[0:3] != other[0:3]


def test_a_shared_prefix_is_the_same_text_inside_a_group_only() -> None:
    shared = workload(shared_prefix_tokens=12, shared_prefix_groups=2)
    plan = plan_load(shared, seed=3, seconds=5)
    starts = {(r.shared_group, tuple(text(r).split()[:12])) for r in plan.requests}
    assert len(starts) == 2
    assert len({text(r) for r in plan.requests}) == len(plan.requests)
    assert all(r.prompt_tokens == 20 for r in plan.requests)


@pytest.mark.parametrize(
    ("shared", "turns", "first", "longest"),
    [(0, 1, 20, 28), (12, 1, 20, 28), (12, 3, 20, 84), (50, 1, 51, 59), (50, 3, 51, 51 + 40 + 24)],
    ids=["nothing shared", "a part", "a part, in turns", "longer than prompts", "longer, in turns"],
)
def test_a_shared_prefix_is_a_part_of_the_first_prompt_for_load_and_advice_alike(
    shared: int, turns: int, first: int, longest: int
) -> None:
    asked = workload(shared_prefix_tokens=shared, turns=turns)
    sent = plan_load(asked, seed=3, seconds=5).requests
    assert {r.prompt_tokens for r in sent if r.turn == 0} == {first}
    assert asked.first_prompt_tokens(20) == first
    last = [r for r in sent if r.turn == turns - 1]
    assert {r.prompt_tokens + r.output_tokens for r in last} == {longest}
    assert longest_tokens(asked) == longest
    (kind, *_) = classes_of(replace(asked, classes=asked.classes * 2))
    assert kind.prompt_tokens == first


def test_later_turns_repeat_the_earlier_ones_and_wait_for_them() -> None:
    plan = plan_load(workload(turns=3), seed=1, seconds=5)
    first, second, third = plan.requests[:3]
    assert (first.after, second.after, third.after) == (None, 0, 1)
    assert second.send_at_s is None
    assert text(second).startswith(text(first))
    assert text(third).startswith(text(second))
    assert third.prompt_tokens == 3 * 20 + 2 * 8


def test_a_closed_loop_has_a_chain_of_requests_for_each_user() -> None:
    closed = workload(Arrivals(kind="closed", users=3, think_s=1.0))
    plan = plan_load(closed, seed=1, seconds=2)
    chains = {user: [r for r in plan.requests if r.user == user] for user in range(3)}
    for chain in chains.values():
        assert chain[0].after is None and chain[0].send_at_s is None
        assert all(b.after == a.id for a, b in itertools.pairwise(chain))
        assert all(0.5 <= r.pause_s <= 1.5 for r in chain)


def test_the_share_of_users_who_cancel_is_the_one_asked_for() -> None:
    plan = plan_load(
        workload(Arrivals(rate_requests_per_s=100.0), cancel_share=0.3), seed=1, seconds=50
    )
    cancelling = sum(r.cancel_after_s is not None for r in plan.requests)
    assert cancelling / len(plan.requests) == pytest.approx(0.3, abs=0.03)


def test_cancelling_users_change_neither_times_nor_texts_of_the_load() -> None:
    calm = plan_load(workload(), seed=1, seconds=5)
    hasty = plan_load(workload(cancel_share=0.5), seed=1, seconds=5)
    stripped = tuple(replace(r, cancel_after_s=None) for r in hasty.requests)
    assert stripped == calm.requests


@pytest.mark.parametrize(
    ("changes", "seconds", "said"),
    [
        ({"arrivals": Arrivals(rate_requests_per_s=0.0)}, 1.0, "rate above 0"),
        ({"arrivals": Arrivals(kind="closed")}, 1.0, "at least one user"),
        ({"classes": ()}, 1.0, "no class"),
        ({}, 0.0, "above 0 seconds"),
        ({"cancel_share": 2.0}, 1.0, "between 0 and 1"),
        ({"arrivals": Arrivals(rate_requests_per_s=1e9)}, 1e3, "not supported"),
    ],
)
def test_an_impossible_load_is_refused_in_words(
    changes: dict[str, Any], seconds: float, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        plan_load(workload(**changes), seed=1, seconds=seconds)


def test_the_token_fit_recovers_template_and_tokens_a_word() -> None:
    fit = fit_tokens((16, 37), (96, 197))
    assert (fit.fixed, fit.per_word) == (5.0, 2.0)
    assert fit.words_for(205) == 100
    request = plan_load(workload(), seed=1, seconds=5).requests[0]
    said = " ".join(words for _, words in messages(request, fit))
    assert len(said.split()) == 8  # 5 + 2 * 8 = 21, nearest to 20


def test_pairs_of_prompt_and_answer_are_drawn_together_by_their_weights() -> None:
    kind = replace(length_class(), pairs=((10, 400, 1.0), (900, 5, 3.0)))
    plan = plan_load(
        workload(Arrivals(rate_requests_per_s=100.0), classes=(kind,)), seed=3, seconds=20.0
    )
    drawn = [(r.prompt_tokens, r.output_tokens) for r in plan.requests]
    assert set(drawn) == {(10, 400), (900, 5)}
    assert drawn.count((900, 5)) / len(drawn) == pytest.approx(0.75, abs=0.05)
    assert (kind.mean_prompt_tokens, kind.mean_output_tokens) == (677.5, 103.75)
    assert kind.scaled(prompts=2.0).pairs == ((20, 400, 1.0), (1800, 5, 3.0))
    assert kind.scaled(outputs=0.1).pairs == ((10, 40, 1.0), (900, 1, 3.0))
