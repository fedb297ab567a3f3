"""This machine as a box: the same scripts, without SSH."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import signal
from asyncio.subprocess import Process
from typing import Any

import asyncssh

from homesplit.errors import UnreachableError
from homesplit.io.box import Box, Forward
from homesplit.io.running import Pipes
from homesplit.io.shell import COMMAND

_END_WAIT_S = 2.0


class LocalBox(Box):
    """The machine that homesplit itself runs on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = "127.0.0.1"
        self.user = getpass.getuser()
        self.local = True
        self.host_key = own_host_key()
        self._home = os.path.expanduser("~")

    async def _open(self) -> Pipes:
        try:
            process = await asyncio.create_subprocess_exec(
                "sh",
                "-c",
                COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._home,
                start_new_session=True,
            )
        except OSError as error:
            raise UnreachableError(
                f"`sh` can't be started here: {error}.",
                do_next="Check that /bin/sh is there; on Windows run homesplit in WSL.",
            ) from error

        def kill() -> None:
            _signal(process, signal.SIGTERM)

        async def end(done: bool) -> None:
            await _let_go(process, done=done)

        stdin: Any = process.stdin
        stdout: Any = process.stdout
        stderr: Any = process.stderr
        return Pipes(
            stdin=stdin, stdout=stdout, stderr=stderr, wait=process.wait, kill=kill, end=end
        )

    async def forward(self, remote_host: str, remote_port: int) -> Forward:
        """Nothing needs to be carried: loopback is loopback."""
        if remote_host not in ("127.0.0.1", "localhost"):
            raise UnreachableError(
                f"{remote_host} is not this machine's loopback.", where=self.name
            )
        return _LocalForward(remote_port)

    async def close(self) -> None:
        """There is no connection to close."""


def _signal(process: Process, number: signal.Signals) -> None:
    """To the whole group of a process that nobody has waited for yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.returncode is None:
            os.killpg(process.pid, number)


async def _let_go(process: Process, *, done: bool) -> None:
    """End the process if its script still runs, wait for it, and close its pipes.

    Pipes left to the garbage collector are closed at a random moment, when their event loop
    may be gone.
    """
    if not done:
        _signal(process, signal.SIGTERM)
    transport: Any = process._transport  # pyright: ignore[reportAttributeAccessIssue]
    try:
        for stream in (0, 1, 2):
            pipe = transport.get_pipe_transport(stream)
            if pipe is not None:
                pipe.close()
        await asyncio.wait_for(process.wait(), _END_WAIT_S)
    except TimeoutError:
        _signal(process, signal.SIGKILL)
    finally:
        transport.close()
        # A closed pipe tells its end in the loop's next round.
        await asyncio.sleep(0)


class _LocalForward:
    def __init__(self, port: int) -> None:
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        """Nothing was opened."""


def own_host_key() -> str | None:
    """Fingerprint of this machine's own SSH host key, None when it has no SSH server."""
    for kind in ("ed25519", "ecdsa", "rsa"):
        with contextlib.suppress(OSError, asyncssh.KeyImportError):
            key = asyncssh.read_public_key(f"/etc/ssh/ssh_host_{kind}_key.pub")
            return key.get_fingerprint()
    return None
