"""Link speeds: presets, reading a rate, what a rate can carry, how it is shaped."""

from __future__ import annotations

import re

from tests.lab.errors import LabError
from tests.lab.records import Link

FRAME_BYTES = 1538
"""A full Ethernet frame on the wire, with preamble and gap."""

MTU_BYTES = 1500

PRESETS: dict[str, Link] = {
    "loopback": Link(label="loopback"),
    "1gbe": Link(label="1gbe", rate_bits_per_s=1e9),
    "2.5gbe": Link(label="2.5gbe", rate_bits_per_s=2.5e9),
    "10gbe": Link(label="10gbe", rate_bits_per_s=10e9),
    "25gbe": Link(label="25gbe", rate_bits_per_s=25e9),
    "wifi": Link(label="wifi", rate_bits_per_s=300e6, latency_ms=3.0, jitter_ms=1.0),
}

_UNITS = {"": 1e6, "k": 1e3, "m": 1e6, "g": 1e9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:bit|bps|b)?(?:/s)?")


def parse_rate(text: str) -> float:
    """Bits per second of `300mbit`, `2.5gbit` or a bare number of Mbit/s."""
    match = _RATE.fullmatch(text.strip().lower())
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not rate:
        raise LabError(f"rate {text!r}: write 300mbit or 2.5gbit, or one of {', '.join(PRESETS)}")
    return rate


def goodput_bits_per_s(rate_bits_per_s: float) -> float:
    """The most that one TCP stream carries on an Ethernet of this line rate."""
    return rate_bits_per_s * (MTU_BYTES - 52) / FRAME_BYTES


def super_packet_bytes(rate_bits_per_s: float) -> int:
    """The largest packet a sender hands to the shaper: small ones keep slow links smooth."""
    if rate_bits_per_s < 1.5e9:
        return 16384
    return 32768 if rate_bits_per_s < 5e9 else 65536


def burst_bytes(rate_bits_per_s: float) -> int:
    """What may pass at once.

    Less than one super-packet makes tbf split it, which is slow; much more lets short
    messages go faster than the wire.
    """
    window_s = 440e-6 if rate_bits_per_s > 8e9 else 220e-6
    floor = 2 * super_packet_bytes(rate_bits_per_s) + 4096
    return int(max(floor, rate_bits_per_s / 8 * window_s))
