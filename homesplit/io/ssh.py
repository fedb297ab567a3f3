"""Connections to boxes over SSH, with the user's own configuration, keys and known hosts.

    connections = Connections(paths=ctx.paths, ask=ctx.ask)
    box = await connections.connect("atlas")
    output = await box.run("uname -sm")
    await connections.close()

A name is, in this order: this machine (its host name or `localhost`), a typed
`[user@]host:port`, a Host of the user's ssh configuration, a box met before, a host name.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import asyncssh
from msgspec.structs import replace

from homesplit.errors import HomesplitError, TrustError, UnreachableError, UsageError
from homesplit.io import known_hosts, ssh_config, ssh_errors, ssh_keys
from homesplit.io.box import Box, Forward, Pipes
from homesplit.io.box_store import KnownBox, find_box, remember_box
from homesplit.io.local_box import LocalBox
from homesplit.io.paths import Paths
from homesplit.io.relocate import find_again
from homesplit.io.shell import COMMAND
from homesplit.io.target import split_target

CONNECT_S = 10.0
"""Deadline of one attempt to connect and log in, without the time a person takes to answer."""
_SECRET_TRIES = 3
_KEEPALIVE_S = 15
_KEEPALIVE_MISSED = 3


class Ask(Protocol):
    """Questions that only the person can answer (`stages.context.Ask` has this shape)."""

    async def trust_host_key(self, box: str, fingerprint: str) -> bool: ...
    async def secret(self, prompt: str) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """How one attempt goes: where to, as whom, over which jump hosts, with which keys."""

    box: str
    host: str
    port: int
    user: str
    jump: str | None
    proxy_command: Any
    alias: str | None
    identities: tuple[str, ...]
    identities_only: bool
    agent_path: str
    trust_files: tuple[Path, ...]
    host_key: str | None = None
    """Fingerprint of the key that this box must show, wherever it is."""
    config: list[str] = field(default_factory=list[str])

    @property
    def at(self) -> str:
        return f"{self.host}:{self.port}"

    def names(self, address: str | None) -> list[str]:
        """What known_hosts may call this host."""
        hosts = [self.alias or self.host] + ([address] if address else [])
        return list(dict.fromkeys(known_hosts.lookup_name(h, self.port) for h in hosts))


class Connections:
    """All connections of one run; made once, reused by name, closed together."""

    def __init__(self, *, paths: Paths, ask: Ask, connect_s: float = CONNECT_S) -> None:
        self._paths = paths
        self._ask = ask
        self._connect_s = connect_s
        self._boxes: dict[str, Box] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._asking = asyncio.Lock()

    async def __aenter__(self) -> Connections:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, target: str) -> Box:
        """The box of that name, over the connection it has already or a new one.

        Raises UnreachableError, TrustError or UsageError, each with one clear sentence.
        """
        async with self._locks.setdefault(target, asyncio.Lock()):
            box = self._boxes.get(target)
            if box is not None and not _is_closed(box):
                return box
            self._boxes[target] = box = await self._connect(target)
            return box

    async def close(self) -> None:
        """Close every connection."""
        boxes, self._boxes = list(self._boxes.values()), {}
        await asyncio.gather(*(box.close() for box in boxes), return_exceptions=True)

    async def _connect(self, target: str) -> Box:
        if not target or target.startswith("-") or any(c.isspace() for c in target):
            raise UsageError(f"{target!r} can't be the name of a box.")
        if is_this_machine(target):
            return LocalBox(target)
        known, user = self._known(target)
        if known is None:
            return await self._login(await self._route(target, target))
        return await self._connect_known(replace(known, user=user or known.user))

    def _known(self, target: str) -> tuple[KnownBox | None, str | None]:
        """The box met before that `name` or `user@name` means, and that user."""
        user, host, port = split_target(target)
        if port is not None or host in ssh_config.host_aliases(ssh_config.config_path()):
            return None, user
        return find_box(self._paths, host), user

    async def _connect_known(self, known: KnownBox) -> Box:
        """Try the addresses a box was met at, then look for its host key in the network."""
        failures: list[HomesplitError] = []
        for address in known.addresses:
            try:
                return await self._login_at(known, address, known.port)
            except (_RefusedError, _DeclinedError):
                raise
            except (UnreachableError, TrustError) as error:
                failures.append(error)
        moved = await find_again(known.host_key)
        if moved is not None and moved[0] not in known.addresses:
            box = await self._login_at(known, *moved)
            met = replace(known, addresses=(moved[0],), port=moved[1])
            await asyncio.to_thread(remember_box, self._paths, met)
            return box
        if failures:
            raise next((e for e in failures if isinstance(e, TrustError)), failures[0])
        return await self._login(await self._route(known.name, known.name))

    async def _login_at(self, known: KnownBox, address: str, port: int) -> SshBox:
        """Log in at one address, as the box whose key is known."""
        where = f"{known.user}@" if known.user else ""
        route = await self._route(known.name, f"{where}[{address}]:{port}")
        return await self._login(
            dataclasses.replace(route, alias=known.name, host_key=known.host_key)
        )

    async def _route(self, box: str, target: str) -> _Route:
        """Work out the route by the user's ssh configuration."""
        user, host, port = split_target(target)
        path = ssh_config.config_path()
        config = [str(path)] if path else []
        try:
            options = await asyncssh.SSHClientConnectionOptions.construct(
                host=host, config=config, client_keys=None, **_given(user=user, port=port)
            )
        except (OSError, ValueError, asyncssh.Error) as error:
            raise UsageError(
                f"the ssh configuration {path} can't be used: {error}.",
                do_next="Correct that line, or try `ssh -G HOST` to see it.",
            ) from error
        own: Any = options.config
        files = _paths(own, "UserKnownHostsFile") + _paths(own, "GlobalKnownHostsFile")
        return _Route(
            box=box,
            host=options.host,
            port=options.port,
            user=options.username,
            jump=options.tunnel if isinstance(options.tunnel, str) else None,
            proxy_command=options.proxy_command,
            alias=options.host_key_alias,
            identities=tuple(str(f) for f in own.get("IdentityFile", ())),
            identities_only=bool(own.get("IdentitiesOnly", False)),
            agent_path=_agent_path(own),
            trust_files=(*(files or known_hosts.default_files()), self._paths.known_hosts),
            config=config,
        )

    async def _login(
        self, route: _Route, depth: int = 0, *, tunnel: SshBox | None = None
    ) -> SshBox:
        """Connect over `tunnel`, or the jump hosts if there are any; settle trust, then log in."""
        if tunnel is None and route.jump not in (None, "none"):
            tunnel = await self._jump(route, depth)
        try:
            return await self._login_over(route, tunnel)
        except BaseException:
            if tunnel is not None:
                await tunnel.close()
            raise

    async def _login_over(self, route: _Route, tunnel: SshBox | None) -> SshBox:
        """One attempt after another until it is let in or nothing is left to try."""
        keys = await asyncio.to_thread(ssh_keys.find_keys, route.identities)
        attempt = _Attempt(route, tunnel, self._connect_s)
        secrets_left = _SECRET_TRIES
        unlocked: list[asyncssh.SSHKey] = []
        password: str | None = None
        while True:
            outcome = await attempt.make([*unlocked, *keys.open], keys, password)
            if isinstance(outcome, asyncssh.SSHClientConnection):
                return SshBox(route.box, route, outcome, tunnel)
            if outcome == "untrusted":
                await self._settle_trust(route, attempt)
                continue
            key = await self._unlock_one(route, keys, unlocked)
            if key is not None:
                unlocked.insert(0, key)
                continue
            if not attempt.takes_password or secrets_left == 0:
                raise _refused(route, keys, password is not None)
            secrets_left -= 1
            password = await self._secret(f"Password of {route.user} on {route.box}: ")
            if password is None:
                raise _refused(route, keys, False)

    async def _jump(self, route: _Route, depth: int) -> SshBox:
        """The last of the jump hosts, each reached over the one before."""
        if depth > 8:
            raise UsageError(f"the jump hosts of {route.box} lead in a circle.")
        last: SshBox | None = None
        for hop in str(route.jump).split(","):
            hop_route = await self._route(hop, hop)
            hop_route = dataclasses.replace(hop_route, jump=None) if last else hop_route
            try:
                last = await self._login(hop_route, depth + 1, tunnel=last)
            except UnreachableError as error:
                raise UnreachableError(
                    f"its jump host {hop} does not let us through: {error.what}",
                    where=route.box,
                    do_next=error.do_next,
                ) from error
        if last is None:
            raise UsageError(f"the ssh configuration names an empty ProxyJump for {route.box}.")
        return last

    async def _settle_trust(self, route: _Route, attempt: _Attempt) -> None:
        """Ask once about an unknown key and keep the answer; refuse a changed one."""
        key, address = attempt.offered_key, attempt.address
        if key is None:
            raise UnreachableError(f"{route.at} showed no host key.", where=route.box)
        names = route.names(address)
        entries = known_hosts.entries_for(route.trust_files, names)
        for entry in entries:
            if entry.key == key and entry.marker == "revoked":
                raise TrustError(
                    f"its host key {entry.fingerprint} is revoked in {entry.file}, "
                    f"line {entry.line}.",
                    where=route.box,
                )
        changed = [e for e in entries if e.marker is None and e.key != key]
        if changed:
            raise _changed(route, key, changed, names)
        if route.host_key is not None and key.get_fingerprint() != route.host_key:
            raise TrustError(
                f"another machine than before answers at {route.at}: it shows "
                f"{key.get_fingerprint()}, not {route.host_key}.",
                where=route.box,
                do_next="Run `homesplit discover` to see who is where now.",
            )
        async with self._asking:
            trusted = await self._ask.trust_host_key(route.box, key.get_fingerprint())
        if not trusted:
            raise _DeclinedError(
                f"its host key {key.get_fingerprint()} is not known here.",
                where=route.box,
                do_next="Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on "
                "the box, then accept it in homesplit, or log in once with `ssh`.",
            )
        await asyncio.to_thread(known_hosts.remember, self._paths.known_hosts, names, key)

    async def _unlock_one(
        self, route: _Route, keys: ssh_keys.FoundKeys, unlocked: Sequence[asyncssh.SSHKey]
    ) -> asyncssh.SSHKey | None:
        """The next locked key, opened by the person's passphrase; None when there is none."""
        if len(unlocked) >= len(keys.locked):
            return None
        path = keys.locked[len(unlocked)]
        for _ in range(_SECRET_TRIES):
            passphrase = await self._secret(f"Passphrase of {path} (for {route.box}): ")
            if passphrase is None:
                return None
            key = await asyncio.to_thread(ssh_keys.unlock, path, passphrase)
            if key is not None:
                return key
        raise UnreachableError(
            f"the passphrase of {path} was wrong {_SECRET_TRIES} times.",
            where=route.box,
            do_next="Add the key to the agent with `ssh-add`, or try again.",
        )

    async def _secret(self, prompt: str) -> str | None:
        async with self._asking:
            return await self._ask.secret(prompt)


