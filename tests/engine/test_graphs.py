"""Decode steps of fixed shapes, replayed as a GPU replays them, give what other steps give."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from homesplit_engine import graphs
from homesplit_engine.cache import KvPool
from homesplit_engine.graphs import Bucket, Graphs, Replay, StaticStep, bucket_for, why_no_graphs
from homesplit_engine.model import LoadedModel, load_model
from homesplit_engine.runner import Runner

from tests.engine.engine_kit import BLOCK, Engine, Models
from tests.engine.tiny import EXPERTS, KINDS, WAYS, prompt_of

DENSE = [kind for kind in (*KINDS, *WAYS) if kind not in EXPERTS]
FEWEST = 16
Record = Callable[[StaticStep], Replay]


def recorded(step: StaticStep) -> Replay:
    """What CUDA does: the same function of the same memory, its answer in one place."""
    step.compute()
    logits = step.compute()

    def replay() -> torch.Tensor:
        return logits.copy_(step.compute())

    return replay


class Replaying(Engine):
    """An engine whose decode steps are recorded and replayed."""

    def __init__(
        self,
        loaded: LoadedModel,
        record: Record = recorded,
        *,
        blocks: int = 64,
        checked_uses: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(loaded, blocks=blocks, **settings)
        pool = KvPool(
            loaded.kv_shape,
            blocks_total=blocks,
            block_tokens=BLOCK,
            device=loaded.device,
            spare=True,
        )
        for layer in pool.layers:
            layer.fill_(float("nan"))
        self.runner = Runner(loaded, pool)
        self.graphs = self.runner.graphs = Graphs(
            loaded,
            pool,
            eager=self.runner.decoded,
            record=record,
            fewest_tokens=FEWEST,
            checked_uses=checked_uses,
        )


def _never(*_: Any) -> bool:
    return False


@pytest.fixture(scope="module")
def load(models: Models) -> Any:
    """Models as a GPU holds them: in torch's own layers, not in those compiled for a CPU."""

    @cache
    def loaded(kind: str, dtype: str = "float32") -> LoadedModel:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("homesplit_engine.model.can_hasten", _never)
            return load_model(models.folder(kind), device="cpu", dtype=dtype)

    return loaded


BATCH = ((1, 12), (BLOCK + 1, 3), (23, 12), (45, 7))
"""Prompt and answer tokens: the batch shrinks, and its contexts grow out of a bucket."""


@pytest.mark.parametrize("kind", DENSE)
def test_replayed_steps_give_transformers_own_text(kind: str, load: Any, models: Models) -> None:
    engine = Replaying(load(kind))
    for length, tokens in BATCH:
        engine.add(str(length), prompt_of(length), max_tokens=tokens)
    answers = engine.run()
    assert engine.graphs.off is None and engine.graphs.buckets
    assert answers == {str(n): models.answer(kind, n, tokens) for n, tokens in BATCH}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("llama", "float32"), ("llama", "bfloat16"), ("mistral", "bfloat16"), ("gemma2", "bfloat16")],
)
def test_a_step_of_fixed_shapes_has_the_logits_of_any_other(
    kind: str, dtype: str, load: Any
) -> None:
    """`Graphs` itself compares each new one: none may be refused, nor be replayed wrongly."""
    loaded = load(kind, dtype)
    engine = Replaying(loaded)
    for length, _ in BATCH:
        engine.add(str(length), prompt_of(length), max_tokens=4)
    seen = 0
    while (plan := engine.scheduler.schedule(0.0)) is not None:
        if plan.prefill:
            result = engine.runner.run(plan)
        else:
            places = [engine.runner.place(request) for request in plan.decode]
            engine.graphs.logits(plan.decode, places)
            replayed = engine.graphs.logits(plan.decode, places)
            expected = engine.runner.decoded(plan.decode)
            slack = 1e-4 if dtype == "float32" else 0.05
            assert (replayed - expected).abs().max() <= slack * expected.abs().max()
            seen += 1
            result = engine.runner.run(plan)
        sampled = {name: choice.token_id for name, choice in result.choices.items()}
        engine.scheduler.finish_step(plan, sampled, now_s=0.0)
    assert seen and engine.graphs.off is None


def test_scattered_blocks_that_grow_give_the_same_text(load: Any, models: Models) -> None:
    engine = Replaying(load("llama"), blocks=18, prefix_cache=False)
    engine.scheduler.pool.allocate(18)
    engine.scheduler.pool.release(list(range(0, 18, 2)))
    engine.add("alone", prompt_of(45), max_tokens=20)
    assert engine.run()["alone"] == models.answer("llama", 45, 20)
    assert engine.graphs.off is None


def test_preempted_requests_still_give_the_same_text(load: Any) -> None:
    plain, replaying = (
        Engine(load("llama"), blocks=8, prefix_cache=False),
        Replaying(load("llama"), blocks=8, prefix_cache=False),
    )
    for engine in (plain, replaying):
        for seed in range(4):
            engine.add(str(seed), prompt_of(15, seed))
    requests = [replaying.scheduler.request(str(seed)) for seed in range(4)]
    assert replaying.run() == plain.run()
    assert sum(r.preemptions for r in requests if r is not None) > 0
    assert replaying.graphs.off is None and replaying.graphs.buckets


