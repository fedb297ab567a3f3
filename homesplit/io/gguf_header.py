"""Reads the header of a GGUF file: metadata and tensor sizes, never the weights."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from homesplit.errors import ProfileError

MAX_COUNT = 10_000_000
MAX_TEXT = 64 * 1024 * 1024
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_KEEP_ENTRIES = 4096


class GgufHeader(Struct, frozen=True, kw_only=True):
    """A GGUF's metadata (long arrays as their length) and what its tensors hold."""

    metadata: dict[str, Any]
    parameters: int
    tensors: tuple[str, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """The header of `path`; raises ProfileError where it is none or is cut short."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except OSError as error:
        raise ProfileError(f"can't be read: {error.strerror}.", where=str(path)) from error
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise ProfileError(f"is no readable GGUF file: {error}.", where=str(path)) from error


def _read(file: BinaryIO) -> GgufHeader:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version, tensor_count, pairs = _take(file, "IQQ")
    if version not in (2, 3):
        raise ValueError(f"version {version} is unknown")
    if tensor_count > MAX_COUNT or pairs > MAX_COUNT:
        raise ValueError("its counts are impossible")
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = _text(file)
        metadata[key] = _value(file, _take(file, "I")[0])
    parameters, names = 0, list[str]()
    for _ in range(tensor_count):
        names.append(_text(file))
        (dimensions,) = _take(file, "I")
        if dimensions > 8:
            raise ValueError("a tensor has too many dimensions")
        sizes = _take(file, "Q" * dimensions)
        _take(file, "IQ")
        parameters += math.prod(sizes)
    return GgufHeader(metadata=metadata, parameters=parameters, tensors=tuple(names))


def _take(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    size = struct.calcsize("<" + layout)
    raw = file.read(size)
    if len(raw) != size:
        raise ValueError("it is cut short")
    return struct.unpack("<" + layout, raw)


def _text(file: BinaryIO) -> str:
    (length,) = _take(file, "Q")
    if length > MAX_TEXT:
        raise ValueError("a text is impossibly long")
    raw = file.read(length)
    if len(raw) != length:
        raise ValueError("it is cut short")
    return raw.decode("utf-8", errors="replace")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        if kind not in _SCALARS:
            raise ValueError(f"a value of kind {kind} is unknown")
        return _take(file, _SCALARS[kind])[0]
    inner, count = _take(file, "IQ")
    if count > MAX_COUNT:
        raise ValueError("an array is impossibly long")
    entries = [_value(file, inner) for _ in range(count)]
    return entries if count <= _KEEP_ENTRIES else count
