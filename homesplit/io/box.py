"""A box that we can run scripts on and move files to: over SSH, or this machine itself."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Protocol

from homesplit.errors import UnreachableError, during
from homesplit.io.running import AGAIN, Output, Pipes, Running
from homesplit.io.said import count
from homesplit.io.shell import opening

_LAST_WORDS_S = 5.0


class Forward(Protocol):
    """A way from this machine's loopback to a port as seen from the box."""

    @property
    def port(self) -> int: ...
    async def close(self) -> None: ...


class Box(ABC):
    """A machine we may run `sh` scripts on; every wait has a deadline.

    Remote paths are absolute or relative to the home folder.
    """

    name: str
    address: str
    """The address that our own connection uses (`127.0.0.1` when it is this machine)."""
    port: int = 22
    user: str
    host_key: str | None = None
    """SHA256 fingerprint, the machine's identity."""
    local: bool = False
    """Whether this is the machine that homesplit itself runs on."""

    @abstractmethod
    async def _open(self) -> Pipes:
        """Start the `sh` that reads its script from standard input."""

    @abstractmethod
    async def forward(self, remote_host: str, remote_port: int) -> Forward:
        """Listen on a free loopback port here and carry it to `remote_host` as the box sees it."""

    async def forwards(self, port: int) -> bool:
        """Whether its SSH server carries this port of its loopback to this machine."""
        return True

    @contextlib.asynccontextmanager
    async def start(
        self,
        script: str,
        *,
        input: bytes | None = None,
        keep_input: bool = False,
        lines: bool = True,
        on_error_line: Callable[[str], None] | None = None,
        timeout_s: float = 60.0,
    ) -> AsyncGenerator[Running]:
        """Run `script` for as long as the block lasts; ended when the block is left.

        `keep_input` leaves standard input open for `Running.write`. `lines` makes
        `Running.line` work; without it `finish` gives the whole output.
        """
        token = secrets.token_hex(16)
        try:
            async with asyncio.timeout(timeout_s):
                pipes = await self._open()
        except TimeoutError as error:
            why, do_next = self._not_started()
            what = f"no command could be started within {timeout_s:g} s{why}."
            raise UnreachableError(what, where=self.name, do_next=do_next) from error
        running = Running(self.name, pipes, token, script)
        running.begin(lines=lines, on_error_line=on_error_line)
        try:
            await self._begin(running, opening(script, token), timeout_s)
            if input is not None:
                await running.write(input, timeout_s=max(timeout_s, 60.0))
            if not keep_input:
                running.end_input()
            yield running
        finally:
            await running.close()

    def _not_started(self) -> tuple[str, str]:
        """Why no command was started in time, as far as that is known, and what to do next."""
        return "", "See whether the box is awake, then try again."

    async def _begin(self, running: Running, first: bytes, timeout_s: float) -> None:
        try:
            await running.write(first, timeout_s=timeout_s)
        except UnreachableError:
            # A login shell that ended says more than the pipe that it left.
            await running.why_not_begun(timeout_s=_LAST_WORDS_S)
            raise

    async def run(
        self, script: str, *, input: bytes | None = None, timeout_s: float = 60.0
    ) -> Output:
        """Run `script` under `sh` and give what it printed; a non-zero exit is not an error."""
        async with self.start(script, input=input, lines=False, timeout_s=timeout_s) as running:
            return await running.finish(timeout_s=timeout_s)

    async def stream(
        self,
        script: str,
        *,
        on_line: Callable[[str], None],
        on_error_line: Callable[[str], None] | None = None,
        input: bytes | None = None,
        timeout_s: float = 600.0,
        idle_s: float | None = None,
    ) -> Output:
        """Run `script`, telling each line as it comes; `idle_s` bounds the wait between lines."""
        deadline = _now() + timeout_s
        async with self.start(script, input=input, on_error_line=on_error_line) as running:
            while True:
                left = deadline - _now()
                line = await running.line(timeout_s=max(0.01, min(left, idle_s or left)))
                if line is None:
                    break
                on_line(line)
            return await running.finish(timeout_s=max(1.0, deadline - _now()))

    async def read(self, remote: str, *, timeout_s: float = 60.0) -> bytes | None:
        """A remote file's content, None when there is none."""
        path = shlex.quote(remote)
        output = await self.run(
            f"if [ -e {path} ]; then cat {path}; else exit 44; fi", timeout_s=timeout_s
        )
        if output.code == 44:
            return None
        self._must(output, f"read {remote}")
        return output.raw

    async def write(
        self, remote: str, data: bytes, *, mode: int = 0o600, timeout_s: float = 60.0
    ) -> None:
        """Write a remote file whole or not at all, with `mode` from its first byte on."""
        output = await self.run(_write_script(remote, mode), input=data, timeout_s=timeout_s)
        self._must(output, f"write {remote}")

    async def put(
        self,
        local: Path,
        remote: str,
        *,
        mode: int = 0o644,
        progress: Callable[[int, int], None] | None = None,
        resume_key: str | None = None,
        timeout_s: float = 3600.0,
        stall_s: float = 60.0,
    ) -> None:
        """Copy a local file to the box, then move it into place.

        `progress(done, total)` in bytes. With `resume_key` (name it by the content's hash)
        what an earlier, interrupted call brought is kept and continued. `stall_s` bounds
        the wait for one piece.
        """
        total = (await asyncio.to_thread(local.stat)).st_size
        part = f"{remote}.{resume_key or secrets.token_hex(6)}.part"
        done = await self._part_bytes(part, total) if resume_key else 0
        script = _append_script(part, remote, mode, total, fresh=done == 0)
        deadline = _now() + timeout_s

        def seen(count: int) -> None:
            nonlocal done
            done = count
            if progress:
                progress(count, total)

        def copying() -> str:
            far = f" ({done / 1e6:.0f} of {total / 1e6:.0f} MB sent)" if total >= 1e6 else ""
            return f"{local.name} was copied there{far}"

        with during(copying, kept=resume_key is not None):
            async with self.start(script, keep_input=True, lines=False) as running:
                try:
                    await self._pour(running, local, done, seen, deadline, stall_s)
                    output = await running.finish(timeout_s=max(stall_s, 1.0))
                except UnreachableError as error:
                    # A full disk ends the script early: what it said tells more than the pipe.
                    said = await running.complaint(timeout_s=_LAST_WORDS_S)
                    raise (self._cannot(f"write {remote}", said) if said else error) from error
        self._must(output, f"write {remote}")

    async def _part_bytes(self, part: str, total: int) -> int:
        output = await self.run(f"wc -c < {shlex.quote(part)} 2>/dev/null || echo 0")
        done = count(output.stdout.strip()) or 0
        return done if done <= total else 0

    async def _pour(
        self,
        running: Running,
        local: Path,
        done: int,
        seen: Callable[[int], None],
        deadline: float,
        stall_s: float,
    ) -> None:
        with await asyncio.to_thread(local.open, "rb") as file:
            file.seek(done)
            while piece := await asyncio.to_thread(file.read, 1 << 20):
                if _now() > deadline:
                    raise UnreachableError("it took too long.", where=self.name, do_next=AGAIN)
                await running.write(piece, timeout_s=stall_s)
                done += len(piece)
                seen(done)
        running.end_input()

    def _must(self, output: Output, what: str) -> None:
        if not output.ok:
            said = output.stderr.splitlines()[-1:] or [f"exit status {output.code}"]
            raise self._cannot(what, said[0])

    def _cannot(self, what: str, said: str) -> UnreachableError:
        return UnreachableError(
            f"can't {what}: {said}.",
            where=self.name,
            do_next="Check free space and permissions there.",
        )

    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return False

    @abstractmethod
    async def close(self) -> None:
        """Let go of the connection."""


def _now() -> float:
    return asyncio.get_running_loop().time()


def _write_script(remote: str, mode: int) -> str:
    path, part = shlex.quote(remote), shlex.quote(f"{remote}.{secrets.token_hex(6)}.part")
    return (
        f'umask 077; mkdir -p "$(dirname {path})" && cat > {part} '
        f"&& chmod {mode:o} {part} && mv -f {part} {path} || {{ rm -f {part}; exit 1; }}"
    )


def _append_script(part: str, remote: str, mode: int, total: int, *, fresh: bool) -> str:
    path, part = shlex.quote(remote), shlex.quote(part)
    into = ">" if fresh else ">>"
    return (
        f'umask 077; mkdir -p "$(dirname {path})" && cat {into} {part} || exit 1; '
        f"got=$(wc -c < {part}); [ $got -eq {total} ] || "
        f'{{ echo "only $got of {total} bytes arrived" >&2; exit 1; }}; '
        f"chmod {mode:o} {part} && mv -f {part} {path}"
    )
