"""What stays known when a new measurement fails: the last good figure, with its date and why."""

from __future__ import annotations

from msgspec import structs

from homesplit.core.link import LatencyReading, LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading

_RATES = (
    *("a_to_b", "b_to_a", "encrypted_a_to_b", "encrypted_b_to_a", "zmq_a_to_b", "zmq_b_to_a"),
    *("streams_a_to_b", "streams_b_to_a", "busy_a_to_b", "busy_b_to_a"),
)
_ROAD = (
    *("label_bytes_per_s", "interface_a", "interface_b", "address_a", "address_b"),
    *("mtu_a", "mtu_b", "kind_a", "kind_b", "ways", "probed_at"),
)
"""Which way the bytes took: it belongs to the rate that was measured over it."""
_OF_A_BOX = ("memory_bytes_per_s", "memory_copy_bytes_per_s", "idle_w", "load_w")
_KEPT = "not measured anew"
_FAILED = "the newest try failed"


def link_kept(new: LinkProfile, old: LinkProfile | None) -> LinkProfile:
    """`new`, with the last good figures of `old` where the new try gave none.

    `old` is seen from the same end as `new`. A link that turned out to be loopback keeps nothing.
    """
    if old is None or new.loopback or old.loopback:
        return new
    kept = {name: reading_kept(getattr(new, name), getattr(old, name)) for name in _RATES}
    latency = LatencyReading(
        p50=reading_kept(new.latency_s.p50, old.latency_s.p50),
        p99=reading_kept(new.latency_s.p99, old.latency_s.p99),
    )
    failed = not (new.a_to_b.known or new.b_to_a.known)
    if not failed or not (old.a_to_b.known or old.b_to_a.known):
        return structs.replace(new, **kept, latency_s=latency)
    road = {name: getattr(old, name) for name in _ROAD}
    said = f"{_FAILED}: {new.a_to_b.why}"
    warnings = (said, *(w for w in old.warnings if not w.startswith(_FAILED)))
    return structs.replace(new, **kept, latency_s=latency, **road, warnings=warnings)


def box_kept(new: BoxProfile, old: BoxProfile | None) -> BoxProfile:
    """`new`, with the last good rates of `old` where the new try gave none.

    Rates of another device than the one that would run the model now are no stand-in.
    """
    if old is None or (old.device, old.host_key) != (new.device, new.host_key):
        return new
    kept = {name: reading_kept(getattr(new, name), getattr(old, name)) for name in _OF_A_BOX}
    flops = {
        dtype: reading_kept(reading, old.flops_per_s.get(dtype))
        for dtype, reading in new.flops_per_s.items()
    }
    return structs.replace(new, **kept, flops_per_s=flops)


def reading_kept(new: Reading, old: Reading | None) -> Reading:
    """`new`, or the known `old` with a warning that tells its date and why there is no newer."""
    if new.known or old is None or not old.known:
        return new
    dated = f" since {old.taken_at}" if old.taken_at else ""
    said = f"{_KEPT}{dated}: {new.why}"
    others = tuple(warning for warning in old.warnings if not warning.startswith(_KEPT))
    return structs.replace(old, warnings=(*others, said))


def sentences(kept: BoxProfile | LinkProfile) -> tuple[str, ...]:
    """What of a saved profile is older than its newest try, in words."""
    if isinstance(kept, LinkProfile):
        stale = kept.warnings[:1] if kept.warnings and kept.warnings[0].startswith(_FAILED) else ()
        dated = f" of {kept.probed_at}" if kept.probed_at else ""
        return tuple(
            f"{kept.a} to {kept.b}: the last good figures{dated} stay in force; {why}"
            for why in stale
        )
    named = {name: getattr(kept, name) for name in _OF_A_BOX} | kept.flops_per_s
    return tuple(
        f"{kept.name}: {name} {warning}"
        for name, reading in named.items()
        for warning in reading.warnings
        if warning.startswith(_KEPT)
    )
