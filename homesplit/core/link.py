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


class Way(Struct, frozen=True, kw_only=True):
    """One pair of addresses between two boxes that was tried. `why` says why it can't be used."""

    address_a: str | None
    address_b: str
    interface_a: str | None = None
    interface_b: str | None = None
    bytes_per_s: float | None = None
    """A first, short look; None when it was the only way or none."""
    used: bool = False
    why: str | None = None


class LinkProfile(Struct, frozen=True, kw_only=True):
    """Measured payload rate and latency between box `a` and box `b`, or a profile's figures."""

    a: str
    b: str
    source: str
    """`probe`, `profile: <name>` or `typed`."""
    a_to_b: Reading = field(default_factory=_unmeasured)
    """Payload bytes per second from a to b."""
    b_to_a: Reading = field(default_factory=_unmeasured)
    latency_s: LatencyReading = field(default_factory=LatencyReading)
    encrypted_a_to_b: Reading = field(default_factory=_unmeasured)
    """Payload bytes per second through sealed ZeroMQ messages, as the hand-off sends them."""
    encrypted_b_to_a: Reading = field(default_factory=_unmeasured)
    zmq_a_to_b: Reading = field(default_factory=_unmeasured)
    """Payload bytes per second through plain ZeroMQ."""
    zmq_b_to_a: Reading = field(default_factory=_unmeasured)
    streams_a_to_b: Reading = field(default_factory=_unmeasured)
    """Payload bytes per second of several TCP streams together."""
    streams_b_to_a: Reading = field(default_factory=_unmeasured)
    busy_a_to_b: Reading = field(default_factory=_unmeasured)
    """Payload bytes per second of one TCP stream while every core of both boxes works."""
    busy_b_to_a: Reading = field(default_factory=_unmeasured)
    label_bytes_per_s: float | None = None
    interface_a: str | None = None
    interface_b: str | None = None
    address_a: str | None = None
    """The address of `a` that carried the bytes; the hand-off uses the same."""
    address_b: str | None = None
    mtu_a: int | None = None
    mtu_b: int | None = None
    kind_a: str | None = None
    """`wired`, `wifi`, `bridge`, `tunnel` or `virtual`, by a's interface."""
    kind_b: str | None = None
    ways: tuple[Way, ...] = ()
    """All pairs of addresses that were tried."""
    loopback: bool = False
    """True when both ends are one machine: teaches the mechanism, measures no network."""
    probed_at: str | None = None
    warnings: tuple[str, ...] = ()
