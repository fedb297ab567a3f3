"""KV in the pool and KV in a frame: which bytes a frame holds, and in what order.

frame:  layer 7 [ K: tokens x heads x width | V: the same ]  layer 8 [ K | V ]  ...

On the wire values are as cached (`same`), `fp16`, or `int8`. Behind a layer's int8 values lie
its scales, one fp32 for each token and head of K, then of V: value = int8 x scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from msgspec import Struct

from homesplit_engine.cache import KvPool, KvShape, Place
from homesplit_engine.handoff.frames import FRAME_BYTES
from homesplit_engine.records import KvWire

_SCALE_BYTES = 4
_FP16_MOST = 65504.0


class Piece(Struct, frozen=True, kw_only=True):
    """K and V of tokens [start, end) of `layers` layers from `layer` on."""

    layer: int
    layers: int
    start: int
    end: int


def layer_wire_bytes(shape: KvShape, layer: int, wire: KvWire) -> int:
    """Bytes on the wire of K and V of one token in one layer."""
    if wire == "same":
        return shape.layer_bytes(layer)
    heads, width = shape.kv_heads[layer], shape.head_dim[layer]
    return 2 * heads * (2 * width if wire == "fp16" else width + _SCALE_BYTES)


def token_wire_bytes(shape: KvShape, wire: KvWire) -> int:
    """Bytes on the wire of one token's K and V in all layers."""
    return piece_bytes(shape, Piece(layer=0, layers=shape.layers, start=0, end=1), wire)


def piece_bytes(shape: KvShape, piece: Piece, wire: KvWire = "same") -> int:
    """How many bytes a piece's frame has."""
    layers = range(piece.layer, piece.layer + piece.layers)
    return sum(layer_wire_bytes(shape, n, wire) for n in layers) * (piece.end - piece.start)


def cut(shape: KvShape, piece: Piece, wire: KvWire = "same") -> Iterator[Piece]:
    """The piece as pieces of at most about FRAME_BYTES, by token ranges of nearly one length."""
    tokens = piece.end - piece.start
    per_token = piece_bytes(shape, piece, wire) // max(1, tokens)
    frames = math.ceil(tokens / max(1, FRAME_BYTES // per_token))
    most = math.ceil(tokens / max(1, frames))
    for start in range(piece.start, piece.end, max(1, most)):
        yield Piece(
            layer=piece.layer,
            layers=piece.layers,
            start=start,
            end=min(start + most, piece.end),
        )


def as_it_lies(
    pool: KvPool, place: Place, piece: Piece, wire: KvWire = "same"
) -> list[memoryview] | None:
    """The stretches of the pool that a piece's frame holds, in its order: no copy is needed.

    None where the frame's bytes are not those of the pool, or the pool is on a GPU.
    """
    if wire != "same" or not pool.bytes:
        return None
    layers = pool.bytes[piece.layer : piece.layer + piece.layers]
    runs = place.runs(piece.start, piece.end)
    halves: list[Any] = [half for layer in layers for half in layer]
    return [memoryview(half[first:end].reshape(-1)) for half in halves for first, end in runs]


def pack(
    pool: KvPool, place: Place, piece: Piece, wire: KvWire = "same", mark: Any = None
) -> memoryview:
    """A copy of the piece's KV as bytes; `mark` is when it was in the pool (`Threads.mark`)."""
    frame = torch.empty(piece_bytes(pool.shape, piece, wire), dtype=torch.uint8)
    at = 0
    with pool.threads.reading(mark):
        for layer in range(piece.layer, piece.layer + piece.layers):
            values = pool.read(layer, place, piece.start, piece.end)
            for part in _encoded(values, wire):
                size = part.numel() * part.itemsize
                _put(frame[at : at + size], part)
                at += size
    array: Any = frame.numpy()
    return memoryview(array)


def unpack(
    pool: KvPool, place: Place, piece: Piece, frame: memoryview, wire: KvWire = "same"
) -> None:
    """Puts a frame's KV where the piece belongs; its size must have been checked."""
    tokens = piece.end - piece.start
    # A read-only buffer is fine: it is only copied from.
    received = torch.frombuffer(frame, dtype=torch.uint8)
    at = 0
    with pool.threads.computing():
        for layer in range(piece.layer, piece.layer + piece.layers):
            size = layer_wire_bytes(pool.shape, layer, wire) * tokens
            shape = (2, tokens, pool.shape.kv_heads[layer], pool.shape.head_dim[layer])
            values = _decoded(received[at : at + size], shape, pool.shape.dtype, wire)
            pool.copy_in(layer, place, piece.start, values)
            at += size


def _put(stretch: torch.Tensor, part: torch.Tensor) -> None:
    """One copy, whichever way the part's tokens lie, straight into the frame."""
    if stretch.storage_offset() % part.itemsize:
        # Behind int8 values, where no number of several bytes may lie.
        stretch.copy_(part.reshape(-1).view(torch.uint8))
    else:
        stretch.view(part.dtype).view(part.shape).copy_(part)


def _encoded(values: torch.Tensor, wire: KvWire) -> list[torch.Tensor]:
    if wire == "same":
        return [values]
    if wire == "fp16":
        return [values.clamp(-_FP16_MOST, _FP16_MOST).to(torch.float16)]
    exact = values.float()
    scales = exact.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12).div_(127)
    return [(exact / scales).round_().to(torch.int8), scales]


def _decoded(
    received: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, wire: KvWire
) -> torch.Tensor:
    if wire == "same":
        return received.view(dtype).view(shape)
    if wire == "fp16":
        return received.view(torch.float16).view(shape).to(dtype)
    count = shape[0] * shape[1] * shape[2] * shape[3]
    # Copied, because the scales need not lie at a multiple of four bytes.
    scales = received[count:].clone().view(torch.float32).view(*shape[:-1], 1)
    return (received[:count].view(torch.int8).view(shape) * scales).to(dtype)
