"""What differs from one kind of device to another: CPU, CUDA (NVIDIA), MPS (Apple).

Work for a GPU is queued, in the order of each stream, and the call returns at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Generator
from typing import Any

import torch

from homesplit_engine.limits import available_bytes

KINDS = ("cpu", "cuda", "mps")


def why_no_device(name: str) -> str | None:
    """Why this machine's torch can't compute on such a device, None when it can."""
    try:
        device = torch.device(name)
    except RuntimeError:
        return f"device {name!r} is not known; one of: {', '.join(KINDS)}"
    if device.type not in KINDS:
        return f"device {name!r} is not one that this engine runs on; one of: {', '.join(KINDS)}"
    if device.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found <= (device.index or 0):
            return f"device {name!r}: torch {torch.__version__} finds {found} CUDA devices here"
    if device.type == "mps" and not torch.backends.mps.is_available():
        return f"device {name!r}: torch {torch.__version__} finds no Apple GPU here"
    return None


def free_bytes(device: torch.device) -> int:
    """How much more may be taken on a device, once the model is loaded."""
    if device.type == "cuda":
        # What loading has freed is torch's own until it is given back.
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    available = available_bytes()
    if device.type == "mps":
        # The GPU may take less than all of the memory that it shares with everything else.
        torch.mps.empty_cache()
        own = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(0, min(available, int(own)))
    return available


def finish(device: torch.device) -> None:
    """Waits until all that was queued on a device is computed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class DeviceLost(Exception):
    """The device computes nothing any more for this process, which has to be started again."""


def check_alive(device: torch.device, error: Exception) -> None:
    """Raises DeviceLost when nothing can be computed on a device since `error`."""
    try:
        finish(device)
    except RuntimeError as still:
        raise DeviceLost(f"{device} is lost to this process: {still}") from error


class Turn:
    """Lets one thread at a time in, in the order in which they came.

    On MPS two threads must not compute at once, or the process dies
    (https://github.com/pytorch/pytorch/issues/197805). A plain lock would be taken again and
    again by the thread of the steps, before anyone else wakes up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    @property
    def waiting(self) -> int:
        """How many threads wait for theirs."""
        return len(self._waiting)

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class Threads:
    """How the hand-off's threads share a device with the one that computes the steps."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._reader: Any = None
        self.turn: Turn | None = Turn() if device.type == "mps" else None
        """Held by whoever computes; None where several threads may."""

    def mark(self) -> Any:
        """The end of all that the calling thread has queued so far; None where nothing queues."""
        if not self._cuda:
            return None
        mark = torch.cuda.Event()
        mark.record(torch.cuda.current_stream(self._device))
        return mark

    @contextlib.contextmanager
    def reading(self, mark: Any = None) -> Generator[None]:
        """For a thread that copies out of the pool what lay there at `mark`.

        On CUDA on a stream of its own: on the steps' it would wait for all that they have
        queued, the layers still to come among it.
        """
        if mark is not None:
            reader = self._reader = self._reader or torch.cuda.Stream(self._device)
            reader.wait_event(mark)
            with torch.cuda.stream(reader):
                yield
        else:
            with self.computing():
                yield

    @contextlib.contextmanager
    def computing(self) -> Generator[None]:
        """For whoever computes steps or copies into the pool: all in one stream."""
        if self.turn is None:
            yield
        else:
            with self.turn:
                yield
