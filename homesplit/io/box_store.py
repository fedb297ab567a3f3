"""Boxes met before, by name: where they were, whose key they had, as whom to log in."""

from __future__ import annotations

from pathlib import Path

import msgspec
import tomli_w
from msgspec import Struct

from homesplit.io.atomic import write_atomically
from homesplit.io.paths import Paths

MOST_BOXES = 256
"""Kept at most: whoever shows a new key at every look must not fill the disk."""


class KnownBox(Struct, frozen=True, kw_only=True):
    """One box as it was last met."""

    name: str
    host_key: str
    addresses: tuple[str, ...] = ()
    port: int = 22
    user: str | None = None
    used_at: str | None = None


class _File(Struct, frozen=True, kw_only=True):
    box: tuple[KnownBox, ...] = ()


def boxes_file(paths: Paths) -> Path:
    """The file of boxes met before."""
    return paths.data / "boxes.toml"


def load_boxes(paths: Paths) -> tuple[KnownBox, ...]:
    """All boxes met before; a missing or broken file gives none."""
    try:
        return msgspec.toml.decode(boxes_file(paths).read_bytes(), type=_File).box
    except (OSError, msgspec.MsgspecError):
        return ()


def find_box(paths: Paths, name: str) -> KnownBox | None:
    """The box met before under this name or host key."""
    return next((b for b in load_boxes(paths) if name in (b.name, b.host_key)), None)


def remember_box(paths: Paths, box: KnownBox) -> None:
    """Keep a box, in the place of an older record of the same name or key.

    Past the bound the oldest one goes that nobody ever logged in to, else the oldest of all.
    """
    others = [b for b in load_boxes(paths) if b.name != box.name and b.host_key != box.host_key]
    while len(others) >= MOST_BOXES:
        others.remove(next((b for b in others if b.user is None), others[0]))
    tables = [_table(b) for b in [*others, box]]
    write_atomically(boxes_file(paths), tomli_w.dumps({"box": tables}).encode())


def _table(box: KnownBox) -> dict[str, object]:
    raw = msgspec.to_builtins(box)
    return {key: value for key, value in raw.items() if value is not None}
