"""A real SSH server on loopback, whose commands run on this machine's own `sh`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from homesplit.io.ask import Ask
from homesplit.io.paths import Paths
from homesplit.io.ssh import Connections

PATIENCE_S = 60.0
"""For what has to come about, however busy this machine is."""
FEW: dict[str, Any] = {"rounds": 1, "ignore_few_rounds": True}
"""The usual number of rounds takes seconds on a busy machine, and guards nothing here."""


@dataclass
class Asked:
    """Answers as told and remembers what was asked."""

    trust: bool = True
    secrets: list[str | None] = field(default_factory=list[str | None])
    asked: list[str] = field(default_factory=list[str])

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        self.asked.append(fingerprint)
        return self.trust

    async def secret(self, prompt: str) -> str | None:
        self.asked.append(prompt)
        return self.secrets.pop(0) if self.secrets else None


class _Server(asyncssh.SSHServer):
    def __init__(self, live: list[asyncssh.SSHServerConnection], begun: list[str]) -> None:
        self._live = live
        self._begun = begun

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._live.append(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._live.remove(self._connection)

    def begin_auth(self, username: str) -> bool:
        self._connection.send_auth_banner('*** {"this": is "no JSON" \x1b[31m ***\n')
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == "right"

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        self._begun.append("forwarding")
        return True


async def _sh(begun: list[str], process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run the command as sshd would, after what a start file prints.

    Without `process.redirect`, which ends the whole connection when a command stops reading.
    """
    begun.append("session")
    process.stdout.write(b"\x1b[31mnoise of a start file {\n")
    child = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        process.command or "true",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdin and child.stdout and child.stderr
    feeding = asyncio.create_task(_feed(process.stdin, child, child.stdin))
    try:
        await asyncio.gather(
            _carry(child.stdout, process.stdout), _carry(child.stderr, process.stderr)
        )
        process.exit(await child.wait())
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        # What the command left running holds its pipes; asyncio has no public way to let go.
        vars(child)["_transport"].close()


async def _feed(source: Any, child: asyncio.subprocess.Process, target: Any) -> None:
    try:
        while piece := await source.read(1 << 18):
            target.write(piece)
            await target.drain()
    except asyncssh.SignalReceived:
        child.terminate()
    except (OSError, asyncssh.Error):
        pass  # the command reads no more, or the client has gone
    finally:
        target.close()


async def _carry(source: asyncio.StreamReader, target: Any) -> None:
    while piece := await source.read(1 << 18):
        with contextlib.suppress(OSError, asyncssh.Error):
            target.write(piece)
            await target.drain()


@dataclass(frozen=True)
class Lab:
    """A server's port and keys, and the desk's folders."""

    port: int
    host_key: asyncssh.SSHKey
    client_key: asyncssh.SSHKey
    home: Path
    paths: Paths
    live: list[asyncssh.SSHServerConnection] = field(
        default_factory=list[asyncssh.SSHServerConnection]
    )
    """Connections as the server sees them."""
    begun: list[str] = field(default_factory=list[str])
    """What was begun over them, in order: a session, or the forwarding of a connection."""

    def cut(self) -> None:
        """Break every connection, as a box does that goes away."""
        for connection in tuple(self.live):
            connection.abort()

    def config(self, text: str) -> None:
        (self.home / "ssh_config").write_text(text)

    def connections(self, ask: Ask) -> Connections:
        return Connections(paths=self.paths, ask=ask, connect_s=PATIENCE_S)


@contextlib.asynccontextmanager
async def serving(
    lab_port: int,
    keys: Sequence[asyncssh.SSHKey],
    authorized: Path,
    live: list[asyncssh.SSHServerConnection] | None = None,
    begun: list[str] | None = None,
) -> AsyncGenerator[int]:
    told = [] if begun is None else begun
    server = await asyncssh.listen(
        "127.0.0.1",
        lab_port,
        server_host_keys=list(keys),
        authorized_client_keys=str(authorized),
        server_factory=partial(_Server, [] if live is None else live, told),
        process_factory=partial(_sh, told),
        encoding=None,
    )
    try:
        yield server.get_port()
    finally:
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def far_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Lab]:
    """A server known as `box` to a desk whose home is `folder`, with a key that it lets in."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HOMESPLIT_SSH_CONFIG", str(folder / "ssh_config"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (folder / ".ssh").mkdir(mode=0o700)
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    client_key = asyncssh.generate_private_key("ssh-ed25519")
    client_key.write_public_key(str(folder / "authorized"))
    client_key.write_private_key(str(folder / ".ssh" / "id_ed25519"))
    paths = Paths(config=folder / "c", cache=folder / "k", data=folder / "d")
    live: list[asyncssh.SSHServerConnection] = []
    begun: list[str] = []
    async with serving(0, [host_key], folder / "authorized", live, begun) as port:
        made = Lab(port, host_key, client_key, folder, paths, live, begun)
        made.config(f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  User owner\n")
        yield made
