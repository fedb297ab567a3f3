"""Steps of a few single tokens, computed in numpy: the same sums as the lean layers'."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from homesplit_engine.cache import KvPool
from homesplit_engine.few import MOST_ROWS, FewModel, FewNorm, Turn, few_model, few_product
from homesplit_engine.kernels import GatedUp, Int8Linear
from homesplit_engine.lean import LeanModel, LeanNorm, Rotation
from homesplit_engine.model import LoadedModel, load_model
from torch import nn

from tests.engine.test_runner import Engine
from tests.engine.tiny import generate, make_model, prompt_of


def norm_of(width: int) -> Any:
    torch.manual_seed(0)
    return SimpleNamespace(weight=nn.Parameter(torch.randn(width)), variance_epsilon=1e-5)


@pytest.mark.parametrize("shape", [(1, 24), (3, 24), (2, 5, 24)])
def test_norms_are_alike(shape: tuple[int, ...]) -> None:
    norm = LeanNorm(norm_of(24))
    rows = torch.randn(shape)
    with torch.inference_mode():
        expected = norm(rows)
    found = torch.from_numpy(FewNorm(norm)(rows.numpy()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_rope_is_alike_and_scales_the_queries() -> None:
    torch.manual_seed(1)
    cos, sin = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    heads = torch.randn(3, 5, 8)
    expected = Rotation(cos, sin).turned(heads)
    expected[:, :4] *= 0.5
    slots = np.zeros(3, np.int64)
    turn = Turn(cos, sin, heads=4, kv_heads=1, scaling=0.5, slots=slots)
    torch.testing.assert_close(torch.from_numpy(turn(heads.numpy())), expected)


@pytest.mark.parametrize("biased", [False, True])
def test_int8_products_are_the_same_number_for_number(biased: bool) -> None:
    torch.manual_seed(2)
    layer = Int8Linear(nn.Linear(16, 12, bias=biased))
    rows = torch.randn(3, 16)
    rows[1] = 0.0
    with torch.inference_mode():
        assert torch.equal(torch.from_numpy(few_product(layer)(rows.numpy())), layer(rows))


def test_gate_and_up_are_alike() -> None:
    torch.manual_seed(3)
    gated = GatedUp(nn.Linear(8, 6, bias=False), nn.Linear(8, 6, bias=False))
    rows = torch.randn(2, 8)
    with torch.inference_mode():
        found = torch.from_numpy(few_product(gated)(rows.numpy()))
        torch.testing.assert_close(found, gated(rows))


class Counted(FewModel):
    """Counts the steps that go the short way."""

    steps = 0

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        self.steps += 1
        return super().logits(token_ids, positions, keep)


def counted(loaded: LoadedModel) -> Counted:
    """The model's own short way, counted from now on."""
    assert few_model(loaded.model, loaded.plug) is not None
    loaded.model._few = few = Counted(loaded.model, loaded.plug)
    return few


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_every_step_of_answers_alone_goes_this_way_and_the_text_stays(
    kind: str, tmp_path: Path
) -> None:
    folder = make_model(tmp_path, kind)
    loaded = load_model(folder, device="cpu", dtype="float32")
    few = counted(loaded)
    engine = Engine(loaded)
    for seed in range(3):
        engine.add(str(seed), prompt_of(20 + seed, seed), chunk=None)
    answers = engine.run()
    assert answers == {str(n): generate(folder, prompt_of(20 + n, n), 6) for n in range(3)}
    assert few.steps >= 5


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = make_model(tmp_path_factory.mktemp("model"))
    return load_model(folder, device="cpu", dtype="float32")


def test_a_step_that_reads_single_tokens_samples_only_the_rows_asked_for(
    loaded: LoadedModel,
) -> None:
    few = counted(loaded)
    engine = Engine(loaded)
    # Chunks of one token: none but the last is sampled from.
    engine.add("ones", prompt_of(9), chunk=1)
    engine.add("whole", prompt_of(9), chunk=None)
    answers = engine.run()
    assert answers["ones"] == answers["whole"]
    assert few.steps > 9


@pytest.mark.parametrize(
    ("rows", "sequences", "in_reach", "takes"),
    [
        (1, 1, True, True),
        (MOST_ROWS, MOST_ROWS, True, True),
        (MOST_ROWS + 1, MOST_ROWS + 1, True, False),
        (3, 2, True, False),
        (1, 1, False, False),
    ],
)
def test_only_a_few_rows_that_are_all_single_go_this_way(
    loaded: LoadedModel, rows: int, sequences: int, in_reach: bool, takes: bool
) -> None:
    few = few_model(loaded.model, loaded.plug)
    step: Any = SimpleNamespace(spans=[None] * sequences, pool=SimpleNamespace(few=in_reach))
    assert few is not None and few.takes(step, rows) is takes
    assert not few.takes(None, rows)


def test_where_numpy_does_not_see_the_memory_there_is_no_short_way(tmp_path: Path) -> None:
    half = load_model(make_model(tmp_path), device="cpu", dtype="bfloat16")
    assert isinstance(half.model, LeanModel) and few_model(half.model, half.plug) is None
    pool = KvPool(half.kv_shape, blocks_total=1, block_tokens=8, device=half.device)
    assert not pool.few
