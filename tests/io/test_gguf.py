"""A model's shape from a GGUF header that is written here, byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from homesplit.errors import ProfileError
from homesplit.io.model_files import shape_of_gguf

SMOLLM2 = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.vocab_size": 49152,
}
PARAMETERS = 134_515_008


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(entry: Any) -> bytes:
    """One metadata value with its kind: a text, a list of numbers, or a number."""
    if isinstance(entry, str):
        return struct.pack("<I", 8) + text(entry)
    if isinstance(entry, list):
        body = b"".join(struct.pack("<I", one) for one in entry)
        return struct.pack("<IIQ", 9, 4, len(entry)) + body
    return struct.pack("<II", 4, entry)


def gguf(
    path: Path, metadata: dict[str, Any], *, tensors: dict[str, tuple[int, ...]], size: int
) -> Path:
    """A file of `size` bytes with a header of version 3."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, entry in metadata.items():
        head += text(key) + value(entry)
    for name, sizes in tensors.items():
        head += text(name) + struct.pack("<I", len(sizes))
        head += struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", 0, 0)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(max(size, len(head)))
    return path


def test_the_shape_of_a_gguf_is_that_of_its_config(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (576, 49152), "rest": (PARAMETERS - 576 * 49152,)}
    path = gguf(tmp_path / "smol.gguf", SMOLLM2, tensors=tensors, size=98_000_000)
    shape = shape_of_gguf(path)
    assert (shape.layers, shape.parameters) == (30, PARAMETERS)
    assert shape.kv_bytes_per_token("fp16") == 30 * 2 * 3 * 64 * 2
    assert shape.weights_bytes == 98_000_000
    assert shape.dtype in ("q5_k_m", "q4_k_m", "q4_1")


def test_layers_of_one_list_that_are_alike_are_read(tmp_path: Path) -> None:
    alike = SMOLLM2 | {"llama.attention.head_count_kv": [3] * 30}
    path = gguf(tmp_path / "a.gguf", alike, tensors={"t": (PARAMETERS,)}, size=98_000_000)
    assert shape_of_gguf(path).kv_bytes_per_token("fp16") == 23040


def test_layers_that_differ_are_counted_each_for_itself(tmp_path: Path) -> None:
    differing = SMOLLM2 | {"llama.attention.head_count_kv": [3] * 29 + [1]}
    path = gguf(tmp_path / "a.gguf", differing, tensors={"t": (PARAMETERS,)}, size=98_000_000)
    assert shape_of_gguf(path).kv_bytes_per_token("fp16") == (29 * 3 + 1) * 2 * 64 * 2


def test_layers_that_differ_in_what_is_not_read_so_are_refused_by_name(tmp_path: Path) -> None:
    differing = SMOLLM2 | {"llama.expert_used_count": [3] * 29 + [1]}
    path = gguf(tmp_path / "a.gguf", differing, tensors={"t": (PARAMETERS,)}, size=98_000_000)
    with pytest.raises(ProfileError, match="expert_used_count"):
        shape_of_gguf(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"NOPE" + bytes(64), b"GGUF" + bytes([9] * 40)])
def test_what_is_no_gguf_is_told_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="no readable GGUF"):
        shape_of_gguf(path)


def test_a_header_that_is_cut_short_is_told_as_such(tmp_path: Path) -> None:
    whole = gguf(tmp_path / "a.gguf", SMOLLM2, tensors={"t": (PARAMETERS,)}, size=0).read_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(5, len(whole) - 1, 23):
        path.write_bytes(whole[:length])
        with pytest.raises(ProfileError, match=r"no readable GGUF.*cut short"):
            shape_of_gguf(path)


def test_the_parts_of_a_gguf_are_one_model_whichever_is_named(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    head = {"output.weight": (576, 49152)}
    gguf(parts[0], SMOLLM2, tensors={"a": (100_000_000,)}, size=60_000_000)
    for part in parts:
        with pytest.raises(ProfileError, match=r"m-00002-of-00002\.gguf is missing"):
            shape_of_gguf(parts[0])
        gguf(parts[1], {"split.no": 1}, tensors=head, size=38_000_000)
        shape = shape_of_gguf(part)
        assert shape.parameters == 100_000_000 + 576 * 49152
        assert shape.weights_bytes == 98_000_000
        assert shape.embedding_parameters == 576 * 49152
        parts[1].unlink()


def test_a_gguf_without_tensors_says_so(tmp_path: Path) -> None:
    path = gguf(tmp_path / "vocab.gguf", SMOLLM2, tensors={}, size=100)
    with pytest.raises(ProfileError, match="no tensors"):
        shape_of_gguf(path)
