"""The worker's process: settings, cores, model, ready file, signals, exit code."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from homesplit_engine.config import (
    ConfigError,
    Keys,
    WorkerConfig,
    living_with,
    load,
    write_ready,
)
from homesplit_engine.heap import keep_freed_memory
from homesplit_engine.keys import read_keys
from homesplit_engine.limits import allowed_cores
from homesplit_engine.open_files import allow_open_files
from homesplit_engine.wire.sockets import SocketError

if TYPE_CHECKING:
    from homesplit_engine.model import LoadedModel
    from homesplit_engine.worker.worker import Worker

log = logging.getLogger(__name__)
KERNELS_KEPT = 128
"""oneDNN and torch's layer above it prepare something for each number of rows that a layer meets,
and keep 1,024 of these each unless told otherwise, so that a worker grows for hours:
`tests/bench/results/memory.md`."""
_KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def main(config_path: str, parent_pid: int | None = None) -> int:
    """Run one worker until it is told to stop, or `parent_pid` is gone; returns the exit code.

    It also ends, with code 1, when a thread of it dies: half a worker would answer pings and
    lose requests.
    """
    try:
        config = living_with(load(Path(config_path), WorkerConfig), parent_pid)
        keys = read_keys(Path(config.keys_file))
        _pin(config)
        bound_kernels()
        allow_open_files()
        worker = _made(config, keys)
        dead = end_with_any_thread(worker.state.stop_soon)
        # The model and torch's own objects stay: no collection need look through them again.
        gc.freeze()
        keep_freed_memory()
        worker.start()
        write_ready(Path(config.ready_file), worker.endpoints)
    except Exception as error:
        known = isinstance(error, ConfigError | SocketError) or _is_model_error(error)
        if not known:
            raise
        print(f"homesplit worker: {error}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        worker.run()
        code = int(bool(dead))
    finally:
        worker.stop()
    return code


def end_with_any_thread(stop: Callable[[], None]) -> list[str]:
    """Call `stop` when any thread dies of an error; the names of those that did so far."""
    dead: list[str] = []

    def died(what: threading.ExceptHookArgs) -> None:
        name = what.thread.name if what.thread else "?"
        log.critical("thread %s died; the worker ends", name, exc_info=what.exc_value)
        dead.append(name)
        stop()

    threading.excepthook = died
    return dead


def _made(config: WorkerConfig, keys: Keys) -> Worker:
    # Heavy imports wait until the process is pinned and its threads are set.
    import torch

    from homesplit_engine.model import load_model
    from homesplit_engine.trial import try_steps
    from homesplit_engine.worker.worker import Worker

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    loaded = load_model(
        Path(config.model_dir), device=config.device, dtype=config.dtype, weights=config.weights
    )
    if loaded.device.type != "cpu":
        try_steps(loaded)
    worker = Worker(config, keys, loaded, _blocks_total(config, loaded))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopper(worker))
    return worker


def _stopper(worker: Worker) -> Callable[[int, object], None]:
    def stop(_number: int, _frame: object) -> None:
        worker.state.stop_soon()

    return stop


def _pin(config: WorkerConfig) -> None:
    """Before torch starts its threads: they inherit the cores."""
    if config.cpus is not None and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, config.cpus)
        except OSError as error:
            raise ConfigError(f"cpus {config.cpus}: can't be used: {error.strerror}") from error
    if config.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(config.threads)
    elif (allowed := allowed_cores()) is not None and allowed < _own_cores():
        # More threads than a quota lets run at once only wait for one another.
        os.environ.setdefault("OMP_NUM_THREADS", str(allowed))
        os.environ.setdefault("NUMBA_NUM_THREADS", str(allowed))


def _own_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def bound_kernels() -> None:
    """Before torch is imported: both caches read this once. The user's own word stands."""
    for name in _KERNEL_CACHES:
        os.environ.setdefault(name, str(KERNELS_KEPT))


def _blocks_total(config: WorkerConfig, loaded: LoadedModel) -> int:
    from homesplit_engine.cache import blocks_that_fit
    from homesplit_engine.devices import free_bytes

    if config.kv_blocks is not None:
        return config.kv_blocks
    free = free_bytes(loaded.device)
    blocks = blocks_that_fit(
        loaded.kv_shape,
        block_tokens=config.block_tokens,
        free_bytes=int(free * config.memory_fraction),
        most_tokens=config.max_batch_requests * loaded.max_context,
    )
    if blocks < 1:
        raise ConfigError(
            f"not one KV block of {config.block_tokens} tokens fits into "
            f"{config.memory_fraction:.0%} of the {free} bytes that are free"
        )
    return blocks


def _is_model_error(error: Exception) -> bool:
    from homesplit_engine.model import ModelError

    return isinstance(error, ModelError)
