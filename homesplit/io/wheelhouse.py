"""Packages for boxes without internet: fetched here by pip, kept in the cache, used offline."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from homesplit.core.manifest import FileEntry, Manifest
from homesplit.errors import DeployError
from homesplit.io.atomic import write_atomically
from homesplit.io.locks import file_lock
from homesplit.io.model_store import hash_file
from homesplit.io.platforms import Target, this_target
from homesplit.io.processes import run_process
from homesplit.io.python_tools import pip_command, uv_binary

_MARKER = "wheelhouse.json"
_DEADLINE_S = 3600.0
_LOCK_WAIT_S = 3600.0

Tell = Callable[[str], None]
"""Told a sentence of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheelhouse:
    """A folder of wheels that together satisfy the engine's requirements on one target."""

    key: str
    folder: Path
    manifest: Manifest


def wheelhouse_key(target: Target, requirements: str) -> str:
    """Names a target and a set of requirements."""
    return f"{target.key}-{hashlib.sha256(requirements.encode()).hexdigest()[:12]}"


def find_wheelhouse(cache: Path, target: Target, requirements: str) -> Wheelhouse | None:
    """The wheelhouse made before, None when there is none that is whole."""
    key = wheelhouse_key(target, requirements)
    folder = cache / "wheelhouse" / key
    try:
        manifest = msgspec.json.decode((folder / _MARKER).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None
    whole = all(
        (folder / entry.path).is_file() and (folder / entry.path).stat().st_size == entry.bytes
        for entry in manifest.files
    )
    return Wheelhouse(key=key, folder=folder, manifest=manifest) if whole else None


async def make_wheelhouse(cache: Path, target: Target, requirements: str, tell: Tell) -> Wheelhouse:
    """Find or fetch all wheels for `target`; raises DeployError when that can't be done."""
    key = wheelhouse_key(target, requirements)
    lock = cache / "wheelhouse" / f".{key}.lock"
    async with file_lock(lock, doing="fetching the engine's packages", wait_s=_LOCK_WAIT_S):
        found = find_wheelhouse(cache, target, requirements)
        if found:
            return found
        tell(f"fetching the engine's packages for {target.key}")
        work = cache / "wheelhouse" / f".{key}.partial"
        await _download(work, target, requirements, tell)
        return await asyncio.to_thread(_finish, work, cache / "wheelhouse" / key, key)


async def uv_for(cache: Path, target: Target) -> Path:
    """A uv program that runs on `target`: our own where it fits, else fetched once."""
    own = this_target()
    if (target.system, target.machine, target.libc) == (own.system, own.machine, own.libc):
        return uv_binary()
    release = version("uv")
    kept = cache / "uv" / f"{release}-{target.system.lower()}-{target.machine}" / "uv"
    if await asyncio.to_thread(kept.is_file):
        return kept
    work = kept.parent.with_name(f".{kept.parent.name}.partial")
    await _pip_download(work, target, [f"uv=={release}"], (), lambda _: None)
    await asyncio.to_thread(_take_uv, work, kept)
    return kept


async def _download(work: Path, target: Target, requirements: str, tell: Tell) -> None:
    extra: tuple[str, ...] = ()
    if target.system == "Linux" and target.accelerator == "cpu":
        # PyPI's own torch for Linux brings gigabytes of CUDA; this index has the CPU build.
        extra = await _cpu_index()
    await asyncio.to_thread(_prepare, work, requirements)
    await _pip_download(work, target, ["-r", str(work / "requirements.txt")], extra, tell)


async def _cpu_index() -> tuple[str, ...]:
    import aiohttp

    url = "https://download.pytorch.org/whl/cpu"
    timeout = aiohttp.ClientTimeout(total=4)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.head(f"{url}/torch/") as reply,
        ):
            return ("--extra-index-url", url) if reply.status < 400 else ()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return ()


async def _pip_download(
    work: Path, target: Target, wanted: list[str], extra: tuple[str, ...], tell: Tell
) -> None:
    major, minor = target.python
    options = ["--dest", str(work), "--only-binary=:all:", "--implementation", "cp"]
    options += ["--python-version", f"{major}.{minor}"]
    options += ["--abi", f"cp{major}{minor}", "--abi", "abi3", "--abi", "none"]
    for tag in target.pip_platforms:
        options += ["--platform", tag]

    def line(text: str) -> None:
        if text.startswith(("Collecting ", "Downloading ")):
            tell(text[0].lower() + text[1:])

    try:
        ended = await run_process(
            [*pip_command(), "download", "--progress-bar", "off", *options, *extra, *wanted],
            deadline_s=_DEADLINE_S,
            on_out=line,
        )
    except TimeoutError as error:
        raise DeployError("Fetching packages took over an hour.", do_next="Try again.") from error
    if ended.code != 0:
        reasons = [text for text in ended.err.splitlines() if text.startswith("ERROR")]
        raise DeployError(
            f"The engine's packages for {target.key} can't be fetched: "
            f"{reasons[-1] if reasons else 'pip gave no reason'}",
            do_next="Connect this machine to the internet and run: homesplit up --fetch-only "
            f"--platform {target.key}",
        )


def _prepare(work: Path, requirements: str) -> None:
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    (work / "requirements.txt").write_text(requirements)


def _finish(work: Path, folder: Path, key: str) -> Wheelhouse:
    wheels = sorted(work.glob("*.whl"))
    manifest = Manifest(
        files=tuple(
            FileEntry(path=p.name, bytes=p.stat().st_size, sha256=hash_file(p)) for p in wheels
        )
    )
    write_atomically(work / _MARKER, msgspec.json.encode(manifest))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(work, folder)
    return Wheelhouse(key=key, folder=folder, manifest=manifest)


def _take_uv(work: Path, kept: Path) -> None:
    wheel = next(work.glob("uv-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(n for n in archive.namelist() if n.endswith(".data/scripts/uv"))
        write_atomically(kept, archive.read(member), mode=0o755)
    shutil.rmtree(work)
