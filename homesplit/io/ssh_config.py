"""The user's own ssh configuration: which file, and which hosts it names."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

_MOST_FILES = 64


def config_path() -> Path | None:
    """The ssh configuration that holds here: `HOMESPLIT_SSH_CONFIG`, else ~/.ssh/config."""
    own = os.environ.get("HOMESPLIT_SSH_CONFIG")
    path = Path(own).expanduser() if own else Path.home() / ".ssh" / "config"
    return path if own or (path.is_file() and os.access(path, os.R_OK)) else None


def host_aliases(path: Path | None) -> tuple[str, ...]:
    """Every name on a Host line without wildcards, in the file's order, Include followed."""
    if path is None:
        return ()
    seen: dict[str, None] = {}
    files = [path]
    for at in range(_MOST_FILES):
        if at >= len(files):
            break
        for word, values in _lines(files[at]):
            if word == "host":
                seen.update((v, None) for v in values if not set(v) & set("*?!"))
            elif word == "include":
                files += [f for v in values for f in _included(v, path) if f not in files]
    return tuple(seen)


def _lines(path: Path) -> list[tuple[str, list[str]]]:
    """Keyword (lower case) and values of each line; an unreadable file or line gives none."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        try:
            words = shlex.split(line.replace("=", " ", 1), comments=True)
        except ValueError:
            continue
        if len(words) > 1:
            found.append((words[0].lower(), words[1:]))
    return found


def _included(pattern: str, config: Path) -> list[Path]:
    """Files of an Include, relative ones beside the configuration as OpenSSH has it."""
    path = Path(pattern).expanduser()
    base = path.parent if path.is_absolute() else config.parent / path.parent
    try:
        return sorted(p for p in base.glob(path.name) if p.is_file())
    except (OSError, ValueError):
        return []
