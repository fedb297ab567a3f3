"""Reads a model's shape from disk: a folder, a config.json, a GGUF file or a profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from homesplit.core.gguf_config import config_from_gguf
from homesplit.core.model_config import shape_from_config
from homesplit.core.shape import ModelShape
from homesplit.errors import ProfileError
from homesplit.io.gguf_header import read_gguf_header
from homesplit.io.stored_weights import all_parts, missing_parts, stored_weights

MAX_CONFIG_BYTES = 10 * 1024 * 1024


def shape_of_folder(folder: Path) -> ModelShape:
    """The shape of a Hugging Face folder: its config.json, its weights' headers if all there."""
    config = read_config(folder / "config.json")
    held = stored_weights(folder)
    if held is None:
        return shape_from_config(config, name=folder.name, source=str(folder / "config.json"))
    return shape_from_config(
        config,
        name=folder.name,
        source=str(folder),
        parameters=held.parameters,
        file_bytes=held.stored_bytes,
        dtype=held.dtype,
    )


def shape_of_config(path: Path) -> ModelShape:
    """The shape of one config.json; the model is named after its folder."""
    return shape_from_config(read_config(path), name=path.resolve().parent.name, source=str(path))


def shape_of_gguf(path: Path) -> ModelShape:
    """The shape of a GGUF file, of all its parts if it has some; it weighs what they weigh."""
    if missing := missing_parts(path):
        raise ProfileError(
            f"is one of {len(all_parts(path))} parts, of which {missing[0].name} is missing.",
            where=str(path),
            do_next="Put all parts into one folder.",
        )
    parts = all_parts(path)
    headers = [read_gguf_header(part) for part in parts]
    metadata, parameters = dict(headers[0].metadata), sum(each.parameters for each in headers)
    if not parameters:
        raise ProfileError(
            "holds no tensors (a vocabulary alone?).", where=str(path), do_next="Name the model's."
        )
    tokens = metadata.get("tokenizer.ggml.tokens")
    metadata["tokenizer.ggml.tokens"] = len(tokens) if isinstance(tokens, list) else tokens
    has_head = any("output.weight" in each.tensors for each in headers)
    size = sum(part.stat().st_size for part in parts)
    return shape_from_config(
        config_from_gguf(metadata, where=str(parts[0]), has_output_head=has_head),
        name=path.stem,
        source=str(path),
        parameters=parameters,
        file_bytes=size,
        dtype=_format_of(8.0 * size / parameters),
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
