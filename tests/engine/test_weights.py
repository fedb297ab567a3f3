"""Int8 weights: told apart, close to fp32, refused where they can't be had; lean layers exact."""

from __future__ import annotations

import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from homesplit_engine import kernels
from homesplit_engine.attention import Plug, Span, Step
from homesplit_engine.cache import KvPool
from homesplit_engine.fingerprint import differing
from homesplit_engine.int8 import INT8_ROWS
from homesplit_engine.kernels import Int8Linear
from homesplit_engine.large_pages import LargePages
from homesplit_engine.lean import LeanLayer, make_lean
from homesplit_engine.model import LoadedModel, ModelError, load_model
from homesplit_engine.narrow import half_dtype
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.engine.tiny import make_model, prompt_of

TOKENS = 30


def logits_of(loaded: LoadedModel) -> torch.Tensor:
    blocks = list(range(4))
    pool = KvPool(loaded.kv_shape, blocks_total=4, block_tokens=8, device=loaded.device)
    place = pool.place(blocks)
    span = Span(row=0, start=0, count=TOKENS, place=place)
    slots = torch.tensor(place.slots(0, TOKENS))
    loaded.plug.step = Step(pool=pool, spans=[span], slots=slots)
    with torch.inference_mode():
        return loaded.model(
            torch.tensor([prompt_of(TOKENS)]),
            position_ids=torch.arange(TOKENS)[None],
            use_cache=False,
        ).logits[0]


def kinds_in(loaded: LoadedModel, kind: type) -> int:
    return sum(isinstance(module, kind) for module in loaded.model.modules())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_int8_weights_are_close_to_the_weights_they_came_from(folder: Path) -> None:
    exact = load_model(folder, device="cpu", dtype="float32")
    int8 = load_model(folder, device="cpu", dtype="float32", weights="int8")
    assert kinds_in(exact, Int8Linear) == 0
    # Three layers of qkv, o, gate and up, down; and the head.
    assert kinds_in(int8, Int8Linear) == 13
    a, b = logits_of(exact), logits_of(int8)
    assert not torch.equal(a, b)
    similar = torch.nn.functional.cosine_similarity(a, b, dim=-1)
    assert similar.min() > 0.9


@pytest.mark.parametrize(
    ("kind", "layers"),
    # Three layers, and the head: four of GPT-2's; q, k, v, o and two of each of four experts.
    [
        ("gpt2", 13),
        ("qwen3_moe", 37),
        ("mixtral", 37),
        ("gpt_oss", 37),
        ("falcon", 13),
        ("gpt_neo", 19),
        ("mpt", 19),
    ],
)
def test_layers_that_are_no_plain_linear_ones_are_int8_too(
    tmp_path: Path, kind: str, layers: int
) -> None:
    folder = make_model(tmp_path, kind)
    own: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    int8 = load_model(folder, device="cpu", dtype="float32", weights="int8")
    assert kinds_in(int8, Int8Linear) == layers
    with torch.inference_mode():
        expected = own(torch.tensor([prompt_of(TOKENS)])).logits[0]
    similar = torch.nn.functional.cosine_similarity(logits_of(int8), expected, dim=-1)
    assert similar.median() > 0.98


