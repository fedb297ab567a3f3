"""Memory rates beyond all caches, on the device that would run the model."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import mmap
import threading
import time
from typing import Any, Callable, Dict, List

from homesplit_probes.compute import device_name
from homesplit_probes.methods import torch_module, usable_cores
from homesplit_probes.report import Figure, figure, unknown

_MIB = 1 << 20
_SMALLEST_BYTES = 64 * _MIB
_DEVICE_BYTES = 1024 * _MIB
_REPEATS = 15
_PASSES = 4
"""Over the whole buffer in each repetition: threads that start late would count for much of one."""
_PIECE_BYTES = 256 * 1024
"""A call for so much costs nothing, and the C library copies it as it does what is small."""

Say = Callable[[str], None]


def measure_memory(seconds: float, available_bytes: int, say: Say) -> Dict[str, Figure]:
    """`read` and `copy` in bytes per second; a copy counts what is read plus what is written."""
    device = device_name()
    if device != "cpu":
        say("reading and copying %s memory" % device)
        return _device_rates(torch_module(), device, seconds)
    caches = last_level_caches()
    size = buffer_bytes(max(caches), sum(caches), available_bytes)
    if size is None:
        why = "too little free memory for a buffer beyond the caches"
        return {"read": unknown(why), "copy": unknown(why)}
    say("reading and copying %d MiB of memory" % (size // _MIB))
    threads = usable_cores()
    source, target = _Buffer(size), _Buffer(size)
    moved = _PASSES * size
    reads = [
        _rate(reader(source.start, size, threads), moved, threads, seconds / 4, name, size)
        for name, reader in (("memcmp", _comparer), ("memchr", _searcher))
    ]
    # One call for a whole slice is up to an eighth slower than a plain loop on some processors.
    copies = [
        _rate(
            _copier(source.start, target.start, size, threads, piece),
            2 * moved,
            threads,
            seconds / 4,
            name,
            size,
        )
        for name, piece in (("memmove", size), ("memmove of 256 KiB at a time", _PIECE_BYTES))
    ]
    # Memory gives at least what the quicker of them takes.
    return {"read": _quicker(reads), "copy": _quicker(copies)}


def _quicker(figures: List[Figure]) -> Figure:
    return max(figures, key=lambda figure: figure["value"])


class _Buffer:
    """Memory of ones, in large pages where the system has them, as the engine's weights are.

    In pages of 4 KiB a core reads up to half less: it looks up where each of them lies.
    """

    def __init__(self, size: int) -> None:
        # Private: large pages for what is shared are another setting, which systems leave off.
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has it
        if advice is not None:
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(advice)
        self._first = ctypes.c_char.from_buffer(self._map)
        self.start = ctypes.addressof(self._first)
        # Touched first, so that no page is still the shared zero page.
        ctypes.memset(self.start, 1, size)


def buffer_bytes(cache_bytes: int, all_caches_bytes: int, available_bytes: int) -> "int | None":
    """At least four times the largest cache, and beyond all together where there is room for that.

    Beyond all is four times their sum, but no more than 1 GiB or twice their sum. Both buffers
    together take at most half of what is free.
    """
    least = max(_SMALLEST_BYTES, 4 * cache_bytes)
    if least * 4 > available_bytes:
        return None
    beyond_all = min(4 * all_caches_bytes, max(_DEVICE_BYTES, 2 * all_caches_bytes))
    return max(least, min(beyond_all, available_bytes // 4))


def last_level_caches(cpus: str = "/sys/devices/system/cpu") -> List[int]:
    """Sizes of the largest caches, each once however many cores share it; [32 MiB] if untold.

    A processor of several dies has as many: what is spread over all cores must exceed their sum.
    """
    sizes: Dict[str, int] = {}
    for folder in glob.glob(cpus + "/cpu[0-9]*/cache/index[0-9]*"):
        try:
            cache = cache_size(_text(folder + "/size"))
        except (OSError, ValueError):
            continue
        try:
            shared = _text(folder + "/shared_cpu_list")
        except OSError:
            shared = "all"
        sizes[shared] = max(cache, sizes.get(shared, 0))
    # Beside a cache that four cores share each has smaller ones of its own.
    most = max(sizes.values(), default=0)
    return [size for size in sizes.values() if 2 * size > most] or [32 * _MIB]


def _text(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def cache_size(text: str) -> int:
    """Bytes of the kernel's `32K` or `16384K`; raises ValueError."""
    text = text.strip()
    factor = {"K": 1024, "M": _MIB, "G": 1024 * _MIB}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * factor


