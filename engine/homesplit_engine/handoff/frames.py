"""How large the hand-off's frames are. No torch: the desk's cost model counts them too."""

from __future__ import annotations

SEND_FROM_BYTES = 2**18
"""A layer waits for the next one until a frame has this much: tiny frames cost too much."""
FRAME_BYTES = 2**20
"""Longer stretches are cut. ZeroMQ codes and decodes a frame as a whole, and nothing of it is on
the way meanwhile; each one costs both ends several wake-ups. Half of this carried 0.7 of plain TCP
between two cores, this 0.8, twice this no more (`tests/bench/results/handoff.md`)."""