class _Attempt:
    """One attempt after another along a route; remembers the key and methods it was shown."""

    def __init__(self, route: _Route, tunnel: SshBox | None, seconds: float) -> None:
        self._route = route
        self._tunnel = tunnel
        self._seconds = seconds
        self.offered_key: asyncssh.SSHKey | None = None
        self.address: str | None = None
        self.takes_password = False

    async def make(
        self, open_keys: Sequence[asyncssh.SSHKey], keys: ssh_keys.FoundKeys, password: str | None
    ) -> asyncssh.SSHClientConnection | str:
        """A connection, `untrusted` or `refused`; raises UnreachableError."""
        route = self._route
        try:
            async with (
                asyncio.timeout(self._seconds),
                ssh_keys.agent_keys(*_agent_of(route, keys)) as of_agent,
            ):
                return await asyncssh.connect(**self._options([*of_agent, *open_keys], password))
        except asyncssh.HostKeyNotVerifiable:
            return "untrusted"
        except asyncssh.PermissionDenied:
            return "refused"
        except (OSError, asyncssh.Error, TimeoutError) as error:
            cause = ssh_errors.many_errors(error)
            at = route.at + (f" over {self._tunnel.name}" if self._tunnel else "")
            raise ssh_errors.told(cause, box=route.box, at=at, seconds=self._seconds) from error
        except ValueError as error:
            raise UsageError(f"the SSH set-up for {route.box} is wrong: {error}.") from error

    def _options(
        self, keys: Sequence[asyncssh.SSHKey | asyncssh.SSHKeyPair], password: str | None
    ) -> dict[str, Any]:
        route = self._route
        options: dict[str, Any] = {
            "host": route.host,
            "port": route.port,
            "username": route.user,
            "config": route.config,
            "tunnel": self._tunnel.connection if self._tunnel else None,
            "proxy_command": route.proxy_command,
            "host_key_alias": route.alias,
            "known_hosts": self._trusted,
            "client_factory": lambda: _Client(self),
            # An empty list would make asyncssh take the usual key files instead.
            "client_keys": list(keys) or None,
            "agent_path": None,
            "agent_identities": None,
            "keepalive_interval": _KEEPALIVE_S,
            "keepalive_count_max": _KEEPALIVE_MISSED,
            "login_timeout": self._seconds,
            "compression_algs": None,
        }
        if password is not None:
            options["password"] = password
        return options

    def _trusted(self, host: str, address: str, port: int | None) -> Sequence[Any]:
        """asyncssh asks which keys it may trust: host keys, authorities, revoked keys."""
        self.address = address or None
        route = self._route
        entries = known_hosts.entries_for(route.trust_files, route.names(address))
        if route.host_key is not None:
            # The same machine at an address where its key was never seen is still the same.
            entries += known_hosts.entries_of(route.trust_files, route.host_key)
        return [
            [e.key for e in entries if e.marker is None],
            [e.key for e in entries if e.marker == "cert-authority"],
            [e.key for e in entries if e.marker == "revoked"],
        ]


