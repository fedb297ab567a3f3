"""In what two workers differ that are never paired."""

from __future__ import annotations

from homesplit_engine.wire.messages import Ready


def difference(ready: Ready, peer: Ready | None) -> str:
    """Names the fields in which a worker differs from one that is in use."""
    if peer is None:
        return "its fingerprint differs from that of the workers in use"
    names = sorted({*ready.fingerprint_fields, *peer.fingerprint_fields})
    mine, theirs = ready.fingerprint_fields, peer.fingerprint_fields
    told = [
        f"{name} is {mine.get(name, 'absent')} here and {theirs.get(name, 'absent')} there"
        for name in names
        if mine.get(name) != theirs.get(name)
    ]
    return f"never paired with {peer.box}: {'; '.join(told) or 'the fingerprints differ'}"
