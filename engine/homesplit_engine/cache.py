"""The KV pool: one tensor a layer, and where in it each request's tokens lie.

    layer:  [ K | V ] x slots x kv_heads x head_dim        slots = blocks x block_tokens

Token-major, so that the KV of a run of tokens is one stretch of bytes for K and one for V:
that is what a hand-off sends. A request whose blocks are neighbours is read in place; else
its slots are gathered.

With `spare` one more slot lies behind those of the blocks; no request's token is ever there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from homesplit_engine.devices import Threads
from homesplit_engine.first_touch import FirstTouch, Stretch
from homesplit_engine.large_pages import LargePages
from homesplit_engine.pages import blocks_for


class KvShape(Struct, frozen=True, kw_only=True):
    """What one token leaves in the cache: heads and width of each layer, and the dtype."""

    kv_heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    dtype: torch.dtype

    @property
    def layers(self) -> int:
        """Number of layers that keep KV."""
        return len(self.kv_heads)

    def layer_bytes(self, layer: int) -> int:
        """Bytes of K and V of one token in one layer."""
        return 2 * self.kv_heads[layer] * self.head_dim[layer] * self.dtype.itemsize

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token in all layers."""
        return sum(self.layer_bytes(layer) for layer in range(self.layers))


class Place:
    """Where one request's tokens lie in the pool: a stretch of slots, or a list of them."""

    def __init__(self, block_tokens: int, device: torch.device) -> None:
        self._size = block_tokens
        self._device = device
        self._blocks: list[int] = []
        self._index: torch.Tensor | None = None
        self.first: int | None = None
        """The first slot when all blocks are neighbours, else None."""

    @property
    def blocks(self) -> list[int]:
        """The blocks as last taken in; another list once they are others."""
        return self._blocks

    def follow(self, blocks: Sequence[int]) -> bool:
        """Takes in the request's blocks, which mostly grew by none or one since last time.

        Returns whether they changed.
        """
        if len(blocks) == len(self._blocks) and blocks[-1] == self._blocks[-1]:
            return False
        self._blocks = list(blocks)
        self._index = None
        run = blocks[0] + len(blocks) - 1 == blocks[-1] and all(
            block == blocks[0] + offset for offset, block in enumerate(blocks)
        )
        self.first = blocks[0] * self._size if run else None
        return True

    def slots(self, start: int, end: int) -> list[int]:
        """The slots of tokens [start, end)."""
        if self.first is not None:
            return list(range(self.first + start, self.first + end))
        size = self._size
        return [self._blocks[at // size] * size + at % size for at in range(start, end)]

    def runs(self, start: int, end: int) -> list[tuple[int, int]]:
        """The slots of tokens [start, end) as stretches of neighbours: first, and one past last."""
        if self.first is not None:
            return [(self.first + start, self.first + end)]
        found: list[tuple[int, int]] = []
        at = start
        while at < end:
            number, offset = divmod(at, self._size)
            slot = self._blocks[number] * self._size + offset
            count = min(end - at, self._size - offset)
            if found and found[-1][1] == slot:
                slot = found.pop()[0]
            found.append((slot, self._blocks[number] * self._size + offset + count))
            at += count
        return found

    def index(self, start: int, end: int) -> torch.Tensor:
        """The slots of tokens [start, end) as an index tensor, shape (end - start,)."""
        if self._index is None:
            count = len(self._blocks) * self._size
            if self.first is not None:
                self._index = torch.arange(self.first, self.first + count, device=self._device)
            else:
                self._index = torch.tensor(self.slots(0, count), device=self._device)
        return self._index[start:end]


class KvPool:
    """All KV of one worker."""

    def __init__(
        self,
        shape: KvShape,
        *,
        blocks_total: int,
        block_tokens: int,
        device: torch.device,
        spare: bool = False,
    ) -> None:
        self.shape = shape
        self.block_tokens = block_tokens
        self.device = device
        self.threads = Threads(device)
        slots = blocks_total * block_tokens
        self.spare = slots if spare else None
        """The slot that belongs to no block; None where there is none."""
        slots += spare
        memory = LargePages()
        self.layers = [
            _empty((2, slots, heads, width), shape.dtype, device, memory)
            for heads, width in zip(shape.kv_heads, shape.head_dim, strict=True)
        ]
        self.first_touch = FirstTouch(
            _stretches(self.layers) if device.type == "cpu" else (), slots
        )
        # Views of these, made once: a decode step would spend longer making them than reading.
        self.keys_and_values = [(layer[0], layer[1]) for layer in self.layers]
        """K and V of each layer, slots x heads x width."""
        self.by_head = [(k.permute(1, 2, 0), v.transpose(0, 1)) for k, v in self.keys_and_values]
        """The same, K as heads x width x slots, V as heads x slots x width."""
        seen = shape.dtype == torch.float32 and device.type == "cpu"
        self.arrays: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = (
            [(k.numpy(), v.numpy()) for k, v in self.keys_and_values] if seen else []
        )
        """`keys_and_values` as arrays; empty where numpy doesn't see the memory."""
        self.bytes = [
            (_bytes(k), _bytes(v)) for k, v in self.keys_and_values if device.type == "cpu"
        ]
        """K and V of each layer, slots x bytes, for a hand-off; empty where they lie on a GPU."""

    def in_use(self, blocks: Sequence[int]) -> None:
        """A request has these blocks now; memory after the last will be wanted soon."""
        self.first_touch.reached(blocks[-1] * self.block_tokens)

    def store(
        self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Puts K and V of one layer, tokens x heads x width each, into their slots."""
        keys, values = self.keys_and_values[layer]
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)

    def read_heads(
        self, layer: int, place: Place, start: int, end: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of tokens [start, end), laid out as `by_head`; no copy if it can be."""
        if place.first is not None:
            k, v = self.by_head[layer]
            first, count = place.first + start, end - start
            return k.narrow(2, first, count), v.narrow(1, first, count)
        k, v = self.layers[layer].index_select(1, place.index(start, end)).unbind(0)
        return k.permute(1, 2, 0), v.transpose(0, 1)

    def place(self, blocks: Sequence[int]) -> Place:
        """Where a request with these blocks lies."""
        place = Place(self.block_tokens, self.device)
        place.follow(blocks)
        return place

    def read(self, layer: int, place: Place, start: int, end: int) -> torch.Tensor:
        """K and V of tokens [start, end), 2 x tokens x heads x width; a view where it can be."""
        pool = self.layers[layer]
        if place.first is not None:
            return pool[:, place.first + start : place.first + end]
        return pool.index_select(1, self._index(place, start, end))

    def copy_in(self, layer: int, place: Place, start: int, values: torch.Tensor) -> None:
        """Puts K and V of tokens from `start` on where they belong; shape as `read`."""
        end = start + values.shape[1]
        pool = self.layers[layer]
        if place.first is not None:
            pool[:, place.first + start : place.first + end].copy_(values)
        else:
            pool.index_copy_(1, self._index(place, start, end), values.to(pool.device))

    def _index(self, place: Place, start: int, end: int) -> torch.Tensor:
        """As `place.index`, for a hand-off's thread.

        On a GPU made anew: what another thread has queued to be made may not be there yet.
        """
        if self.device.type == "cpu":
            return place.index(start, end)
        return torch.tensor(place.slots(start, end), device=self.device)


def _stretches(layers: Sequence[torch.Tensor]) -> list[Stretch]:
    """K and V of each layer as bytes."""
    halves = [half for layer in layers for half in layer.unbind(0)]
    return [Stretch(_bytes(half).reshape(-1), half[:1].nbytes) for half in halves if half.numel()]


def _bytes(half: torch.Tensor) -> NDArray[np.uint8]:
    """K or V of a layer as slots x bytes."""
    seen: NDArray[np.uint8] = half.flatten(1).view(torch.uint8).numpy()
    return seen


def _empty(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, memory: LargePages
) -> torch.Tensor:
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    held = memory.empty((math.prod(shape) * dtype.itemsize,), np.uint8)
    return torch.from_numpy(held).view(dtype).view(shape)


def blocks_that_fit(shape: KvShape, *, block_tokens: int, free_bytes: int, most_tokens: int) -> int:
    """Blocks that `free_bytes` hold, but no more than `most_tokens` tokens would use."""
    fit = free_bytes // (shape.bytes_per_token * block_tokens)
    return int(min(fit, blocks_for(most_tokens, block_tokens)))
