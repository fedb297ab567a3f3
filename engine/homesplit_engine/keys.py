"""CURVE keys of a deployment: made afresh, one file per process, readable by its owner only."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from homesplit_engine.config import ConfigError, Keys, load

ROUTER = "router"
"""The router's name among the keys; no box may be called so."""


def make_keys(boxes: Sequence[str]) -> dict[str, Keys]:
    """Fresh keys for the router and each box, by name; each lets in all the others and no one else.

    Raises ConfigError when two names are alike or one is the router's.
    """
    names = [ROUTER, *boxes]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"every box needs a name of its own, none {ROUTER!r}: got {', '.join(boxes)}"
        )
    pairs = {name: _key_pair() for name in names}
    public = {name: pair[0] for name, pair in pairs.items()}
    return {
        name: Keys(
            name=name,
            public=pair[0],
            secret=pair[1],
            allowed={peer: key for peer, key in public.items() if peer != name},
        )
        for name, pair in pairs.items()
    }


def _key_pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode("ascii"), secret.decode("ascii")


def write_keys(path: Path, keys: Keys) -> None:
    """Write one process's keys with mode 0600; an older file is replaced as a whole."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(keys))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read_keys(path: Path) -> Keys:
    """One process's keys; raises ConfigError when missing, malformed or readable by others."""
    refuse_if_readable_by_others(path)
    keys = load(path, Keys)
    wrong = [name for name, key in _all_keys(keys) if not is_key(key)]
    if wrong:
        raise ConfigError(f"{path}: the key of {wrong[0]} is not 40 characters of Z85")
    if keys.name != ROUTER and ROUTER not in keys.allowed:
        raise ConfigError(f"{path}: lets no router in, so nobody could ask {keys.name} anything")
    return keys


def is_key(text: str) -> bool:
    """Whether this can be a CURVE key: 40 characters of Z85."""
    try:
        return len(text) == 40 and len(z85.decode(text.encode("ascii"))) == 32
    except (ValueError, KeyError, struct.error):
        return False


def refuse_if_readable_by_others(path: Path) -> None:
    """Raise ConfigError when a secret's file is missing or open to its group or to others."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(
            f"{path}: holds a secret but has mode {mode:04o}; make it yours alone: chmod 600 {path}"
        )


def _all_keys(keys: Keys) -> list[tuple[str, str]]:
    own = [("this process", keys.public), ("this process's secret", keys.secret)]
    return own + list(keys.allowed.items())