class _Client(asyncssh.SSHClient):
    """Tells an attempt which host key and which ways to log in it was shown."""

    def __init__(self, attempt: _Attempt) -> None:
        self._attempt = attempt

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self._attempt.offered_key = key
        return False

    def password_auth_requested(self) -> str | None:
        self._attempt.takes_password = True
        return None

    def kbdint_auth_requested(self) -> Any:
        self._attempt.takes_password = True
        return NotImplemented


class SshBox(Box):
    """A box over an SSH connection."""

    def __init__(
        self,
        name: str,
        route: _Route,
        connection: asyncssh.SSHClientConnection,
        tunnel: SshBox | None,
    ) -> None:
        self.name = name
        self.user = route.user
        self.port = route.port
        self.connection = connection
        self._tunnel = tunnel
        peer: Any = connection.get_extra_info("peername")
        self.address = str(peer[0]) if peer and not tunnel else route.host
        key = connection.get_server_host_key()
        self.host_key = key.get_fingerprint() if key else None

    async def _open(self) -> Pipes:
        try:
            process = await self.connection.create_process(COMMAND, encoding=None)
        except (OSError, asyncssh.Error) as error:
            raise UnreachableError(
                f"the connection broke: {error}.", where=self.name, do_next="Try again."
            ) from error

        async def wait() -> int | None:
            return (await process.wait(check=False)).exit_status

        def kill() -> None:
            with contextlib.suppress(OSError, asyncssh.Error):
                if process.exit_status is None:
                    process.terminate()
                process.close()

        async def end(done: bool) -> None:
            # The signal goes to the whole group, and so to what an ended script has just started.
            if done:
                process.close()
            else:
                kill()

        return Pipes(
            stdin=_Writing(process.stdin),
            stdout=_Reading(process.stdout),
            stderr=_Reading(process.stderr),
            wait=wait,
            kill=kill,
            end=end,
        )

    async def forward(self, remote_host: str, remote_port: int) -> Forward:
        """Listen on a free loopback port here and carry it to `remote_host` as the box sees it."""
        try:
            listener = await self.connection.forward_local_port(
                "127.0.0.1", 0, remote_host, remote_port
            )
        except (OSError, asyncssh.Error) as error:
            raise UnreachableError(
                f"no port could be forwarded: {error}.", where=self.name, do_next="Try again."
            ) from error
        return _SshForward(listener)

    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.connection.is_closed()

    async def close(self) -> None:
        """Close the connection, then the jump hosts below it."""
        self.connection.close()
        with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
            async with asyncio.timeout(3):
                await self.connection.wait_closed()
        if self._tunnel:
            await self._tunnel.close()


