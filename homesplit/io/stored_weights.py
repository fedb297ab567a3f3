"""What a model's safetensors files hold, by their headers alone."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from homesplit.errors import ProfileError

MAX_HEADER_BYTES = 100 * 1024 * 1024
INDEX = "model.safetensors.index.json"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.\w+")
_FLOATS = ("F32", "F16", "BF16")
_MASKS = 0.01
"""Share of the bytes that other kinds of numbers may take in a file of plain weights."""


class StoredWeights(Struct, frozen=True, kw_only=True):
    """Bytes of all weights; their number and format where one number is one parameter."""

    stored_bytes: int
    parameters: int | None
    dtype: str | None


def stored_weights(folder: Path) -> StoredWeights | None:
    """What the folder's weight files hold; None where one of them is not (wholly) there."""
    files = weight_files(folder)
    if not files or not all(map(_is_fetched, files)):
        return None
    sizes, counts = Counter[str](), Counter[str]()
    for file in files:
        for tensor in _tensors(file):
            begin, end = tensor.data_offsets
            sizes[tensor.dtype] += end - begin
            counts[tensor.dtype] += math.prod(tensor.shape)
    stored = sum(sizes.values())
    # Packed 4-bit weights lie in tensors of whole numbers, beside an embedding of plain floats.
    plain = sum(sizes[each] for each in _FLOATS) >= (1.0 - _MASKS) * stored
    most = max(sizes, key=lambda each: sizes[each], default="")
    return StoredWeights(
        stored_bytes=stored,
        parameters=sum(counts[each] for each in _FLOATS) if plain else None,
        dtype=most if plain else "fp8" if most.startswith("F8") else None,
    )


def weight_files(folder: Path) -> list[Path] | None:
    """The files that make up the model, in order; None where a part is missing.

    Makers put the same weights beside them in a form of their own (`consolidated`), and
    adapters that are no part of the model.
    """
    index = folder / INDEX
    if index.is_file():
        files = [folder / name for name in _named_in(index)]
        return files if all(file.is_file() for file in files) else None
    files = [
        file
        for file in sorted(folder.glob("*.safetensors"))
        if not file.name.startswith("adapter_")
    ]
    own = [file for file in files if not file.name.startswith("consolidated")] or files
    return None if any(missing_parts(file) for file in own) else own


def all_parts(file: Path) -> list[Path]:
    """Every part of the file that `file` is a numbered part of; itself where it is none."""
    part = _PART.fullmatch(file.name)
    if part is None:
        return [file]
    stem, _, count = part.groups()
    return [
        file.with_name(f"{stem}-{number:05}-of-{count}{file.suffix}")
        for number in range(1, int(count) + 1)
    ]


def missing_parts(file: Path) -> list[Path]:
    """The parts beside `file` that are not there."""
    return [part for part in all_parts(file) if not part.is_file()]


def _named_in(index: Path) -> list[str]:
    """The files that an index names, none outside its folder; raises ProfileError."""
    try:
        held = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])
        named = msgspec.convert(held.get("weight_map"), dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise ProfileError(f"is no index of weights: {error}.", where=str(index)) from error
    return sorted({Path(name).name for name in named.values()})


def _is_fetched(file: Path) -> bool:
    """Whether the file is more than Git LFS's note of where it lies."""
    try:
        with file.open("rb") as opened:
            return not opened.read(40).startswith(b"version https://git-lfs")
    except OSError as error:
        raise ProfileError(f"can't be read: {error.strerror}.", where=str(file)) from error


class _Tensor(Struct, frozen=True):
    """One entry of a header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _tensors(path: Path) -> list[_Tensor]:
    """What one file holds; raises ProfileError naming the file."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ProfileError("its safetensors header is impossibly long.", where=str(path))
            header = msgspec.json.decode(file.read(length), type=dict[str, Any])
    except OSError as error:
        raise ProfileError(f"can't be read: {error.strerror}.", where=str(path)) from error
    except (struct.error, msgspec.MsgspecError) as error:
        raise ProfileError(f"is no safetensors file: {error}.", where=str(path)) from error
    header.pop("__metadata__", None)
    try:
        return [msgspec.convert(entry, _Tensor) for entry in header.values()]
    except msgspec.ValidationError as error:
        raise ProfileError(f"a tensor in its header is none: {error}.", where=str(path)) from error