def halved(folder: Path, half: torch.dtype) -> Path:
    """The model with its files in 16 bits."""
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=half)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "half"),
    [
        ("llama", torch.float16),
        ("smollm2", torch.bfloat16),
        ("gemma3", torch.bfloat16),
        ("gpt2", torch.float16),
        ("mixtral", torch.bfloat16),
        ("gpt_oss", torch.bfloat16),
        ("falcon", torch.bfloat16),
        ("mpt", torch.bfloat16),
    ],
)
def test_int8_weights_made_from_16_bits_are_those_made_from_float32_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, half: torch.dtype
) -> None:
    folder = halved(make_model(tmp_path, kind), half)
    came: list[torch.dtype] = []
    make = Int8Linear.__init__

    def watched(made: Int8Linear, linear: torch.nn.Linear, **settings: Any) -> None:
        came.append(linear.weight.dtype)
        make(made, linear, **settings)

    def no_half(_folder: Path) -> None: ...

    monkeypatch.setattr(Int8Linear, "__init__", watched)
    narrow = load_model(folder, device="cpu", dtype="float32", weights="int8")
    monkeypatch.setattr("homesplit_engine.model.half_dtype", no_half)
    wide = load_model(folder, device="cpu", dtype="float32", weights="int8")
    # A head that is the embedding as well is float32, for that is looked up.
    assert came[: len(came) // 2].count(torch.float32) <= 1 and half in came
    assert set(came[len(came) // 2 :]) == {torch.float32}
    held = [*narrow.model.parameters(), *narrow.model.buffers()]
    assert {one.dtype for one in held if one.is_floating_point()} == {torch.float32}
    assert torch.equal(logits_of(narrow), logits_of(wide))


def test_a_model_with_some_matrices_in_float32_is_loaded_in_that(tmp_path: Path) -> None:
    folder = halved(make_model(tmp_path), torch.bfloat16)
    assert half_dtype(folder) == torch.bfloat16
    (path,) = folder.glob("*.safetensors")
    held = load_file(path)
    held["model.embed_tokens.weight"] = held["model.embed_tokens.weight"].float()
    save_file(held, path, metadata={"format": "pt"})
    assert half_dtype(folder) is None


def test_a_model_most_of_which_would_stay_wide_is_refused_in_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_experts: Any, _quantise: Any) -> None: ...

    monkeypatch.setattr("homesplit_engine.experts.Int8Experts", none)
    with pytest.raises(ModelError, match=r"no int8 form here \(MixtralExperts, MixtralTopKRouter"):
        load_model(make_model(tmp_path, "mixtral"), device="cpu", dtype="float32", weights="int8")


def test_the_weights_of_each_layer_are_given_back_before_the_next_is_made_int8(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    held = [weakref.ref(layer) for layer in model]
    alive: list[int] = []

    def watched(linear: torch.nn.Linear, **settings: Any) -> Int8Linear:
        alive.append(sum(layer() is not None for layer in held))
        return Int8Linear(linear, **settings)

    monkeypatch.setattr(kernels, "Int8Linear", watched)
    assert kernels.quantise_linears(model, copy=False) == 3
    assert alive == [3, 2, 1]


@pytest.mark.parametrize("quick", [False, True])
def test_a_row_through_int8_weights_is_the_same_whatever_the_other_rows_hold(quick: bool) -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(64, 32, bias=True)
    layer = Int8Linear(linear, copy=True, memory=LargePages(), quick=quick)
    row = torch.randn(1, 64)
    huge = 1000.0 * torch.randn(3, 64)
    alone = layer(row)
    assert torch.equal(layer(torch.cat((huge, row)))[-1:], alone)
    assert torch.equal(layer(torch.cat((huge, row))[None])[0, -1:], alone)


@pytest.mark.parametrize("count", [5, INT8_ROWS, INT8_ROWS + 1])
@pytest.mark.parametrize(("copy", "quick"), [(False, False), (True, False), (False, True)])
def test_int8_weights_carry_rows_of_any_size(copy: bool, quick: bool, count: int) -> None:
    torch.manual_seed(2)
    ins = 66 if quick else 64
    linear = torch.nn.Linear(ins, 40, bias=True)
    layer = Int8Linear(linear, copy=copy, memory=LargePages(), quick=quick)
    for size in (1e-6, 1.0, 1e6):
        rows = size * torch.randn(count, ins)
        similar = torch.nn.functional.cosine_similarity(layer(rows), linear(rows), dim=-1)
        assert similar.min() > 0.999
    assert torch.equal(layer(torch.zeros(1, ins))[0], linear.bias.detach())


def test_int8_and_exact_weights_have_different_fingerprints(folder: Path) -> None:
    exact = load_model(folder, device="cpu", dtype="float32")
    int8 = load_model(folder, device="cpu", dtype="float32", weights="int8")
    assert differing(exact.fields, int8.fields) == ["weights_as"]
    assert exact.fingerprint != int8.fingerprint


@pytest.mark.parametrize(
    ("dtype", "weights", "says"),
    [("bfloat16", "int8", "float32"), ("float32", "int3", "one of: same, int8")],
)
def test_weights_that_cannot_be_had_are_refused(
    folder: Path, dtype: str, weights: str, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        load_model(folder, device="cpu", dtype=dtype, weights=weights)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_lean_layers_give_transformers_own_logits(tmp_path: Path, kind: str) -> None:
    folder = make_model(tmp_path, kind)
    loaded = load_model(folder, device="cpu", dtype="float32")
    assert kinds_in(loaded, LeanLayer) == 3
    own: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    with torch.inference_mode():
        expected = own(torch.tensor([prompt_of(TOKENS)])).logits[0]
    # Every query attends to its window only, which is shorter than the prompt for Mistral.
    torch.testing.assert_close(logits_of(loaded), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("product", ["q_proj", "k_proj", "v_proj"])
def test_layers_of_unlike_heads_are_left_as_they_are(folder: Path, product: str) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder))
    second = model.model.layers[1].self_attn
    usual = getattr(second, product)
    setattr(second, product, torch.nn.Linear(usual.in_features, usual.out_features // 2))
    assert make_lean(model, Plug()) is None
    setattr(second, product, usual)
    assert make_lean(model, Plug()) is not None


def test_other_kinds_of_layer_are_left_as_they_are(tmp_path: Path) -> None:
    loaded = load_model(make_model(tmp_path, "olmo2"), device="cpu", dtype="float32")
    assert kinds_in(loaded, LeanLayer) == 0
    assert isinstance(loaded.plug, Plug)


class Trap:
    """Whoever unpickles it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_weights_in_a_pickle_are_refused_and_never_opened(tmp_path: Path) -> None:
    folder, mark = make_model(tmp_path / "model"), tmp_path / "opened"
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(ModelError, match="safetensors"):
        load_model(folder, device="cpu", dtype="float32")
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["llama", "a kind of its own"])
def test_code_that_lies_beside_a_model_is_never_run(tmp_path: Path, kind: str) -> None:
    folder, mark = make_model(tmp_path / "model"), tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    (folder / "beside.py").write_text(code + "class Config: ...\nclass Model: ...\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "beside.Config", "AutoModelForCausalLM": "beside.Model"}
    config["model_type"] = kind
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "llama":
        assert load_model(folder, device="cpu", dtype="float32").max_context
    else:
        with pytest.raises(ModelError, match="the configuration can't be read"):
            load_model(folder, device="cpu", dtype="float32")
    assert not mark.exists()
