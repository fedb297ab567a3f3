"""KV in the pool and KV in a frame: which bytes a frame holds, and in what order.

frame:  layer 7 [ K: tokens x heads x width | V: the same ]  layer 8 [ K | V ]  ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from msgspec import Struct

from homesplit_engine.cache import KvPool, KvShape, Place

SEND_FROM_BYTES = 2**20
"""A layer waits for the next one until a frame has this much: tiny frames cost too much."""
FRAME_BYTES = 4 * 2**20
"""Longer stretches are cut: a few MiB a frame is where ZeroMQ is quickest."""


class Piece(Struct, frozen=True, kw_only=True):
    """K and V of tokens [start, end) of `layers` layers from `layer` on."""

    layer: int
    layers: int
    start: int
    end: int


def piece_bytes(shape: KvShape, piece: Piece) -> int:
    """How many bytes a piece's frame has."""
    width = sum(shape.layer_bytes(n) for n in range(piece.layer, piece.layer + piece.layers))
    return width * (piece.end - piece.start)


def cut(shape: KvShape, piece: Piece) -> Iterator[Piece]:
    """The piece as pieces of at most about FRAME_BYTES, by token ranges."""
    per_token = piece_bytes(shape, piece) // max(1, piece.end - piece.start)
    most = max(1, FRAME_BYTES // per_token)
    for start in range(piece.start, piece.end, most):
        yield Piece(
            layer=piece.layer,
            layers=piece.layers,
            start=start,
            end=min(start + most, piece.end),
        )


def pack(pool: KvPool, place: Place, piece: Piece) -> memoryview:
    """A copy of the piece's KV as bytes."""
    flat = [
        pool.copy_out(layer, place, piece.start, piece.end).view(-1).view(torch.uint8)
        for layer in range(piece.layer, piece.layer + piece.layers)
    ]
    joined = flat[0] if len(flat) == 1 else torch.cat(flat)
    array: Any = joined.cpu().numpy()
    return memoryview(array)


def unpack(pool: KvPool, place: Place, piece: Piece, frame: memoryview) -> None:
    """Puts a frame's KV where the piece belongs; its size must have been checked."""
    tokens = piece.end - piece.start
    # A read-only buffer is fine: it is only copied from.
    received = torch.frombuffer(frame, dtype=torch.uint8)
    at = 0
    for layer in range(piece.layer, piece.layer + piece.layers):
        size = pool.shape.layer_bytes(layer) * tokens
        values = received[at : at + size].view(pool.shape.dtype)
        shape = (2, tokens, pool.shape.kv_heads[layer], pool.shape.head_dim[layer])
        pool.copy_in(layer, place, piece.start, values.view(shape))
        at += size
