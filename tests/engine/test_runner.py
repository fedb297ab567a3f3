"""The engine without its sockets: the text equals transformers' own, however it is cut up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from homesplit_engine import attention
from homesplit_engine.request import Request
from homesplit_engine.wire.messages import SamplingParams

from homesplit.core.model_config import shape_from_config
from tests.engine.engine_kit import ANSWER, BLOCK, CHUNK, LENGTHS, Engine, Models
from tests.engine.tiny import CONTEXT, KINDS, ROPES, WAYS, continued, prompt_of

pytestmark = pytest.mark.usefixtures("one_thread")

CUTS = {"whole": None, "chunked": CHUNK}
EVERY = [*KINDS, *ROPES, *WAYS]


@pytest.mark.parametrize("kind", EVERY)
def test_logits_are_transformers_own_however_a_prompt_is_cut(kind: str, models: Models) -> None:
    own = models.logits(kind, prompt_of(45))
    engine = Engine(models.loaded(kind))
    cut, whole = (_placed(engine, name, at) for name, at in (("cut", 0), ("whole", 20)))
    # In every step the chunk that ends behind token `end` and, beside it, a prompt of so many.
    start = 0
    for end in (1, BLOCK, BLOCK + 1, 2 * CHUNK, 2 * CHUNK + 1, 44, 45):
        beside = (whole, 0, end, True)
        logits, _ = engine.runner.logits([(cut, start, end - start, True), beside])
        for ours in logits:
            torch.testing.assert_close(ours, own[end - 1], rtol=1e-4, atol=1e-4 * _size(own))
        start = end


def _placed(engine: Engine, name: str, first_block: int) -> Request:
    request = engine.request(name, prompt_of(45))
    request.blocks = list(range(first_block, first_block + 6))
    return request


def _size(logits: torch.Tensor) -> float:
    return float(logits.abs().max())


@pytest.mark.parametrize("cut", list(CUTS))
@pytest.mark.parametrize("kind", EVERY)
def test_greedy_text_equals_generate_at_every_border_alone_in_a_batch_and_cached(
    kind: str, cut: str, models: Models
) -> None:
    loaded = models.loaded(kind)
    wanted = {f"{n}": models.answer(kind, n, seed=seed) for seed, n in enumerate(LENGTHS)}
    alone, batch = Engine(loaded), Engine(loaded)
    for seed, (name, answer) in enumerate(wanted.items()):
        prompt = prompt_of(int(name), seed)
        first, again = (
            _answered(alone, turn + name, prompt, CUTS[cut]) for turn in ("first ", "again ")
        )
        assert alone.answers[first.request_id] == alone.answers[again.request_id] == answer
        # Every full block of a prompt, but never its last token: something must be computed.
        reusable = (len(prompt) - 1) // BLOCK * BLOCK
        assert (first.cached_tokens, again.cached_tokens) == (0, reusable)
    for turn in ("first ", "again "):
        for seed, name in enumerate(wanted):
            batch.add(turn + name, prompt_of(int(name), seed), chunk=CUTS[cut])
        answers = batch.run()
        assert {name: answers[turn + name] for name in wanted} == wanted


def _answered(engine: Engine, name: str, prompt: list[int], chunk: int | None) -> Request:
    request = engine.add(name, prompt, chunk=chunk)
    engine.run()
    return request


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "bloom"])
def test_attention_that_is_spelled_out_holds_few_scores_at_a_time(
    kind: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, plain = models.loaded(kind), attention.plain_attention
    sizes: list[int] = []

    def watched(rows: Any, query: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append(query.shape[-2])
        return plain(rows, query, *rest)

    heads = loaded.model.config.num_attention_heads
    monkeypatch.setattr(attention, "CACHED_SCORES", 7 * 45 * heads)
    monkeypatch.setattr(attention, "plain_attention", watched)
    engine = Engine(loaded)
    engine.add("whole", prompt_of(45), chunk=None)
    assert engine.run()["whole"] == models.answer(kind, 45)
    assert max(sizes) == 7


@pytest.mark.parametrize("kind", EVERY)
def test_the_plan_counts_the_kv_that_the_engine_keeps(kind: str, models: Models) -> None:
    config = json.loads((models.folder(kind) / "config.json").read_text())
    shape = shape_from_config(config, name=kind)
    assert shape.kv_bytes_per_token("fp32") == models.loaded(kind).kv_shape.bytes_per_token


@pytest.mark.parametrize("kind", EVERY)
def test_one_token_past_the_context_is_refused_in_words(kind: str, models: Models) -> None:
    loaded = models.loaded(kind)
    assert loaded.max_context == CONTEXT
    refusal = Engine(loaded).refusal(prompt_of(CONTEXT - ANSWER + 1))
    assert refusal is not None and refusal.kind == "too_long"
    assert "exceed the context of 128" in refusal.what


def test_the_tiny_models_answer_prompts_differently(models: Models) -> None:
    for kind in EVERY:
        answers = {tuple(models.answer(kind, n, seed=seed)) for seed, n in enumerate(LENGTHS)}
        assert len(answers) > len(LENGTHS) // 2, kind


@pytest.mark.parametrize("kind", list(KINDS))
def test_scattered_blocks_and_preempted_requests_give_the_same_text(
    kind: str, models: Models
) -> None:
    scattered = Engine(models.loaded(kind), blocks=14, prefix_cache=False)
    scattered.scheduler.pool.allocate(14)
    scattered.scheduler.pool.release(list(range(0, 14, 2)))
    scattered.add("alone", prompt_of(45))
    assert scattered.run()["alone"] == models.answer(kind, 45)
    # A window takes less memory of no one: every block of a request is kept.
    preempted = Engine(models.loaded(kind), blocks=8, prefix_cache=False)
    requests = [preempted.add(str(seed), prompt_of(15, seed)) for seed in range(4)]
    assert preempted.run() == {str(n): models.answer(kind, 15, seed=n) for n in range(4)}
    assert sum(request.preemptions for request in requests) > 0


def test_a_context_of_8192_tokens_can_be_filled_to_its_last(tmp_path: Path) -> None:
    """SmolLM2's own context, by a model small enough to read all of it here."""
    long = Models(tmp_path, max_position_embeddings=8192)
    prompt = prompt_of(8192 - ANSWER, 3)
    wanted = continued(long.own("smollm2"), prompt, ANSWER)
    for chunk in (None, 1000):
        engine = Engine(long.loaded("smollm2"), blocks=8192 // BLOCK)
        assert engine.refusal([*prompt, 5]) is not None
        engine.add("full", prompt, chunk=chunk)
        assert engine.run()["full"] == wanted


def test_a_seed_gives_the_same_text_alone_and_in_a_batch(models: Models) -> None:
    alone = Engine(models.loaded("llama"))
    alone.add("a", prompt_of(20), temperature=1.0, seed=7, max_tokens=10)
    batch = Engine(models.loaded("llama"))
    for name in ("x", "a", "y"):
        seed = 7 if name == "a" else 8
        batch.add(name, prompt_of(20), temperature=1.0, seed=seed, max_tokens=10)
    assert alone.run()["a"] == batch.run()["a"]
    assert batch.answers["x"] == batch.answers["y"] != batch.answers["a"]


def test_logits_that_are_no_numbers_are_told_by_request() -> None:
    from homesplit_engine.sampling import Row, choose

    logits = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])
    rows = [Row(params=SamplingParams(max_tokens=1), token_ids=[1], prompt_tokens=1)] * 2
    first, second = choose(logits, rows)
    assert first is not None and first.token_id == 1
    assert second is None
