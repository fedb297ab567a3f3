"""Tries each address at which a machine may be: its SSH host key, or why none came."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncssh

from homesplit.core.found import NO_ZONE, Hint, Tried, address_trouble, lacks_zone
from homesplit.errors import HomesplitError
from homesplit.io import known_hosts, ssh_config, ssh_errors
from homesplit.io.discovery import PROXY_COMMAND, jumps, own_addresses
from homesplit.io.target import split_target

_TRY_S = 4.0
_HANDSHAKE_S = 12.0
"""A box that is busy, or small, takes its time for the key exchange."""
_AT_ONCE = 16


_Way = tuple[str, int, str | None]


class Knocker:
    """Asks addresses for their SSH host keys; one that answered is left in peace for `rest_s`.

    A server counts who comes and goes without logging in: OpenSSH since 9.8 shuts such a machine
    out for a while (PerSourcePenalties).
    """

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._heard: dict[_Way, tuple[float, Tried]] = {}

    async def try_hints(self, hints: Sequence[Hint], trust_files: Sequence[Path]) -> list[Tried]:
        """Ask each address once, several at a time, each with a deadline."""
        now = asyncio.get_running_loop().time()
        kept = {w: t for w, (at, t) in self._heard.items() if now - at < self._rest_s}
        fresh = [h for h in hints if h.trouble is None and _way(h) not in kept]
        told = kept | await _try_all(fresh, trust_files)
        answered = {w: t for w, t in told.items() if t.host_key is not None}
        self._heard = {w: self._heard[w] if w in kept else (now, t) for w, t in answered.items()}
        return [
            Tried(hint=hint, why=hint.trouble) if hint.trouble else _of(hint, told[_way(hint)])
            for hint in hints
        ]


async def try_hints(hints: Sequence[Hint], trust_files: Sequence[Path]) -> list[Tried]:
    """Ask each address once for its SSH host key, several at a time, each with a deadline."""
    return await Knocker(0.0).try_hints(hints, trust_files)


async def _try_all(hints: Sequence[Hint], trust_files: Sequence[Path]) -> dict[_Way, Tried]:
    slots = asyncio.Semaphore(_AT_ONCE)
    unique: dict[_Way, asyncio.Task[Tried]] = {}

    async def one(hint: Hint) -> Tried:
        async with slots:
            return await _try(hint, trust_files)

    for hint in hints:
        if _way(hint) not in unique:
            unique[_way(hint)] = asyncio.create_task(one(hint))
    await asyncio.gather(*unique.values())
    return {way: task.result() for way, task in unique.items()}


def _way(hint: Hint) -> _Way:
    return hint.address, hint.port, hint.through


def _of(hint: Hint, tried: Tried) -> Tried:
    if hint.host_key and tried.host_key not in (None, hint.host_key):
        return Tried(hint=hint, why="another machine, or this one installed afresh, answers there")
    return Tried(
        hint=hint,
        host_key=tried.host_key,
        trusted=tried.trusted,
        interface=tried.interface,
        why=tried.why,
    )


async def _try(hint: Hint, trust_files: Sequence[Path]) -> Tried:
    if hint.through is not None:
        return await _try_over(hint, hint.through, trust_files)
    address = hint.address
    if lacks_zone(address):
        return Tried(hint=hint, why=NO_ZONE)
    if hint.found_by.startswith(("ssh config", "typed")):
        resolved = await _resolve_name(address)
        if resolved is None:
            return Tried(hint=hint, why=f"the name {address} is known to nobody here")
        address = resolved
    elif trouble := address_trouble(address, hint.port):
        return Tried(hint=hint, why=trouble)
    names = [known_hosts.lookup_name(n, hint.port) for n in (hint.address, address, hint.name)]
    entries = known_hosts.entries_for(trust_files, names)
    limit_s = _TRY_S
    try:
        async with asyncio.timeout(limit_s):
            sock = await _connected(address, hint.port)
        limit_s = _HANDSHAKE_S
        async with asyncio.timeout(limit_s):
            key = await asyncssh.get_server_host_key(
                address,
                hint.port,
                sock=sock,
                config=None,
                server_host_key_algs=known_hosts.algorithms(entries),
            )
    except (OSError, asyncssh.Error, TimeoutError, ValueError) as error:
        at = f"{address}:{hint.port}"
        why = ssh_errors.sentence(ssh_errors.many_errors(error), at=at, seconds=limit_s)[0]
        return Tried(hint=hint, why=why)
    if key is None:
        return Tried(hint=hint, why="it showed no SSH host key")
    trusted = any(e.key == key and e.marker is None for e in entries)
    interface = await asyncio.to_thread(_interface_to, address, hint.port)
    return Tried(hint=hint, host_key=key.get_fingerprint(), trusted=trusted, interface=interface)


async def _try_over(hint: Hint, through: str, trust_files: Sequence[Path]) -> Tried:
    """What lies behind a jump host is asked for its key when it is used; the first hop is tried."""
    if through == PROXY_COMMAND:
        return Tried(hint=hint)
    hop = through.split(",")[0]
    try:
        user, host, port = split_target(hop)
        options = await asyncssh.SSHClientConnectionOptions.construct(
            host=host, config=_config(), client_keys=None
        )
    except (OSError, ValueError, asyncssh.Error, HomesplitError) as error:
        return Tried(hint=hint, why=f"its jump host {hop} can't be understood: {error}")
    if options.proxy_command or jumps(options.tunnel):
        return Tried(hint=hint)
    first = Hint(
        name=host,
        address=options.host,
        port=port or options.port,
        found_by="ssh config",
        user=user,
    )
    tried = await _try(first, trust_files)
    return Tried(hint=hint, why=f"its jump host {hop}: {tried.why}" if tried.why else None)


def _config() -> list[str]:
    path = ssh_config.config_path()
    return [str(path)] if path else []


async def _connected(address: str, port: int) -> socket.socket:
    """A connection that stands; a machine that is there gets more time to show its key."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    family, _, _, _, where = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise
    return sock


async def _resolve_name(host: str) -> str | None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_TRY_S):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return None
    return scoped(str(found[0][4][0]), *found[0][4][1:]) if found else None


def scoped(address: str, *where: Any) -> str:
    """An address as it can be dialled: a link-local one with its interface."""
    zone = where[-1] if len(where) == 3 else 0
    with contextlib.suppress(OSError):
        return f"{address}%{socket.if_indextoname(zone)}" if zone else address
    return address


def _interface_to(address: str, port: int) -> str | None:
    """The interface that a packet to `address` leaves by (nothing is sent)."""
    with contextlib.suppress(OSError):
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(where)
            local = sock.getsockname()[0]
        for name, addresses in own_addresses().items():
            if local in (a.partition("%")[0] for a in addresses):
                return name
    return None
