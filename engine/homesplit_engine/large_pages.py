"""Memory in large pages, where the system has them.

A decode step reads all weights and much KV. In pages of 4 KiB the processor also looks up where
each of them lies; in pages of 2 MiB hardly ever.
"""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 64 * 2**20
"""Asked for from the system at a time, so that small arrays share large pages."""
_ALIGN_BYTES = 64


class LargePages:
    """Hands out arrays that lie one behind the other; their memory lives as long as one of them."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A contiguous array; what is in it is not said. Raises OSError when memory is short."""
        kind = np.dtype(dtype)
        count = math.prod(shape)
        needed = -(-count * kind.itemsize // _ALIGN_BYTES) * _ALIGN_BYTES
        if self._chunk is None or self._used + needed > len(self._chunk):
            self._chunk, self._used = _chunk(max(needed, CHUNK_BYTES)), 0
        array = np.frombuffer(self._chunk, kind, count, self._used).reshape(shape)
        self._used += needed
        return array

    def copy_of(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same numbers, contiguous."""
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy


def _chunk(size: int) -> mmap.mmap:
    # Private: large pages for what is shared are another setting, which systems leave off.
    chunk = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone has it
    if advice is not None:
        try:
            chunk.madvise(advice)
        except OSError:
            return chunk  # a kernel without large pages: as good as what malloc gives
    return chunk
