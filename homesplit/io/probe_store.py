"""Probed boxes and links as dated TOML files, named by host key."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from homesplit.core.kept import box_kept, link_kept
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.io.atomic import write_atomically
from homesplit.io.paths import Paths

_Kept = TypeVar("_Kept", BoxProfile, LinkProfile)


def save_box(paths: Paths, profile: BoxProfile) -> BoxProfile:
    """Write a box's profile in the place of its last one; returns what is known now.

    What was measured before and could not be this time stays, with its date.
    """
    path = paths.probes / "boxes" / _file(profile.host_key or profile.name)
    return _save(path, box_kept(profile, _load(path, BoxProfile)))


def save_link(paths: Paths, link: LinkProfile, keys: tuple[str, str]) -> LinkProfile:
    """Write a link's profile under both boxes' host keys (names where there is no key).

    Returns what is known now: a failed try leaves the last good figures in force.
    """
    path = paths.probes / "links" / _file(*sorted(keys))
    old = _load(path, LinkProfile)
    if old is None or (old.a, old.b) == (link.a, link.b):
        return _save(path, link_kept(link, old))
    if (old.a, old.b) == (link.b, link.a):
        return _save(path, link_kept(link, turned(old)))
    # Measured under other names: which end is which isn't known, so nothing is mixed.
    measured = link.a_to_b.known or link.b_to_a.known
    return _save(path, link) if measured else link


def list_boxes(paths: Paths) -> tuple[BoxProfile, ...]:
    """All probed boxes, the newest first; a broken file is passed over."""
    found = _load_all(paths.probes / "boxes", BoxProfile)
    return tuple(sorted(found, key=lambda b: b.probed_at or "", reverse=True))


def load_box(paths: Paths, name: str) -> BoxProfile | None:
    """The newest profile of the box of that name or host key."""
    return next((b for b in list_boxes(paths) if name in (b.name, b.host_key)), None)


def list_links(paths: Paths) -> tuple[LinkProfile, ...]:
    """All probed links, the newest first; a broken file is passed over."""
    found = _load_all(paths.probes / "links", LinkProfile)
    return tuple(sorted(found, key=lambda x: x.probed_at or "", reverse=True))


def load_link(paths: Paths, a: str, b: str) -> LinkProfile | None:
    """The newest profile of the link from `a` to `b`, turned round where it was probed so."""
    for link in list_links(paths):
        if (link.a, link.b) == (a, b):
            return link
        if (link.a, link.b) == (b, a):
            return turned(link)
    return None


def turned(link: LinkProfile) -> LinkProfile:
    """The same link seen from its other end."""
    ways = tuple(
        msgspec.structs.replace(
            way,
            address_a=way.address_b,
            address_b=way.address_a or "",
            interface_a=way.interface_b,
            interface_b=way.interface_a,
        )
        for way in link.ways
    )
    return msgspec.structs.replace(
        link,
        a=link.b,
        b=link.a,
        a_to_b=link.b_to_a,
        b_to_a=link.a_to_b,
        streams_a_to_b=link.streams_b_to_a,
        streams_b_to_a=link.streams_a_to_b,
        zmq_a_to_b=link.zmq_b_to_a,
        zmq_b_to_a=link.zmq_a_to_b,
        encrypted_a_to_b=link.encrypted_b_to_a,
        encrypted_b_to_a=link.encrypted_a_to_b,
        busy_a_to_b=link.busy_b_to_a,
        busy_b_to_a=link.busy_a_to_b,
        interface_a=link.interface_b,
        interface_b=link.interface_a,
        address_a=link.address_b,
        address_b=link.address_a,
        mtu_a=link.mtu_b,
        mtu_b=link.mtu_a,
        kind_a=link.kind_b,
        kind_b=link.kind_a,
        ways=ways,
    )


def _file(*keys: str) -> str:
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:24] + ".toml"


def _save(path: Path, value: _Kept) -> _Kept:
    write_atomically(path, tomli_w.dumps(_without_none(msgspec.to_builtins(value))).encode())
    return value


def _without_none(value: Any) -> Any:
    """TOML has no null: what is None is left out, and its default brings it back."""
    if isinstance(value, dict):
        kept = {k: _without_none(v) for k, v in value.items() if v is not None}
        if "why" in kept and value.get("value", 0) is None:
            kept["value"] = "unknown"
        return kept
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value]
    return value


def _with_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            k: None if k == "value" and v == "unknown" else _with_none(v) for k, v in value.items()
        }
    if isinstance(value, list):
        return [_with_none(item) for item in value]
    return value


def _load_all(folder: Path, kind: type[_Kept]) -> list[_Kept]:
    files = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    return [found for file in files if (found := _load(file, kind)) is not None]


def _load(file: Path, kind: type[_Kept]) -> _Kept | None:
    try:
        raw = msgspec.toml.decode(file.read_bytes())
        return msgspec.convert(_with_none(raw), kind)
    except (OSError, msgspec.MsgspecError):
        return None
