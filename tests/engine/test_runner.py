"""The engine without its sockets: the text equals transformers' own, however it is cut up."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from homesplit_engine.cache import KvPool
from homesplit_engine.model import LoadedModel, ModelError, load_model
from homesplit_engine.pages import BlockPool
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner
from homesplit_engine.scheduler import Limits, Scheduler
from homesplit_engine.wire.messages import SamplingParams

from tests.engine.tiny import CONTEXT, KINDS, generate, make_model, prompt_of

BLOCK = 8
CHUNK = 12
ANSWER = 6
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * BLOCK, 45)


class Engine:
    """Scheduler and runner on one pool, stepped until nothing is left."""

    def __init__(self, loaded: LoadedModel, *, blocks: int = 64, prefix_cache: bool = True) -> None:
        pool = BlockPool(blocks, BLOCK, prefix_cache=prefix_cache)
        self.scheduler = Scheduler(pool, Limits(max_context=loaded.max_context))
        kv = KvPool(loaded.kv_shape, blocks_total=blocks, block_tokens=BLOCK, device=loaded.device)
        self.runner = Runner(loaded, kv)
        self.loaded = loaded
        self.answers: dict[str, list[int]] = {}

    def add(
        self,
        name: str,
        prompt: list[int],
        *,
        chunk: int | None = CHUNK,
        **sampling: Any,
    ) -> None:
        settings: dict[str, Any] = {"max_tokens": ANSWER} | sampling
        params = SamplingParams(**settings)
        request = Request(
            request_id=name,
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            max_tokens=params.max_tokens,
            arrived_s=float(len(self.answers)),
            deadline_s=1e9,
            chunk_tokens=chunk,
            stop_ids=frozenset(self.loaded.eos_token_ids),
            sampling=params,
        )
        self.answers[name] = []
        assert self.scheduler.add(request, now_s=0.0) is None

    def run(self) -> dict[str, list[int]]:
        while (plan := self.scheduler.schedule(0.0)) is not None:
            result = self.runner.run(plan)
            assert not result.not_finite
            sampled = {name: choice.token_id for name, choice in result.choices.items()}
            for token in self.scheduler.finish_step(plan, sampled, now_s=0.0).tokens:
                self.answers[token.request_id].append(token.token_id)
        return self.answers


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def folder(kind: str) -> Path:
        return make_model(tmp_path_factory.mktemp(kind), kind)

    return folder


@pytest.fixture(scope="session")
def load(folders: Any) -> Any:
    @cache
    def loaded(kind: str) -> LoadedModel:
        return load_model(folders(kind), device="cpu", dtype="float32")

    return loaded


@pytest.fixture(scope="session")
def reference(folders: Any) -> Any:
    @cache
    def answer(kind: str, length: int, seed: int = 0) -> list[int]:
        return generate(folders(kind), prompt_of(length, seed), ANSWER)

    return answer


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_greedy_text_equals_generate_in_a_batch(
    kind: str, chunk: int | None, load: Any, reference: Any
) -> None:
    engine = Engine(load(kind))
    for length in (1, BLOCK + 1, 45):
        engine.add(str(length), prompt_of(length), chunk=chunk)
    answers = engine.run()
    assert answers == {str(n): reference(kind, n) for n in (1, BLOCK + 1, 45)}


@pytest.mark.parametrize("chunk", [None, CHUNK], ids=["whole", "chunked"])
@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_text_equals_generate_at_every_border(
    length: int, chunk: int | None, load: Any, reference: Any
) -> None:
    engine = Engine(load("llama"))
    engine.add("alone", prompt_of(length), chunk=chunk)
    assert engine.run()["alone"] == reference("llama", length)


def test_the_tiny_models_answer_prompts_differently(reference: Any) -> None:
    answers = {tuple(reference("llama", length)) for length in LENGTHS}
    assert len(answers) > len(LENGTHS) // 2


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_prefix_that_is_cached_gives_the_same_text(kind: str, load: Any, reference: Any) -> None:
    engine = Engine(load(kind))
    engine.add("first", prompt_of(45))
    engine.run()
    engine.add("second", prompt_of(45))
    request = engine.scheduler.request("second")
    answers = engine.run()
    assert request is not None and request.cached_tokens == 40
    assert answers["second"] == answers["first"] == reference(kind, 45)


def test_scattered_blocks_give_the_same_text(load: Any, reference: Any) -> None:
    engine = Engine(load("llama"), blocks=14, prefix_cache=False)
    engine.scheduler.pool.allocate(14)
    engine.scheduler.pool.release(list(range(0, 14, 2)))
    engine.add("alone", prompt_of(45))
    request = engine.scheduler.request("alone")
    answers = engine.run()
    assert request is not None and answers["alone"] == reference("llama", 45)


def test_preempted_requests_still_give_the_same_text(load: Any, reference: Any) -> None:
    engine = Engine(load("llama"), blocks=8, prefix_cache=False)
    for seed in range(4):
        engine.add(str(seed), prompt_of(15, seed))
    requests = [engine.scheduler.request(str(seed)) for seed in range(4)]
    answers = engine.run()
    assert sum(r.preemptions for r in requests if r is not None) > 0
    assert answers == {str(seed): reference("llama", 15, seed) for seed in range(4)}


def test_the_context_can_be_filled_to_its_last_token(load: Any, folders: Any) -> None:
    engine = Engine(load("llama"))
    prompt = prompt_of(CONTEXT - ANSWER)
    engine.add("full", prompt, chunk=None)
    assert engine.run()["full"] == generate(folders("llama"), prompt, ANSWER)


def test_a_seed_gives_the_same_text_alone_and_in_a_batch(load: Any) -> None:
    alone = Engine(load("llama"))
    alone.add("a", prompt_of(20), temperature=1.0, seed=7, max_tokens=10)
    batch = Engine(load("llama"))
    for name in ("x", "a", "y"):
        seed = 7 if name == "a" else 8
        batch.add(name, prompt_of(20), temperature=1.0, seed=seed, max_tokens=10)
    assert alone.run()["a"] == batch.run()["a"]
    assert batch.answers["x"] == batch.answers["y"] != batch.answers["a"]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"kv_lora_rank": 8}, "latent attention"),
        ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "linear_att"),
        ({"mamba_d_state": 16}, "recurrent"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rope"),
    ],
)
def test_what_cannot_be_served_is_refused_by_the_kind_of_layer(
    config: dict[str, Any], sentence: str
) -> None:
    from homesplit_engine.model import refusal_of
    from transformers import LlamaConfig

    subject = LlamaConfig(num_hidden_layers=3)
    for key, value in config.items():
        setattr(subject, key, value)
    refusal = refusal_of(subject)
    assert refusal is not None and sentence in refusal
    assert refusal_of(LlamaConfig()) is None


def test_attention_sinks_are_refused_at_load(tmp_path: Path) -> None:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        pad_token_id=0,
    )
    GptOssForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="attention sinks"):
        load_model(tmp_path, device="cpu", dtype="float32")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(tmp_path, device="cpu", dtype="float32")


def test_logits_that_are_no_numbers_are_told_by_request(load: Any) -> None:
    from homesplit_engine.sampling import Row, choose

    logits = torch.tensor([[0.0, 1.0], [0.0, float("nan")]])
    rows = [Row(params=SamplingParams(max_tokens=1), token_ids=[1], prompt_tokens=1)] * 2
    first, second = choose(logits, rows)
    assert first is not None and first.token_id == 1
    assert second is None
