"""How large the hand-off's frames are. No torch: the desk's cost model counts them too."""

from __future__ import annotations

SEND_FROM_BYTES = 2**18
"""A layer waits for the next one until a frame has this much: tiny frames cost too much."""
FRAME_BYTES = 2**19
"""Longer stretches are cut. ZeroMQ codes and decodes a frame as a whole, and nothing of it is on
the way meanwhile: on busy cores frames of 1 MiB or more carried half of what those of a quarter to
a half did (`tests/bench/results/handoff.md`)."""
