"""Every profile that can be named, with where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from homesplit.core.profile_names import plain
from homesplit.errors import HomesplitError
from homesplit.io.paths import Paths
from homesplit.io.profiles import Kind, find, names, read_toml

KINDS: tuple[Kind, ...] = ("hardware", "links", "models", "workloads")


class Listed(Struct, frozen=True, kw_only=True):
    """One profile by the name that is typed; `why` says what is wrong with its file."""

    name: str
    full_name: str
    aliases: tuple[str, ...] = ()
    own: bool
    path: str
    source: str | None = None
    date: str | None = None
    why: str | None = None

    def holds(self, text: str) -> bool:
        """Whether one of its names holds `text`, however it is written."""
        wanted = plain(text)
        return any(wanted in plain(name) for name in (self.name, self.full_name, *self.aliases))


def listed(kind: Kind, paths: Paths) -> tuple[Listed, ...]:
    """The user's own first; one that hides a built-in of its name stands for it."""
    return tuple(_listed(find(kind, name, paths), paths) for name in names(kind, paths))


def _listed(path: Path, paths: Paths) -> Listed:
    own = path.is_relative_to(paths.user_profiles)
    try:
        held: dict[str, Any] = read_toml(path)
    except HomesplitError as error:
        return Listed(name=path.stem, full_name="", own=own, path=str(path), why=error.what)
    aliases: Any = held.get("aliases")
    return Listed(
        name=path.stem,
        full_name=str(held.get("name", path.stem)),
        aliases=tuple(map(str, aliases)) if isinstance(aliases, list) else (),
        own=own,
        path=str(path),
        source=_text(held, "source"),
        date=_text(held, "date"),
    )


def _text(held: dict[str, Any], key: str) -> str | None:
    return str(held[key]) if key in held else None
