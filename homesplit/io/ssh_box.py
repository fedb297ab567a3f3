"""A box over an SSH connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED

from homesplit.errors import UnreachableError
from homesplit.io import ssh_errors
from homesplit.io.box import Box, Forward
from homesplit.io.running import AGAIN, Pipes, connection_lost
from homesplit.io.shell import COMMAND
from homesplit.io.ssh_route import Route

_ASK_S = 10.0
_AGAIN_S = 0.25
_REFUSALS = 12
"""With nothing of ours at work so many are final; an ended session may count for a moment more."""


class SshBox(Box):
    """A box over an SSH connection."""

    def __init__(
        self,
        name: str,
        route: Route,
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
        self.at_work = 0
        """Commands of ours that were started and not let go yet."""
        self._closed_here = False
        self._session_began = False
        """Whether its server was asked for a session over this connection, granted or not."""
        self._refusal: str | None = None
        """What the server said last to a command's start, while it refuses one."""

    async def _open(self) -> Pipes:
        try:
            process = await self._process()
        except asyncssh.ChannelOpenError as error:
            if (why := self.lost()) is not None:
                raise connection_lost(self.name, why) from error
            raise UnreachableError(
                f"its SSH server starts no command for {self.user}: {error.reason}.",
                where=self.name,
                do_next="See whether `ssh BOX true` works there.",
            ) from error
        except (OSError, asyncssh.Error) as error:
            why = self.lost() or ssh_errors.cut(error)
            raise connection_lost(self.name, why) from error
        self.at_work += 1
        let_go = False

        async def wait() -> int | None:
            return (await process.wait(check=False)).exit_status

        def kill() -> None:
            with contextlib.suppress(OSError, asyncssh.Error):
                if process.exit_status is None:
                    process.terminate()
                process.close()

        async def end(done: bool) -> None:
            # The signal goes to the whole group, and so to what an ended script has just started.
            nonlocal let_go
            if not let_go:
                let_go, self.at_work = True, self.at_work - 1
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
            lost=self.lost,
        )

    def lost(self) -> str | None:
        """Why the connection has ended, in words; None while it stands."""
        if not self.is_closed():
            return None
        if self._closed_here:
            return "it was closed from here"
        if self._tunnel is not None and (why := self._tunnel.lost()) is not None:
            return f"its jump host {self._tunnel.name}: {why}"
        untold = asyncssh.ConnectionLost("")  # it is just being taken down
        return ssh_errors.cut(self.connection.get_extra_info("ended", untold))

    async def _process(self) -> asyncssh.SSHClientProcess[bytes]:
        """A command's start; where the server allows few at once, when one of ours has ended."""
        refused = 0
        while True:
            try:
                # Without a terminal, whatever RequestTTY says: it would change the bytes.
                process = await self.connection.create_process(
                    COMMAND, encoding=None, request_pty=False
                )
            except asyncssh.ChannelOpenError as error:
                self._refusal = error.reason
                refused = 0 if self.at_work else refused + 1
                if refused >= _REFUSALS or self.is_closed():
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                self._refusal, self._session_began = None, True
                return process

    def _not_started(self) -> tuple[str, str]:
        if self._refusal is None:
            return super()._not_started()
        return (
            f": its SSH server starts none beside the {self.at_work} at work ({self._refusal})",
            "Raise MaxSessions in /etc/ssh/sshd_config there, or try again with less at once.",
        )

    async def forward(self, remote_host: str, remote_port: int) -> Forward:
        """Listen on a free loopback port here and carry it to `remote_host` as the box sees it."""
        await self._begin_session()
        try:
            listener = await self.connection.forward_local_port(
                "127.0.0.1", 0, remote_host, remote_port
            )
        except (OSError, asyncssh.Error) as error:
            if (why := self.lost()) is not None:
                raise connection_lost(self.name, why) from error
            raise UnreachableError(
                f"no port could be forwarded: {error}.", where=self.name, do_next=AGAIN
            ) from error
        return _SshForward(listener)

    async def _begin_session(self) -> None:
        """Have the server send small packets at once, on this connection and those under it.

        OpenSSH's sets TCP_NODELAY when a session begins. Where ports are forwarded alone it holds
        each token of an answer back for as long as the one before is not acknowledged: up to 40 ms.
        """
        if self._tunnel is not None:
            await self._tunnel._begin_session()
        if self._session_began:
            return
        self._session_began = True
        # A server that starts no command carries the port all the same.
        with contextlib.suppress(OSError, asyncssh.Error, TimeoutError):
            async with asyncio.timeout(_ASK_S):
                session = await self.connection.create_process("true", request_pty=False)
            session.close()

    async def forwards(self, port: int) -> bool:
        """Whether its SSH server carries this port of its loopback to this machine."""
        try:
            async with asyncio.timeout(_ASK_S):
                _, writer = await self.connection.open_connection("127.0.0.1", port)
        except asyncssh.ChannelOpenError as error:
            return error.code != OPEN_ADMINISTRATIVELY_PROHIBITED
        except (OSError, asyncssh.Error, TimeoutError):
            return True  # whatever that is, what needs the port will tell
        writer.close()
        return True

    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self.connection.is_closed()

    async def close(self) -> None:
        """Close the connection, then the jump hosts below it."""
        self._closed_here = True
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
