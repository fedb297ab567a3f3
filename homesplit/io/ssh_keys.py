"""The user's private keys: which are locked by a passphrase, and how they are opened."""

from __future__ import annotations

from collections.abc import Sequence
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
    broken: tuple[str, ...]
    """One sentence for each key file that can't be used."""


def find_keys(identity_files: Sequence[str]) -> FoundKeys:
    """Read the named identity files, or the usual ones in ~/.ssh when none are named."""
    named = [Path(name).expanduser() for name in identity_files]
    paths = named or [Path.home() / ".ssh" / name for name in _DEFAULT_NAMES]
    opened: list[tuple[Path, asyncssh.SSHKey]] = []
    locked: list[Path] = []
    broken: list[str] = []
    for path in paths:
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
        broken=tuple(broken),
    )


def unlock(path: Path, passphrase: str) -> asyncssh.SSHKey | None:
    """The key, or None when the passphrase is wrong."""
    try:
        return asyncssh.read_private_key(path, passphrase)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
        return None
