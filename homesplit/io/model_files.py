"""Reads a model's shape from disk: a folder, a config.json, a GGUF file or a profile."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import msgspec

from homesplit.core.gguf_config import config_from_gguf
from homesplit.core.model_config import shape_from_config
from homesplit.core.shape import ModelShape, dtype_name
from homesplit.errors import ProfileError
from homesplit.io.gguf_header import read_gguf_header

MAX_HEADER_BYTES = 100 * 1024 * 1024
MAX_CONFIG_BYTES = 10 * 1024 * 1024


def shape_of_folder(folder: Path) -> ModelShape:
    """The shape of a Hugging Face folder: its config.json, and its weights' headers if there."""
    config = read_config(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return shape_from_config(config, name=folder.name, source=str(folder / "config.json"))
    parameters, stored, dtype = 0, 0, ""
    most = 0
    for file in files:
        for entry in safetensors_header(file).values():
            count = math.prod(entry["shape"])
            begin, end = entry["data_offsets"]
            stored += end - begin
            parameters += count
            if count > most:
                most, dtype = count, str(entry["dtype"])
    return shape_from_config(
        config,
        name=folder.name,
        source=str(folder),
        parameters=parameters if _plain(dtype) else None,
        file_bytes=stored,
        dtype=dtype if _plain(dtype) else None,
    )


def _plain(dtype: str) -> bool:
    """Whether one stored number is one parameter (packed 4-bit formats are not)."""
    return dtype.upper() in ("F32", "F16", "BF16")


def shape_of_config(path: Path) -> ModelShape:
    """The shape of one config.json; the model is named after its folder."""
    return shape_from_config(read_config(path), name=path.resolve().parent.name, source=str(path))


def shape_of_gguf(path: Path) -> ModelShape:
    """The shape of a GGUF file; its weights weigh what the file weighs."""
    header = read_gguf_header(path)
    if not header.parameters:
        raise ProfileError(
            "holds no tensors (a vocabulary alone?).", where=str(path), do_next="Name the model's."
        )
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    metadata = {
        **header.metadata,
        "tokenizer.ggml.tokens": len(tokens) if isinstance(tokens, list) else tokens,
    }
    config = config_from_gguf(
        metadata, where=str(path), has_output_head="output.weight" in header.tensors
    )
    size = path.stat().st_size
    bits = 8.0 * size / header.parameters
    return shape_from_config(
        config,
        name=path.stem,
        source=str(path),
        parameters=header.parameters,
        file_bytes=size,
        dtype=_format_of(bits),
    )


def _format_of(bits: float) -> str:
    """The number format nearest to so many bits a weight."""
    steps = ((24.0, "fp32"), (12.0, "fp16"), (7.5, "q8_0"), (6.2, "q6_k"), (5.3, "q5_k_m"))
    for least, name in steps:
        if bits >= least:
            return name
    return "q4_k_m" if bits >= 4.2 else "q2_k"


def read_config(path: Path) -> dict[str, Any]:
    """A config.json as a dictionary; raises ProfileError naming the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ProfileError("is too large for a config.json.", where=str(path))
        read: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ProfileError(f"can't be read: {error.strerror}.", where=str(path)) from error
    except ValueError as error:
        raise ProfileError(f"is not valid JSON: {error}.", where=str(path)) from error
    if not isinstance(read, dict):
        raise ProfileError("holds no JSON object.", where=str(path))
    return msgspec.convert(read, dict[str, Any])


def safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensor name to {dtype, shape, data_offsets}; raises ProfileError naming the file."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ProfileError("its safetensors header is impossibly long.", where=str(path))
            header: Any = json.loads(file.read(length))
    except OSError as error:
        raise ProfileError(f"can't be read: {error.strerror}.", where=str(path)) from error
    except (struct.error, ValueError) as error:
        raise ProfileError(f"is no safetensors file: {error}.", where=str(path)) from error
    if not isinstance(header, dict):
        raise ProfileError("its safetensors header is no JSON object.", where=str(path))
    found = msgspec.convert(header, dict[str, dict[str, Any]])
    found.pop("__metadata__", None)
    for name, entry in found.items():
        if not {"dtype", "shape", "data_offsets"} <= set(entry):
            raise ProfileError(f"tensor '{name}' has no shape in the header.", where=str(path))
    return found


__all__ = [
    "dtype_name",
    "read_config",
    "safetensors_header",
    "shape_of_config",
    "shape_of_folder",
    "shape_of_gguf",
]
