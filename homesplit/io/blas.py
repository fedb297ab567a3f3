"""A BLAS library for boxes that have no torch yet, so that their arithmetic can be measured.

It goes to the box for the length of the probe only. Taken from a wheel: one fetched before,
numpy's in a wheelhouse that deployment made, else OpenBLAS from the package index.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from homesplit.errors import HomesplitError
from homesplit.io.paths import Paths
from homesplit.io.python_tools import pip_command

_PACKAGE = "scipy-openblas32"
_FETCH_S = 60.0
_LARGEST_BYTES = 64 << 20
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


async def blas_wheel(paths: Paths, kernel: str | None, machine: str | None) -> Path | None:
    """A wheel that holds a BLAS library for that machine, None when there is none to be had.

    Only Linux with glibc needs one: macOS has its own library.
    """
    name = _MACHINES.get((machine or "").lower())
    if kernel != "Linux" or name is None:
        return None
    kept = paths.cache / "blas"
    found = await asyncio.to_thread(_cached, paths.cache, kept, name)
    return found or await _fetch(kept, name)


def _cached(cache: Path, kept: Path, machine: str) -> Path | None:
    for folder, pattern in (
        (kept, f"scipy_openblas32-*manylinux*{machine}.whl"),
        (cache, f"numpy-*manylinux*{machine}.whl"),
    ):
        for wheel in sorted(folder.rglob(pattern)) if folder.is_dir() else []:
            if wheel.stat().st_size <= _LARGEST_BYTES:
                return wheel
    return None


async def _fetch(kept: Path, machine: str) -> Path | None:
    """One try with a deadline; a desk without internet goes on without."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in (28, 27, 17)]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    options = ["--no-deps", "--only-binary=:all:", "--retries", "1", "--timeout", "5"]
    try:
        command = [*pip_command(), "download", "--quiet", *options, *platforms]
        command += ["--dest", str(kept), _PACKAGE]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except (OSError, HomesplitError):
        return None
    try:
        async with asyncio.timeout(_FETCH_S):
            await process.wait()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if not isinstance(error, TimeoutError):
            raise
    return await asyncio.to_thread(_cached, kept, kept, machine)
