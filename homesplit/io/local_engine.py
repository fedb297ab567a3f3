"""Two workers and a router as processes of this machine, over loopback.

Teaches the mechanism; measures no network.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from homesplit_engine.config import (
    RouterConfig,
    RouterEndpoints,
    WorkerConfig,
    WorkerEndpoints,
)
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.records import ModeSetting

from homesplit.errors import EngineError, HomesplitError

START_S = 600.0
"""Longest wait for a worker to load its model and listen; a first start compiles its kernels too,
which takes minutes on a small or a busy machine. A process that ends is noticed at once."""
STOP_S = 10.0
"""How long a process may take to end in good order before it is killed."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngine:
    """A running local pair: where its API listens, and who its workers are."""

    url: str
    boxes: tuple[str, ...]
    pids: dict[str, int]
    folder: Path


@dataclass(slots=True)
class _Process:
    """One started process with its log and ready file."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    ready: Path


def split_cores(parts: int) -> list[tuple[int, ...] | None]:
    """This process's cores in `parts` equal shares; None where cores can't be pinned."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * parts
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // parts
    if share == 0:
        return [tuple(cores)] * parts
    return [tuple(cores[i * share : (i + 1) * share]) for i in range(parts)]


def _private_write(path: Path, value: msgspec.Struct) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(value))


def _log_end(path: Path) -> str:
    """The last line of a log that says something."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it said nothing"


async def _start(name: str, role: str, config: msgspec.Struct, folder: Path) -> _Process:
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    _private_write(path, config)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "homesplit_engine",
            role,
            "--config",
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return _Process(name, process, log, folder / f"{name}.ready")


async def _ready(part: _Process, kind: type[_T]) -> _T:
    """What the process wrote into its ready file; raises EngineError with its last words."""
    deadline = asyncio.get_running_loop().time() + START_S
    while not part.ready.exists():
        if part.process.returncode is not None:
            raise EngineError(
                f"the {part.name} process ended at once: {_log_end(part.log)}",
                do_next=f"Its log is {part.log}.",
            )
        if asyncio.get_running_loop().time() > deadline:
            raise EngineError(
                f"the {part.name} process was not ready within {START_S:.0f} s",
                do_next=f"Its log is {part.log}.",
            )
        await asyncio.sleep(0.05)
    return msgspec.json.decode(part.ready.read_bytes(), type=kind)


async def _stop(parts: Sequence[_Process]) -> None:
    """End the processes in good order, then by force."""
    for part in parts:
        if part.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                part.process.send_signal(signal.SIGTERM)
    for part in parts:
        try:
            await asyncio.wait_for(part.process.wait(), STOP_S)
        except TimeoutError:
            part.process.kill()
            await part.process.wait()


def _clear(folder: Path, *, keep_logs: bool) -> None:
    """Delete keys and settings, and the logs unless an error has just named them."""
    if not keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.suffix != ".log":
            path.unlink(missing_ok=True)


def _worker_config(
    box: str,
    folder: Path,
    model_dir: Path,
    cpus: tuple[int, ...] | None,
    kv_blocks: int,
    prefix_cache: bool,
) -> WorkerConfig:
    return WorkerConfig(
        box=box,
        model_dir=str(model_dir),
        keys_file=str(folder / f"{box}.keys"),
        ready_file=str(folder / f"{box}.ready"),
        threads=len(cpus) if cpus else 1,
        cpus=cpus,
        kv_blocks=kv_blocks,
        prefix_cache=prefix_cache,
        parent_pid=os.getpid(),
    )


def engine_is_installed() -> bool:
    """Whether this Python can run the engine itself."""
    return all(importlib.util.find_spec(name) for name in ("numba", "torch", "transformers"))


@contextlib.asynccontextmanager
async def local_engine(
    *,
    model_dir: Path,
    model_name: str,
    boxes: tuple[str, ...] = ("left", "right"),
    setting: ModeSetting | None = None,
    kv_blocks: int = 768,
    prefix_cache: bool = True,
) -> AsyncGenerator[LocalEngine]:
    """Start workers and router, yield where they are, and end them all whatever happens.

    Each worker is pinned to its share of the cores. After a failure the logs stay, which errors
    name. Raises EngineError.
    """
    if os.name == "nt":
        raise EngineError(
            "the engine runs on Linux and macOS only", do_next="Run homesplit in WSL."
        )
    if not engine_is_installed():
        raise EngineError(
            "the engine's packages are not installed here",
            do_next="Install them with: pip install 'homesplit[engine]'",
        )
    folder = Path(tempfile.mkdtemp(prefix="homesplit-"))
    started: list[_Process] = []
    failed = False
    try:
        for name, keys in make_keys(boxes).items():
            write_keys(folder / f"{name}.keys", keys)
        workers: list[_Process] = []
        for box, cpus in zip(boxes, split_cores(len(boxes)), strict=True):
            config = _worker_config(box, folder, model_dir, cpus, kv_blocks, prefix_cache)
            workers.append(await _start(box, "worker", config, folder))
            started.append(workers[-1])
        endpoints = [await _ready(part, WorkerEndpoints) for part in workers]
        router_config = RouterConfig(
            model_dir=str(model_dir),
            model_name=model_name,
            keys_file=str(folder / "router.keys"),
            ready_file=str(folder / "router.ready"),
            workers=tuple(end.address for end in endpoints),
            setting=setting or ModeSetting(prefill_box=boxes[0], decode_box=boxes[-1]),
            loopback=True,
            parent_pid=os.getpid(),
        )
        router = await _start("router", "router", router_config, folder)
        started.append(router)
        door = await _ready(router, RouterEndpoints)
        pids = {part.name: part.process.pid for part in started}
        yield LocalEngine(url=door.url, boxes=boxes, pids=pids, folder=folder)
    except HomesplitError:
        failed = True
        raise
    finally:
        await _stop(started[::-1])
        _clear(folder, keep_logs=failed)
