"""Weights that files keep packed: MXFP4 becomes the numbers it stands for, else a refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from homesplit_engine.model import ModelError, load_model
from homesplit_engine.reference import load
from safetensors.torch import load_file, save_file

from tests.engine.tiny import make_model

MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), "gpt_oss")


def packed(folder: Path, to: Path, **settings: Any) -> Path:
    """The same model with other settings."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | settings))
    return to


def unpacked(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """By the standard: each byte two numbers, the lower half first; 32 share a power of two.

    A number is a sign, two bits of exponent, one of fraction. experts x in x out.
    """
    four = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2).int()
    exponent, half = (four >> 1) & 3, 0.5 * (four & 1)
    size = torch.where(exponent == 0, half, (1.0 + half) * 2.0 ** (exponent - 1))
    signed = torch.where(four < 8, size, -size) * 2.0 ** (scales[..., None].float() - 127.0)
    return signed.flatten(-2).transpose(1, 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mxfp4_weights_become_the_numbers_that_they_stand_for(
    dtype: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_there() -> bool:
        return False

    # It is no part of what a box gets.
    monkeypatch.setattr(
        "transformers.quantizers.quantizer_mxfp4.is_accelerate_available", not_there
    )
    subject = packed(folder, tmp_path / "packed", quantization_config=MXFP4)
    (file,) = subject.glob("*.safetensors")
    tensors, expected = load_file(file), dict[str, torch.Tensor]()
    for name in [each for each in tensors if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, ins, outs = tensors.pop(name).shape
        blocks = torch.randint(256, (experts, outs, ins // 32, 16), dtype=torch.uint8)
        scales = torch.randint(122, 127, (experts, outs, ins // 32), dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        expected[name] = unpacked(blocks, scales)
    save_file(tensors, file, metadata={"format": "pt"})
    parameters = dict(load_model(subject, device="cpu", dtype=dtype).model.named_parameters())
    assert len(expected) == 6
    for name, numbers in expected.items():
        assert torch.equal(parameters[name].float(), numbers), name
    reference = dict(load(str(subject)).named_parameters())
    assert all(torch.equal(reference[name], numbers) for name, numbers in expected.items())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantised (awq)"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "a way without a name"),
    ],
)
def test_weights_that_are_packed_in_another_way_are_refused_with_what_to_take_instead(
    settings: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as refused:
        load_model(packed(folder, tmp_path / "packed", **settings), device="cpu", dtype="float32")
    assert said in str(refused.value) and "a GGUF file" in str(refused.value)