class _Reading:
    """A stream of asyncssh whose lost connection is an OSError, as with any other pipe."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self, n: int = -1) -> bytes:
        try:
            return await self._stream.read(n)
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error


class _Writing:
    """As `_Reading`, for the other direction."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    async def drain(self) -> None:
        try:
            await self._stream.drain()
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error

    def write_eof(self) -> None:
        self._stream.write_eof()


class _SshForward:
    def __init__(self, listener: asyncssh.SSHListener) -> None:
        self._listener = listener

    @property
    def port(self) -> int:
        return self._listener.get_port()

    async def close(self) -> None:
        self._listener.close()
        await self._listener.wait_closed()


def is_this_machine(target: str) -> bool:
    """Whether a name means the machine that homesplit runs on."""
    own = socket.gethostname().split(".")[0].lower()
    return target.lower() in {"localhost", own, f"{own}.local"}


def _paths(config: Any, key: str) -> list[Path]:
    return [Path(name).expanduser() for name in config.get(key, ())]


def _given(**values: object) -> dict[str, Any]:
    names = {"user": "username", "port": "port"}
    return {names[key]: value for key, value in values.items() if value is not None}


def _agent_path(config: Any) -> str:
    path = config.get("IdentityAgent", None) or os.environ.get("SSH_AUTH_SOCK", "")
    return "" if path == "none" else str(Path(path).expanduser()) if path else ""