def _differs(step: StaticStep) -> Replay:
    return lambda: step.compute() + 1.0


def _fails(_step: StaticStep) -> Replay:
    raise RuntimeError("operation not permitted when stream is capturing")


def _replays_once(step: StaticStep) -> Replay:
    left = [recorded(step)]

    def replay() -> torch.Tensor:
        if not left:
            raise RuntimeError("an error at replay")
        return left.pop()()

    return replay


def _spoils(step: StaticStep) -> Replay:
    """Writes other KV than it should, besides wrong logits."""
    step.compute()
    step._inputs.fill_(7)  # pyright: ignore[reportPrivateUsage]
    return step.compute


def _reads_no_new_inputs(step: StaticStep) -> Replay:
    logits = step.compute().clone()
    return lambda: logits


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (_differs, "are off by"),
        (_fails, "stream is capturing"),
        (_replays_once, "an error at replay"),
        (_spoils, "are off by"),
        (_reads_no_new_inputs, "are off by"),
    ],
)
def test_a_graph_that_differs_or_fails_costs_no_text_and_is_told_once(
    record: Record, sentence: str, load: Any, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Replaying(load("llama"), record, checked_uses=graphs.CHECKED_USES)
    for length, tokens in BATCH:
        engine.add(str(length), prompt_of(length), max_tokens=tokens)
    with caplog.at_level(logging.INFO, logger=graphs.__name__):
        answers = engine.run()
    assert answers == {str(n): models.answer("llama", n, tokens) for n, tokens in BATCH}
    assert engine.graphs.off is not None and not engine.graphs.buckets
    (line,) = [one.message for one in caplog.records if one.name == graphs.__name__]
    assert sentence in line and "without CUDA graphs" in line


def test_logits_that_are_no_numbers_are_told_and_leave_the_graphs_on(load: Any) -> None:
    engine = Replaying(load("llama"))
    engine.add("a", prompt_of(5))
    plan = engine.scheduler.schedule(0.0)
    assert plan is not None
    result = engine.runner.run(plan)
    sampled = {name: choice.token_id for name, choice in result.choices.items()}
    engine.scheduler.finish_step(plan, sampled, now_s=0.0)
    for layer in engine.runner.pool.layers:
        layer.fill_(float("nan"))
    for _ in range(2):
        plan = engine.scheduler.schedule(0.0)
        assert plan is not None and engine.runner.run(plan).not_finite == ("a",)
    assert engine.graphs.off is None and len(engine.graphs.buckets) == 1


def test_as_many_graphs_are_recorded_as_may_be_and_larger_ones_serve_smaller_batches(
    load: Any, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 1)
    engine = Replaying(load("llama"))
    for length, tokens in BATCH:
        engine.add(str(length), prompt_of(length), max_tokens=tokens)
    answers = engine.run()
    assert answers == {str(n): models.answer("llama", n, tokens) for n, tokens in BATCH}
    assert len(engine.graphs.buckets) == 1


def test_what_would_need_too_much_memory_is_not_recorded(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_BYTES", 1000)
    engine = Replaying(load("llama"))
    engine.add("a", prompt_of(20))
    engine.run()
    assert engine.graphs.buckets == [] and engine.graphs.off is None


def test_a_replayed_step_tells_every_layer_and_one_with_a_prompt_is_not_replayed(
    load: Any,
) -> None:
    engine = Replaying(load("llama"))
    engine.add("a", prompt_of(20), chunk=None)
    told: list[int] = []
    plan = engine.scheduler.schedule(0.0)
    assert plan is not None and plan.prefill
    result = engine.runner.run(plan)
    assert engine.graphs.buckets == []
    sampled = {name: choice.token_id for name, choice in result.choices.items()}
    engine.scheduler.finish_step(plan, sampled, now_s=0.0)
    plan = engine.scheduler.schedule(0.0)
    assert plan is not None and not plan.prefill
    engine.runner.run(plan, told.append)
    assert told == [0, 1, 2] and len(engine.graphs.buckets) == 1


@pytest.mark.parametrize(
    ("rows", "tokens", "bucket"),
    [(1, 1, (1, 256)), (3, 256, (4, 256)), (4, 257, (4, 512)), (33, 5000, (64, 8192))],
)
def test_a_batch_takes_the_smallest_bucket(rows: int, tokens: int, bucket: tuple[int, int]) -> None:
    assert bucket_for(rows, tokens) == Bucket(rows=bucket[0], tokens=bucket[1])


def test_a_cpu_records_nothing_and_its_pool_has_no_spare_slot(load: Any) -> None:
    loaded = load("llama")
    assert "no CUDA graphs on cpu" in (why_no_graphs(loaded) or "")
    pool = KvPool(loaded.kv_shape, blocks_total=2, block_tokens=BLOCK, device=loaded.device)
    assert pool.spare is None and pool.layers[0].shape[1] == 2 * BLOCK
    assert Runner(loaded, pool).graphs is None
    with pytest.raises(ValueError, match="spare slot"):
        StaticStep(loaded, pool, Bucket(rows=1, tokens=16))
