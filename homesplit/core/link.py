"""What is known of the way between two boxes."""

from __future__ import annotations

from msgspec import Struct, field

from homesplit.core.reading import Reading, unknown


def _unmeasured() -> Reading:
    return unknown("not measured yet")


class LatencyReading(Struct, frozen=True, kw_only=True):
    """Round trip of a small message over the hand-off's own kind of socket, seconds."""

    p50: Reading = field(default_factory=_unmeasured)
    p99: Reading = field(default_factory=_unmeasured)


class LinkProfile(Struct, frozen=True, kw_only=True):
    """Measured payload rate and latency between box `a` and box `b`, or a link profile's figures."""

    a: str
    b: str
    source: str
    """`probe`, `profile: <name>` or `typed`."""
    a_to_b: Reading = field(default_factory=_unmeasured)
    """Payload bytes per second from a to b."""
    b_to_a: Reading = field(default_factory=_unmeasured)
    latency_s: LatencyReading = field(default_factory=LatencyReading)
    encrypted_a_to_b: Reading = field(default_factory=_unmeasured)
    """Payload bytes per second through CURVE, the hand-off's default."""
    encrypted_b_to_a: Reading = field(default_factory=_unmeasured)
    label_bytes_per_s: float | None = None
    interface_a: str | None = None
    interface_b: str | None = None
    address_a: str | None = None
    """The address of `a` that carried the bytes; the hand-off uses the same."""
    address_b: str | None = None
    loopback: bool = False
    """True when both ends are one machine: teaches the mechanism, measures no network."""
    probed_at: str | None = None
    warnings: tuple[str, ...] = ()
