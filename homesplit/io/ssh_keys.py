"""The user's private keys: which are locked by a passphrase, and how they are opened."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
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
    certificates: tuple[asyncssh.SSHCertificate, ...] = ()
    """Authorities' certificates that lie beside key files, as `ssh` takes them."""

    @property
    def data(self) -> frozenset[bytes]:
        """The public halves of all that were found."""
        files = [f.with_name(f.name + ".pub") for f in self.locked]
        return frozenset(
            [*(key.public_data for key in self.open), *_public_data([*files, *self.public])]
        )


def find_keys(identity_files: Sequence[str], certificate_files: Sequence[str] = ()) -> FoundKeys:
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
        certificates=tuple(_certificates(paths, certificate_files)),
    )


def _certificates(keys: Sequence[Path], named: Sequence[str]) -> Iterator[asyncssh.SSHCertificate]:
    """Those named, then those beside keys; one that can't be read is passed over, as by `ssh`."""
    beside = [path.with_name(path.name + "-cert.pub") for path in keys]
    for path in [*(Path(name).expanduser() for name in named), *beside]:
        with contextlib.suppress(OSError, ValueError, asyncssh.KeyImportError):
            yield asyncssh.read_certificate(path)


def in_order(
    of_agent: Sequence[asyncssh.SSHKeyPair], opened: Sequence[asyncssh.SSHKey], found: FoundKeys
) -> list[asyncssh.SSHKey | asyncssh.SSHKeyPair]:
    """What is offered first to last, each key once.

    A server hears only a few: the keys of the user's files come before the agent's others.
    """
    own = found.data
    first = [pair for pair in of_agent if pair.public_data in own]
    held = {pair.public_data for pair in first}
    files = [key for key in opened if key.public_data not in held]
    return [*first, *files, *(pair for pair in of_agent if pair not in first)]


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