def _agent_of(route: _Route, keys: ssh_keys.FoundKeys) -> tuple[str, list[Path] | None]:
    """The agent's socket, and the public keys it is asked for (None: all) by IdentitiesOnly."""
    if not route.identities_only:
        return route.agent_path, None
    files = [*keys.open_files, *keys.locked]
    beside = [p for f in files if (p := f.with_name(f.name + ".pub")).is_file()]
    return route.agent_path, list(dict.fromkeys([*beside, *keys.public]))


def _is_closed(box: Box) -> bool:
    return isinstance(box, SshBox) and box.is_closed()


class _RefusedError(UnreachableError):
    """The box is there, but lets us not in."""


class _DeclinedError(TrustError):
    """Nobody said that the unknown key is right."""


def _refused(route: _Route, keys: ssh_keys.FoundKeys, tried_password: bool) -> _RefusedError:
    tried = [str(f) for f in keys.open_files]
    if route.agent_path:
        tried.append("the agent's keys")
    what = f"{route.at} does not let {route.user} in"
    what += f" with {' and '.join(tried)}" if tried else " and there is no usable key here"
    what += " nor with the password" if tried_password else ""
    locked = [str(f) for f in keys.locked]
    if locked:
        what += f"; locked by a passphrase: {', '.join(locked)}"
    what += "".join(f"; {sentence}" for sentence in keys.broken)
    return _RefusedError(
        f"{what}.",
        where=route.box,
        do_next=f"If that is not the user there, name it: USER@{route.box}. If it is, run "
        f"`ssh-copy-id -p {route.port} {route.user}@{route.host}` once.",
    )


def _changed(
    route: _Route, key: asyncssh.SSHKey, entries: Sequence[known_hosts.Entry], names: Sequence[str]
) -> TrustError:
    entry = entries[0]
    name = next(
        (n for n in names if known_hosts.entries_for([entry.file], [n])),
        names[0],
    )
    return TrustError(
        f"its host key has changed: it shows {key.get_fingerprint()}, but {entry.file}, line "
        f"{entry.line}, holds {entry.fingerprint}. Either the machine was installed afresh or "
        "somebody stands in between.",
        where=route.box,
        do_next=f"When you are sure, run: {known_hosts.removal_command(entry, name)}",
    )
