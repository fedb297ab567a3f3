"""What each sampling setting lets through, over small tables of logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from homesplit_engine.sampling import Row, choose, uniform
from homesplit_engine.wire.messages import SamplingParams

HALVES = [math.log(share) for share in (0.5, 0.25, 0.125, 0.0625, 0.0625)]
"""Probabilities halve from token to token; the last two are alike."""
SEEDS = range(200)


def drawn(logits: list[float], *, so_far: list[int] | None = None, **settings: Any) -> set[int]:
    """Every token that some seed draws."""
    tokens = [0] if so_far is None else so_far
    found: set[int] = set()
    for seed in SEEDS:
        given: dict[str, Any] = {"max_tokens": 9, "temperature": 1.0, "seed": seed, **settings}
        params = SamplingParams(**given)
        row = Row(params=params, token_ids=tokens, prompt_tokens=1)
        (choice,) = choose(torch.tensor([logits]), [row])
        assert choice is not None
        found.add(choice.token_id)
    return found


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"temperature": 0.0}, {0}),
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.4}, {0}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 0.8}, {0, 1, 2}),
        ({"min_p": 0.3}, {0, 1}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"top_k": 4, "top_p": 0.8, "min_p": 0.3}, {0, 1}),
        ({"temperature": 0.01}, {0}),
        ({"temperature": 1e-310}, {0}),
        ({"temperature": 100.0, "top_p": 0.0}, {0}),
        ({"temperature": 100.0, "min_p": 1.0}, {0}),
        ({"top_k": 2**31}, {0, 1, 2, 3, 4}),
    ],
)
def test_only_what_a_setting_lets_through_is_drawn(
    settings: dict[str, Any], allowed: set[int]
) -> None:
    assert drawn(HALVES, **settings) == allowed


def plainly(logits: torch.Tensor, row: Row) -> int:
    """The token by the definition: the whole vocabulary sorted, cut, and added up."""
    params = row.params
    values, ids = torch.sort(logits.double() / params.temperature, descending=True, stable=True)
    count = params.top_k or len(values)
    shares = torch.softmax(values[:count], dim=-1)
    before = shares.cumsum(-1) - shares
    allowed = (before < params.top_p) & (shares >= params.min_p * shares[0])
    allowed[0] = True
    added = shares[allowed].cumsum(-1)
    at = uniform(params.seed, len(row.token_ids) - row.prompt_tokens) * float(added[-1])
    return int(ids[min(len(added) - 1, int(torch.searchsorted(added, at, right=True)))])


@pytest.mark.parametrize("scale", [0.1, 3.0, 12.0], ids=["flat", "usual", "steep"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 3.0},
        {"temperature": 0.2},
        {"top_p": 0.9},
        {"top_p": 0.9999999},
        {"top_k": 5},
        {"top_k": 700},
        {"min_p": 0.05},
        {"min_p": 1e-9},
        {"top_k": 300, "top_p": 0.99, "min_p": 1e-4},
    ],
    ids=str,
)
def test_the_likeliest_alone_give_the_token_that_the_whole_vocabulary_gives(
    settings: dict[str, Any], scale: float
) -> None:
    for seed in range(40):
        # Rounded, so that many are alike.
        logits = (torch.randn(900, generator=torch.Generator().manual_seed(seed)) * scale).round()
        given: dict[str, Any] = {"max_tokens": 9, "temperature": 1.0, "seed": seed, **settings}
        row = Row(params=SamplingParams(**given), token_ids=[0, 1], prompt_tokens=1)
        (choice,) = choose(logits[None], [row])
        assert choice is not None
        assert choice.token_id == plainly(logits, row)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    counts = [0, 0, 0]
    logits = torch.tensor([[math.log(0.5), math.log(0.3), math.log(0.2)]])
    for seed in range(2000):
        params = SamplingParams(max_tokens=9, temperature=1.0, seed=seed)
        (choice,) = choose(logits, [Row(params=params, token_ids=[0], prompt_tokens=1)])
        assert choice is not None
        counts[choice.token_id] += 1
    assert [count / 2000 for count in counts] == pytest.approx([0.5, 0.3, 0.2], abs=0.04)


@pytest.mark.parametrize(
    ("settings", "so_far", "chosen"),
    [
        ({}, [0, 0, 0], 0),
        # Divided where positive: 2 / 2 = 1 is below token 1's 1.5. The prompt counts as well.
        ({"repetition_penalty": 2.0}, [0], 1),
        ({"repetition_penalty": 1.2}, [0], 0),
        # Presence and frequency count the answer alone: the first token is the prompt's.
        ({"presence_penalty": 1.0}, [0], 0),
        ({"presence_penalty": 1.0}, [0, 0], 1),
        ({"presence_penalty": 0.4}, [0, 0, 0, 0], 0),
        ({"frequency_penalty": 0.2}, [0, 0], 0),
        ({"frequency_penalty": 0.2}, [0, 0, 0, 0], 1),
        ({"frequency_penalty": -0.6}, [0, 1], 1),
    ],
)
def test_penalties_weigh_what_was_said(
    settings: dict[str, Any], so_far: list[int], chosen: int
) -> None:
    params = SamplingParams(max_tokens=9, temperature=0.0, **settings)
    row = Row(params=params, token_ids=so_far, prompt_tokens=1)
    (choice,) = choose(torch.tensor([[2.0, 1.5, -3.0]]), [row])
    assert choice is not None and choice.token_id == chosen


def test_a_negative_logit_is_made_more_negative_by_repetition() -> None:
    params = SamplingParams(max_tokens=9, temperature=0.0, repetition_penalty=2.0)
    row = Row(params=params, token_ids=[0], prompt_tokens=1)
    (choice,) = choose(torch.tensor([[-1.0, -1.5]]), [row])
    assert choice is not None and choice.token_id == 1


def test_log_probabilities_are_the_models_own_before_temperature_and_penalties() -> None:
    params = SamplingParams(
        max_tokens=9, temperature=5.0, seed=1, presence_penalty=2.0, top_logprobs=2
    )
    row = Row(params=params, token_ids=[0, 0], prompt_tokens=1)
    (choice,) = choose(torch.tensor([HALVES]), [row])
    assert choice is not None
    assert choice.logprob == pytest.approx(HALVES[choice.token_id], abs=1e-5)
    assert [token for token, _ in choice.top_logprobs] == [0, 1]
    assert choice.top_logprobs[0][1] == pytest.approx(math.log(0.5), abs=1e-5)
