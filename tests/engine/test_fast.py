"""A lean model's steps go through compiled kernels: the same text as the lean layers'."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from homesplit_engine.cache import KvPool
from homesplit_engine.fast import FastModel, fast_model, parts_of
from homesplit_engine.lean import LeanModel
from homesplit_engine.model import LoadedModel, load_model

from tests.engine.engine_kit import Engine
from tests.engine.tiny import generate, make_model, prompt_of


class Counted(FastModel):
    """Counts the steps that go the short way."""

    steps = 0

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        self.steps += 1
        return super().logits(token_ids, positions, keep)


def counted(loaded: LoadedModel) -> Counted:
    """The model's own short way, counted from now on."""
    assert fast_model(loaded.model, loaded.plug) is not None
    loaded.model._fast = fast = Counted(loaded.model, loaded.plug)
    return fast


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_every_step_of_answers_alone_goes_this_way_and_the_text_stays(
    kind: str, tmp_path: Path
) -> None:
    folder = make_model(tmp_path, kind)
    loaded = load_model(folder, device="cpu", dtype="float32")
    fast = counted(loaded)
    engine = Engine(loaded)
    for seed in range(3):
        engine.add(str(seed), prompt_of(20 + seed, seed), chunk=None)
    answers = engine.run()
    assert answers == {str(n): generate(folder, prompt_of(20 + n, n), 6) for n in range(3)}
    assert fast.steps >= 5


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = make_model(tmp_path_factory.mktemp("model"))
    return load_model(folder, device="cpu", dtype="float32")


def test_a_step_that_reads_single_tokens_samples_only_the_rows_asked_for(
    loaded: LoadedModel,
) -> None:
    fast = counted(loaded)
    engine = Engine(loaded)
    # Chunks of one token: none but the last is sampled from.
    engine.add("ones", prompt_of(9), chunk=1)
    engine.add("whole", prompt_of(9), chunk=None)
    answers = engine.run()
    assert answers["ones"] == answers["whole"]
    assert fast.steps > 9


@pytest.mark.parametrize("in_reach", [True, False])
def test_it_takes_every_step_whose_memory_numpy_sees(loaded: LoadedModel, in_reach: bool) -> None:
    fast = fast_model(loaded.model, loaded.plug)
    step: Any = SimpleNamespace(spans=[], pool=SimpleNamespace(arrays=[None] if in_reach else []))
    assert fast is not None and fast.takes(step) is in_reach
    assert not fast.takes(None)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_prompts_in_chunks_beside_answers_are_read_as_whole_ones(kind: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path, kind)
    loaded = load_model(folder, device="cpu", dtype="float32")
    fast = counted(loaded)
    engine = Engine(loaded)
    for number, chunk in enumerate((None, 7, 16, 1)):
        engine.add(str(number), prompt_of(40 + number, number), chunk=chunk)
    answers = engine.run()
    assert answers == {str(n): generate(folder, prompt_of(40 + n, n), 6) for n in range(4)}
    assert fast.steps > 9


def test_where_numpy_does_not_see_the_memory_there_is_no_short_way(tmp_path: Path) -> None:
    half = load_model(make_model(tmp_path), device="cpu", dtype="bfloat16")
    assert isinstance(half.model, LeanModel) and fast_model(half.model, half.plug) is None
    pool = KvPool(half.kv_shape, blocks_total=1, block_tokens=8, device=half.device)
    assert not pool.arrays


@pytest.mark.parametrize("rows", [0, 1, 23, 191, 192, 193, 385, 7681])
def test_the_parts_of_a_prompt_hold_every_row_once_and_few_enough(rows: int) -> None:
    parts = parts_of(rows)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) <= 192 and (rows <= 192 or min(sizes) >= 72)
