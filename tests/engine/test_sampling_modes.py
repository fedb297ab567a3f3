"""Chosen tokens and log-probabilities are the same alone, in a batch, handed over, resumed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from homesplit_engine.wire.messages import Token

from tests.engine.client import Pair, submit
from tests.engine.tiny import make_model, prompt_of

_numbers = itertools.count()
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy with logprobs": {"top_logprobs": 3},
    "temperature": {"temperature": 0.9, "seed": 5},
    "top_p": {"temperature": 1.0, "top_p": 0.7, "seed": 6},
    "top_k": {"temperature": 1.2, "top_k": 5, "seed": 7},
    "min_p": {"temperature": 1.0, "min_p": 0.2, "seed": 8},
    "repetition penalty": {"repetition_penalty": 1.5},
    "presence and frequency": {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    "everything": {
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.01,
        "seed": 9,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "top_logprobs": 2,
    },
}
ANSWER = 12


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    model = make_model(tmp_path_factory.mktemp("model"))
    both = Pair(tmp_path_factory.mktemp("pair"), model, prefix_cache=False)
    yield both
    both.stop()


def alone(pair: Pair, prompt: list[int], settings: dict[str, Any]) -> list[Token]:
    request_id = f"alone-{next(_numbers)}"
    pair.a.send(submit(request_id, prompt, max_tokens=ANSWER, ignore_eos=True, **settings))
    pair.a.finish(request_id)
    return pair.a.tokens(request_id)


def same(one: list[Token], other: list[Token]) -> None:
    assert [t.token_id for t in one] == [t.token_id for t in other]
    for a, b in zip(one, other, strict=True):
        assert a.logprob == (None if b.logprob is None else pytest.approx(b.logprob, abs=1e-3))
        assert [i for i, _ in a.top_logprobs] == [i for i, _ in b.top_logprobs]


@pytest.mark.parametrize("name", list(SETTINGS))
def test_the_same_tokens_alone_in_a_batch_and_handed_over(pair: Pair, name: str) -> None:
    settings = SETTINGS[name]
    prompt = prompt_of(25, 1)
    expected = alone(pair, prompt, settings)
    assert len(expected) == ANSWER
    beside = [f"beside-{next(_numbers)}" for _ in range(3)]
    request_id = f"batch-{next(_numbers)}"
    for seed, other in enumerate(beside):
        pair.a.send(submit(other, prompt_of(15 + seed, seed + 2), max_tokens=ANSWER))
    pair.a.send(submit(request_id, prompt, max_tokens=ANSWER, ignore_eos=True, **settings))
    pair.a.finish(request_id)
    same(pair.a.tokens(request_id), expected)
    for other in beside:
        pair.a.finish(other)
    split_id = f"split-{next(_numbers)}"
    pair.split(split_id, prompt, 12, max_tokens=ANSWER, ignore_eos=True, **settings)
    pair.b.finish(split_id)
    pair.a.drain()
    same(pair.a.tokens(split_id) + pair.b.tokens(split_id), expected)


@pytest.mark.parametrize("given", [1, 5, ANSWER - 1])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_who_goes_on_with_the_tokens_so_far_chooses_as_if_nothing_had_been(
    pair: Pair, name: str, given: int
) -> None:
    settings = SETTINGS[name]
    prompt = prompt_of(25, 1)
    expected = alone(pair, prompt, settings)
    so_far = [token.token_id for token in expected[:given]]
    resumed = f"resumed-{next(_numbers)}"
    words: dict[str, Any] = {"prompt_tokens": len(prompt), "max_tokens": ANSWER}
    pair.b.send(submit(resumed, prompt + so_far, ignore_eos=True, **words, **settings))
    pair.b.finish(resumed)
    same(pair.b.tokens(resumed), expected[given:])
    assert [token.index for token in pair.b.tokens(resumed)] == list(range(given, ANSWER))


def test_asked_log_probabilities_are_told_and_others_are_not(pair: Pair) -> None:
    told = alone(pair, prompt_of(20, 3), {"top_logprobs": 3})
    for token in told:
        assert token.logprob is not None and token.logprob <= 0.0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0] == (token.token_id, pytest.approx(token.logprob))
    assert all(t.logprob is None for t in alone(pair, prompt_of(20, 3), {}))


def test_penalties_and_seeds_change_the_text(pair: Pair) -> None:
    prompt = prompt_of(20, 4)
    greedy = [t.token_id for t in alone(pair, prompt, {})]
    penalised = [t.token_id for t in alone(pair, prompt, {"presence_penalty": 100.0})]
    assert len(set(penalised)) == ANSWER and penalised != greedy
    drawn = {
        tuple(t.token_id for t in alone(pair, prompt, {"temperature": 1.5, "seed": seed}))
        for seed in range(3)
    }
    assert len(drawn) == 3
