"""Two boxes that differ in one thing that matters are told apart by its name, others are not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.fingerprint import differing, fingerprint, fingerprint_fields
from homesplit_engine.router.fingerprints import difference
from homesplit_engine.wire.messages import WIRE_VERSION, Ready

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_size": 64,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "rms_norm_eps": 1e-5,
    "vocab_size": 97,
    "transformers_version": "5.1.0",
    "_name_or_path": "/home/a/model",
    "torch_dtype": "float32",
    "use_cache": True,
}


def folder(place: Path, **changes: Any) -> Path:
    """A model's folder, whose weights are any bytes."""
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG | changes))
    (place / "model.safetensors").write_bytes(bytes(range(256)) * 512)
    (place / "tokenizer.json").write_text('{"model": {"vocab": {"a": 1, "b": 2}}}')
    return place


def fields(place: Path, dtype: str = "float32", weights: str = "same") -> dict[str, str]:
    return fingerprint_fields(place, dtype=dtype, weights=weights)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rope_theta": 500000.0}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": None}, "rope_scaling"),
        ({"num_hidden_layers": 5}, "layers"),
        ({"num_key_value_heads": 4}, "kv_heads"),
        ({"head_dim": 32}, "head_dim"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"vocab_size": 98}, "vocab_size"),
        ({"model_type": "mistral"}, "model_type"),
        ({"rms_norm_eps": 1e-6}, "other_config"),
        ({"_commit_hash": "7e27bd9"}, "other_config"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value,
)
def test_one_field_of_the_config_that_differs_is_named(
    tmp_path: Path, changes: dict[str, Any], name: str
) -> None:
    ours, theirs = fields(folder(tmp_path / "a")), fields(folder(tmp_path / "b", **changes))
    assert differing(ours, theirs) == [name]
    assert fingerprint(ours) != fingerprint(theirs)


def _one_byte_of(name: str) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        data = bytearray((place / name).read_bytes())
        data[-3] ^= 1
        (place / name).write_bytes(data)

    return change


def _one_more_token(place: Path) -> None:
    (place / "added_tokens.json").write_text('{"<extra>": 97}')


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_one_byte_of("model.safetensors"), "weights"),
        (_one_byte_of("tokenizer.json"), "tokenizer"),
        (_one_more_token, "tokenizer"),
    ],
    ids=["another revision's weights", "another tokenizer", "one more token"],
)
def test_another_file_is_named_by_what_it_is(
    tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    ours = folder(tmp_path / "a")
    theirs = Path(shutil.copytree(ours, tmp_path / "b"))
    change(theirs)
    assert differing(fields(ours), fields(theirs)) == [name]


@pytest.mark.parametrize(
    ("loaded", "name"), [({"dtype": "bfloat16"}, "kv_dtype"), ({"weights": "int8"}, "weights_as")]
)
def test_how_it_is_loaded_is_named(tmp_path: Path, loaded: dict[str, str], name: str) -> None:
    place = folder(tmp_path / "a")
    assert differing(fields(place), fields(place, **loaded)) == [name]


@pytest.mark.parametrize(
    "changes",
    [
        {"transformers_version": "5.2.0"},
        {"_name_or_path": "/srv/models/other"},
        {"torch_dtype": "bfloat16"},
        {"dtype": "bfloat16"},
        {"use_cache": False},
    ],
    ids=json.dumps,
)
def test_what_does_not_matter_keeps_nobody_apart(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours, theirs = fields(folder(tmp_path / "a")), fields(folder(tmp_path / "b", **changes))
    assert differing(ours, theirs) == []
    assert fingerprint(ours) == fingerprint(theirs)


def ready(box: str, own: Mapping[str, str]) -> Ready:
    settings: dict[str, Any] = {
        "box": box,
        "wire_version": WIRE_VERSION,
        "fingerprint": fingerprint(own),
        "fingerprint_fields": dict(own),
        "model": "tiny",
        "max_context": 128,
        "block_tokens": 16,
        "blocks_total": 64,
        "kv_bytes_per_token": 1024,
        "kv_endpoint": "tcp://127.0.0.1:1",
        "public_key": "k",
        "device": "cpu",
        "dtype": "float32",
        "eos_token_ids": (2,),
    }
    return Ready(**settings)


def test_a_box_is_told_which_field_of_its_own_is_another_there(tmp_path: Path) -> None:
    ours = fields(folder(tmp_path / "a"))
    theirs = fields(folder(tmp_path / "b", rope_theta=500000.0))
    assert difference(ready("borea", theirs), ready("atlas", ours)) == (
        "never paired with atlas: rope_theta is 500000.0 here and 10000.0 there"
    )