def _together(work: Callable[[int], None], threads: int) -> None:
    """The same work on each slice at once, `_PASSES` times; ctypes lets go of Python's lock."""

    def passes(i: int) -> None:
        for _ in range(_PASSES):
            work(i)

    if threads == 1:
        passes(0)
        return
    others = [threading.Thread(target=passes, args=(i,)) for i in range(threads)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()


def _searcher(start: int, size: int, threads: int) -> Callable[[], None]:
    """Reads each slice from its beginning to its end, looking for what is not there."""
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    memchr.restype = ctypes.c_void_p
    slice_bytes = size // threads

    def work(i: int) -> None:
        memchr(start + i * slice_bytes, 0, slice_bytes)

    return lambda: _together(work, threads)


def _comparer(start: int, size: int, threads: int) -> Callable[[], None]:
    """Reads both halves of each slice at once, comparing them; they are alike."""
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    half = size // threads // 2

    def work(i: int) -> None:
        memcmp(start + 2 * i * half, start + (2 * i + 1) * half, half)

    return lambda: _together(work, threads)


def _copier(begin: int, end: int, size: int, threads: int, piece: int) -> Callable[[], None]:
    """Copies each slice from its beginning to its end, so many bytes a call."""
    slice_bytes = size // threads
    memmove = ctypes.CDLL(None).memmove
    memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def work(i: int) -> None:
        for at in range(i * slice_bytes, (i + 1) * slice_bytes, piece):
            memmove(end + at, begin + at, min(piece, (i + 1) * slice_bytes - at))

    return lambda: _together(work, threads)


def _rate(
    once: Callable[[], None], moved: int, threads: int, seconds: float, name: str, size: int
) -> Figure:
    once()
    rates: List[float] = []
    deadline = time.perf_counter() + seconds
    while not rates or (len(rates) < _REPEATS and time.perf_counter() < deadline):
        begin = time.perf_counter()
        once()
        rates.append(moved / (time.perf_counter() - begin))
    method = "%s over %d MiB, %d threads" % (name, size // _MIB, threads)
    return figure(rates, "B/s", method)


def _device_rates(torch: Any, place: str, seconds: float) -> Dict[str, Figure]:
    count = _DEVICE_BYTES // 4
    try:
        source = torch.ones(count, dtype=torch.float32, device=place)
        target = torch.empty_like(source)
    except RuntimeError:
        why = "less than 2 GiB of device memory is free"
        return {"read": unknown(why), "copy": unknown(why)}
    wait = torch.cuda.synchronize if place == "cuda" else torch.mps.synchronize

    def read() -> None:
        source.sum()
        wait()

    def copy() -> None:
        target.copy_(source)
        wait()

    rates = {
        "read": _device_rate(read, _DEVICE_BYTES, seconds / 2, "torch sum"),
        "copy": _device_rate(copy, 2 * _DEVICE_BYTES, seconds / 2, "torch copy_"),
    }
    return rates


def _device_rate(once: Callable[[], None], moved: int, seconds: float, name: str) -> Figure:
    raw = _rate(once, moved, 1, seconds, name, _DEVICE_BYTES)
    raw["method"] = "%s over 1024 MiB on the device" % name
    return raw
