"""Model folders on this machine: hashed, checked, and put in place in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from homesplit.core.manifest import FileEntry, Manifest
from homesplit.errors import ModelError
from homesplit.io.atomic import write_atomically

MANIFEST_NAME = "homesplit-manifest.json"
_BLOCK_BYTES = 4 << 20
_SKIPPED = (".git", ".cache", "__pycache__", "original", "metal")
"""The last two hold the same weights in forms of their makers' own (Llama, GPT-OSS)."""
_WANTED_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model", ".tiktoken")

Seen = Callable[[int, int], None]
"""Told how many bytes are done, of how many."""


class _Remembered(Struct, frozen=True):
    """A file's hash with what it looked like when it was taken."""

    bytes: int
    modified_ns: int
    sha256: str


def hash_file(path: Path, seen: Callable[[int], None] | None = None) -> str:
    """SHA-256 (hex) of a file; `seen` is told of each block's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if seen:
                seen(len(block))
    return digest.hexdigest()


def model_files(folder: Path) -> tuple[Path, ...]:
    """The files of a Hugging Face folder that running it takes, sorted."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        found += [
            Path(parent, name)
            for name in names
            if name != MANIFEST_NAME and name.endswith(_WANTED_SUFFIXES)
        ]
    return tuple(sorted(found))


def is_model_folder(folder: Path) -> bool:
    """Whether it has settings and weights in the Hugging Face layout."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def describe(folder: Path, *, source: str = "", seen: Seen | None = None) -> Manifest:
    """Hash every file of `folder`."""
    files = model_files(folder)
    total = sum(path.stat().st_size for path in files)
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if seen:
            seen(done, total)

    return Manifest(
        files=tuple(_entry(folder, path, hash_file(path, add)) for path in files), source=source
    )


def describe_remembered(folder: Path, memory_file: Path, *, seen: Seen | None = None) -> Manifest:
    """As `describe`, but a file that looks untouched since it was last hashed is not read again."""
    files = model_files(folder)
    memory = _read_memory(memory_file)
    total = sum(path.stat().st_size for path in files)
    done = 0
    entries: list[FileEntry] = []
    kept: dict[str, _Remembered] = {}
    for path in files:
        stat = path.stat()
        old = memory.get(str(path.resolve()))
        if old and (old.bytes, old.modified_ns) == (stat.st_size, stat.st_mtime_ns):
            sha256 = old.sha256
        else:
            sha256 = hash_file(path)
        kept[str(path.resolve())] = _Remembered(stat.st_size, stat.st_mtime_ns, sha256)
        entries.append(_entry(folder, path, sha256))
        done += stat.st_size
        if seen:
            seen(done, total)
    if any(memory.get(key) != value for key, value in kept.items()):
        write_atomically(memory_file, msgspec.json.encode(memory | kept))
    return Manifest(files=tuple(entries))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest that `put_in_place` wrote, None when there is none or it can't be read."""
    try:
        return msgspec.json.decode((folder / MANIFEST_NAME).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None


def wrong_file(folder: Path, manifest: Manifest, seen: Seen | None = None) -> str | None:
    """A sentence about the first file that is not as the manifest says; None when all are."""
    done = 0
    for entry in manifest.files:
        path = folder / entry.path
        if not path.is_file():
            return f"{entry.path} is missing"
        if path.stat().st_size != entry.bytes:
            return f"{entry.path} has {path.stat().st_size} bytes instead of {entry.bytes}"
        if hash_file(path) != entry.sha256:
            return f"{entry.path} has changed (its SHA-256 differs)"
        done += entry.bytes
        if seen:
            seen(done, manifest.bytes)
    return None


def put_in_place(made: Path, folder: Path, manifest: Manifest) -> None:
    """Turn the finished folder `made` into `folder` in one step, replacing what is there."""
    write_atomically(made / MANIFEST_NAME, msgspec.json.encode(manifest))
    for path in made.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(path)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    made.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def need_space(folder: Path, wanted_bytes: int) -> None:
    """Raise ModelError when the disk that holds `folder` has less than `wanted_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < wanted_bytes:
        raise ModelError(
            f"The disk has {free / 1e9:.1f} GB free, and this takes {wanted_bytes / 1e9:.1f} GB.",
            where=str(folder),
            do_next="Make room, or set HOMESPLIT_HOME to a folder on another disk.",
        )


def _entry(folder: Path, path: Path, sha256: str) -> FileEntry:
    return FileEntry(
        path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=sha256
    )


def _read_memory(path: Path) -> dict[str, _Remembered]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Remembered])
    except (OSError, msgspec.MsgspecError):
        # Only a memory: without it the files are read once more.
        return {}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
