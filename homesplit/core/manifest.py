"""What a model folder consists of: each file's size and SHA-256, and one hash over all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from msgspec import Struct


class FileEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a folder; `path` is relative, with forward slashes."""

    path: str
    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """The files of one model folder, and where they came from."""

    files: tuple[FileEntry, ...]
    source: str = ""

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(entry.bytes for entry in self.files)

    @property
    def hash(self) -> str:
        """SHA-256 (hex) over all paths, sizes and hashes: equal folders have equal hashes."""
        return entries_hash(self.files)


def entries_hash(files: Iterable[FileEntry]) -> str:
    """One SHA-256 (hex) over the sorted entries."""
    text = "".join(f"{f.path}\0{f.bytes}\0{f.sha256}\n" for f in sorted(files, key=_path))
    return hashlib.sha256(text.encode()).hexdigest()


def _path(entry: FileEntry) -> str:
    return entry.path
