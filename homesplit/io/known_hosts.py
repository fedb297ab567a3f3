"""Which SSH host keys are trusted: the user's files are read, only our own is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

from homesplit.io.atomic import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key that a known_hosts file holds for a host."""

    file: Path
    line: int
    key: asyncssh.SSHKey
    marker: str | None = None
    """`cert-authority`, `revoked` or None."""

    @property
    def fingerprint(self) -> str:
        """SHA256 fingerprint of the key."""
        return self.key.get_fingerprint()


def lookup_name(host: str, port: int) -> str:
    """The form in which known_hosts names a host: bare on port 22, else `[host]:port`."""
    return host if port == 22 else f"[{host}]:{port}"


def entries_for(files: Sequence[Path], names: Sequence[str]) -> list[Entry]:
    """All entries of `files` that stand for one of `names` (see `lookup_name`).

    A line that can't be understood is passed over, as OpenSSH does.
    """
    found: list[Entry] = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            entry = _entry(file, number, line, names)
            if entry is not None:
                found.append(entry)
    return found


_ORDER = (b"ssh-ed25519", b"ecdsa-", b"sk-", b"rsa-sha2-512", b"rsa-sha2-256", b"ssh-rsa")
"""Kinds of host key, those that OpenSSH asks for first. asyncssh alone would begin with RSA."""


def algorithms(entries: Sequence[Entry]) -> list[str]:
    """What kinds of host key to ask a server for, first to last: those of known keys first.

    So a server with several keys shows one that is known, and every time the same.
    """
    known = {alg for e in entries if e.marker is None for alg in e.key.sig_algorithms}
    certified = any(e.marker == "cert-authority" for e in entries)

    def place(kind: bytes) -> tuple[bool, int]:
        ranks = (at for at, start in enumerate(_ORDER) if kind.startswith(start))
        return kind not in known, next(ranks, len(_ORDER))

    kinds = [*(get_default_certificate_algs() if certified else ())]
    kinds += sorted(get_default_public_key_algs(), key=place)
    return [kind.decode() for kind in kinds]


def entries_of(files: Sequence[Path], fingerprint: str) -> list[Entry]:
    """Entries without a marker that hold the key of that fingerprint, under whatever name."""
    found: list[Entry] = []
    for file in files:
        for number, key in _plain_keys(file):
            if key.get_fingerprint() == fingerprint:
                found.append(Entry(file=file, line=number, key=key))
    return found


def of_machine(entries: Sequence[Entry], fingerprint: str) -> list[Entry]:
    """Without the keys of other machines, which had the same address at another time.

    A machine has one key of each kind: another one beside its own is not its.
    """
    own = {
        e.key.get_algorithm() for e in entries if e.marker is None and e.fingerprint == fingerprint
    }
    return [
        entry
        for entry in entries
        if entry.marker is not None
        or entry.fingerprint == fingerprint
        or (own and entry.key.get_algorithm() not in own)
    ]


def _plain_keys(file: Path) -> list[tuple[int, asyncssh.SSHKey]]:
    found: list[tuple[int, asyncssh.SSHKey]] = []
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return found
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if len(words) < 3 or words[0][:1] in "#@":
            continue
        try:
            found.append((number, asyncssh.import_public_key(" ".join(words[1:3]))))
        except (ValueError, asyncssh.KeyImportError):
            continue
    return found


def _entry(file: Path, number: int, line: str, names: Sequence[str]) -> Entry | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    try:
        hosts = asyncssh.import_known_hosts(line)
        for name in names:
            keys, authorities, revoked = hosts.match(name, "", None)[:3]
            for marker, those in (
                (None, keys),
                ("cert-authority", authorities),
                ("revoked", revoked),
            ):
                if those:
                    return Entry(file=file, line=number, key=those[0], marker=marker)
    except (ValueError, asyncssh.KeyImportError):
        return None
    return None


def remember(file: Path, names: Sequence[str], key: asyncssh.SSHKey) -> None:
    """Add a key to our own file (mode 0600), once."""
    if any(e.key == key for e in entries_for([file], names) if e.marker is None):
        return
    algorithm, data = key.export_public_key().decode().split()[:2]
    line = f"{','.join(dict.fromkeys(names))} {algorithm} {data}\n"
    before = file.read_text(errors="replace") if file.exists() else ""
    if before and not before.endswith("\n"):
        before += "\n"
    write_atomically(file, (before + line).encode(), mode=0o600)


def default_files() -> list[Path]:
    """The user's and the system's known_hosts files."""
    home = Path.home() / ".ssh"
    return [home / "known_hosts", home / "known_hosts2", Path("/etc/ssh/ssh_known_hosts")]


def removal_command(entry: Entry, name: str) -> str:
    """The one command that takes `name` out of the entry's file."""
    return f"ssh-keygen -R '{name}' -f '{os.fspath(entry.file)}'"
