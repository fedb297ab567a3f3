"""A model's shape from a folder whose safetensors headers are written here."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from homesplit.core.shape import ModelShape
from homesplit.errors import ProfileError
from homesplit.io.model_files import shape_of_folder
from homesplit.io.paths import user_paths
from homesplit.io.profiles import load_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
IN_LAYERS = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
"""Numbers of all matrices of the two layers."""
WHOLE = 2 * 64_000 + IN_LAYERS
"""Those, an embedding and an output head: what the header says, which knows no norms."""
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}

Tensors = dict[str, tuple[str, int]]


def write(path: Path, tensors: Tensors) -> None:
    """A file that holds each tensor's header and no weights."""
    header, at = dict[str, Any](), 0
    for name, (dtype, count) in tensors.items():
        end = at + count * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def told(shape: ModelShape) -> tuple[int, int, str]:
    return shape.parameters, shape.weights_bytes, shape.dtype


EMBEDDED: Tensors = {"embed": ("F32", 64_000), "head": ("F32", 64_000)}
LAYERS: Tensors = {"layers": ("F32", IN_LAYERS)}


def test_the_headers_tell_more_than_the_config_where_they_are_all_there(folder: Path) -> None:
    from_config = told(shape_of_folder(folder))
    assert from_config[2] == "bf16" and from_config[0] > WHOLE
    write(folder / "model-00001-of-00002.safetensors", EMBEDDED)
    assert told(shape_of_folder(folder)) == from_config
    write(folder / "model-00002-of-00002.safetensors", LAYERS)
    assert told(shape_of_folder(folder)) == (WHOLE, 4 * WHOLE, "fp32")
    (folder / "model-00001-of-00002.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    )
    assert told(shape_of_folder(folder)) == from_config


def test_the_same_weights_in_another_form_and_adapters_are_not_counted_too(folder: Path) -> None:
    write(folder / "model.safetensors", EMBEDDED | LAYERS)
    write(folder / "adapter_model.safetensors", {"lora": ("F32", 5000)})
    write(folder / "consolidated.safetensors", EMBEDDED | LAYERS)
    assert told(shape_of_folder(folder)) == (WHOLE, 4 * WHOLE, "fp32")
    (folder / "model.safetensors").unlink()
    assert told(shape_of_folder(folder)) == (WHOLE, 4 * WHOLE, "fp32")


def test_an_index_names_the_files_that_count(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "w1.safetensors", "b": "w2.safetensors"}}))
    from_config = told(shape_of_folder(folder))
    write(folder / "w1.safetensors", EMBEDDED)
    write(folder / "other.safetensors", LAYERS)
    assert told(shape_of_folder(folder)) == from_config
    write(folder / "w2.safetensors", LAYERS)
    assert told(shape_of_folder(folder)) == (WHOLE, 4 * WHOLE, "fp32")
    index.write_text("{}")
    with pytest.raises(ProfileError, match="no index of weights"):
        shape_of_folder(folder)


@pytest.mark.parametrize(
    ("settings", "layers", "bytes_", "dtype"),
    [
        # Eight 4-bit weights in a number of 32 bits, beside an embedding of 16.
        ({"quant_method": "awq", "bits": 4}, ("I32", IN_LAYERS // 8), IN_LAYERS // 2, "int4"),
        ({"quant_method": "mxfp4"}, ("U8", IN_LAYERS // 2), IN_LAYERS // 2, "mxfp4"),
        (None, ("F8_E4M3", IN_LAYERS), IN_LAYERS, "fp8"),
    ],
)
def test_packed_weights_are_weighed_by_the_file_and_counted_by_the_config(
    folder: Path, settings: Any, layers: tuple[str, int], bytes_: int, dtype: str
) -> None:
    counted = shape_of_folder(folder).parameters
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": settings}))
    table = {"embed": ("BF16", 6400), "head": ("BF16", 6400)}
    write(folder / "model.safetensors", table | {"layers": layers})
    assert told(shape_of_folder(folder)) == (counted, 2 * 12_800 + bytes_, dtype)


@pytest.mark.parametrize(
    "entry", [{"dtype": "F32"}, [], {"dtype": "F32", "shape": [1], "data_offsets": [1]}]
)
def test_a_header_that_is_none_is_told_with_its_file(folder: Path, entry: Any) -> None:
    raw = json.dumps({"a": entry}).encode()
    file = folder / "model.safetensors"
    for content, said in ((struct.pack("<Q", len(raw)) + raw, "header"), (b"1234", "safetensors")):
        file.write_bytes(content)
        with pytest.raises(ProfileError, match=said) as caught:
            shape_of_folder(folder)
        assert "model.safetensors" in str(caught.value)


def test_a_weight_file_is_read_with_the_config_beside_it(folder: Path) -> None:
    file = folder / "model.safetensors"
    write(file, EMBEDDED | LAYERS)
    assert load_model(str(file), user_paths()).parameters == WHOLE
    (folder / "config.json").unlink()
    for named in (file, folder):
        with pytest.raises(ProfileError, match=r"no config\.json"):
            load_model(str(named), user_paths())
    (folder / "a.gguf").touch()
    with pytest.raises(ProfileError, match=r"Name .*a\.gguf"):
        load_model(str(folder), user_paths())
