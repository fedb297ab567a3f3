"""The user's private keys: which are locked by a passphrase, and how they are opened."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

_DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk", "id_dsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKeys:
    """Key files in the order they are offered; `locked` ones need a passphrase."""

    open: tuple[asyncssh.SSHKey, ...]
    open_files: tuple[Path, ...]
    locked: tuple[Path, ...]
    public: tuple[Path, ...] = ()
    """Public keys whose private half only the agent has."""
    broken: tuple[str, ...] = ()
    """One sentence for each key file that can't be used."""


def find_keys(identity_files: Sequence[str]) -> FoundKeys:
    """Read the named identity files, or the usual ones in ~/.ssh when none are named."""
    named = [Path(name).expanduser() for name in identity_files]
    paths = named or [Path.home() / ".ssh" / name for name in _DEFAULT_NAMES]
    opened: list[tuple[Path, asyncssh.SSHKey]] = []
    locked: list[Path] = []
    broken: list[str] = []
    public: list[Path] = []
    for path in paths:
        if (half := _public_half(path)) is not None:
            public.append(half)
            continue
        if not path.is_file():
            if named:
                broken.append(f"the key file {path} does not exist")
            continue
        try:
            opened.append((path, asyncssh.read_private_key(path)))
        except asyncssh.KeyEncryptionError:
            locked.append(path)
        except asyncssh.KeyImportError as error:
            if "passphrase" in str(error).lower():
                locked.append(path)
            else:
                broken.append(f"the key file {path} can't be read as a private key")
        except OSError as error:
            broken.append(f"the key file {path} can't be read ({error.strerror})")
    return FoundKeys(
        open=tuple(key for _, key in opened),
        open_files=tuple(path for path, _ in opened),
        locked=tuple(locked),
        public=tuple(public),
        broken=tuple(broken),
    )


@contextlib.asynccontextmanager
async def agent_keys(
    path: str, only: Sequence[Path] | None
) -> AsyncGenerator[list[asyncssh.SSHKeyPair]]:
    """The agent's keys, those of `only`'s public keys if given; usable while the block lasts.

    No agent, or one that doesn't answer properly, gives none.
    """
    wanted = None if only is None else _public_data(only)
    if not path or wanted == []:
        yield []
        return
    try:
        agent = await asyncssh.connect_agent(path)
    except (OSError, asyncssh.Error):
        yield []
        return
    try:
        try:
            found = list(await agent.get_keys(wanted))
        except (OSError, ValueError):
            found = []
        yield found
    finally:
        agent.close()


def _public_data(files: Sequence[Path]) -> list[bytes]:
    found: list[bytes] = []
    for file in files:
        with contextlib.suppress(OSError, asyncssh.KeyImportError):
            found.append(asyncssh.read_public_key(file).public_data)
    return found


def _public_half(path: Path) -> Path | None:
    """The public key that an identity stands for: itself, or beside it when it isn't there."""
    half = path if path.suffix == ".pub" else path.with_name(path.name + ".pub")
    alone = path == half or not path.exists()
    return half if alone and half.is_file() else None


def unlock(path: Path, passphrase: str) -> asyncssh.SSHKey | None:
    """The key, or None when the passphrase is wrong."""
    try:
        return asyncssh.read_private_key(path, passphrase)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        return None
