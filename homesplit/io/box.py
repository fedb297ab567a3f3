"""A box that we can run scripts on and move files to: over SSH, or this machine itself."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from homesplit.errors import UnreachableError
from homesplit.io.shell import Between, opening

_PIECE_BYTES = 1 << 18
_LARGEST_OUTPUT_BYTES = 64 << 20
_LONGEST_LINE_BYTES = 1 << 20
_LINES_HELD = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a script printed between the markers, and its exit status."""

    raw: bytes
    """Standard output, byte for byte."""
    stderr: str
    code: int

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.raw.decode(errors="replace")

    @property
    def ok(self) -> bool:
        """Whether the script ended with 0."""
        return self.code == 0


class Reader(Protocol):
    """The reading end of a pipe, of asyncio or asyncssh alike."""

    async def read(self, n: int = -1) -> bytes: ...


class Writer(Protocol):
    """The writing end of a pipe, of asyncio or asyncssh alike."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def write_eof(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """A started `sh` on the box: its three streams and how to end it."""

    stdin: Writer
    stdout: Reader
    stderr: Reader
    wait: Callable[[], object]
    """Gives an awaitable of the exit status (None when it isn't known)."""
    kill: Callable[[], None]
    end: Callable[[bool], Awaitable[None]]
    """Let go of the process and its pipes; given whether its script has ended by itself."""


class Running:
    """A script at work on a box: write to it, read its lines, wait for its end."""

    def __init__(self, box: str, pipes: Pipes, token: str) -> None:
        self._box = box
        self._pipes = pipes
        self._out = Between(token)
        self._err = Between(token)
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._line = bytearray()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_LINES_HELD)
        self._on_error_line: Callable[[str], None] | None = None
        self._error_line = bytearray()
        self._want_lines = False
        self._readers: list[asyncio.Task[None]] = []

    def _begin(self, *, lines: bool, on_error_line: Callable[[str], None] | None) -> None:
        self._want_lines = lines
        self._on_error_line = on_error_line
        self._readers = [
            asyncio.create_task(self._read_out(), name=f"stdout of {self._box}"),
            asyncio.create_task(self._read_err(), name=f"stderr of {self._box}"),
        ]

    async def _read_out(self) -> None:
        try:
            while self._out.code is None:
                piece = await self._pipes.stdout.read(_PIECE_BYTES)
                payload = self._out.feed(piece) if piece else self._out.rest()
                await self._take_out(payload)
                if not piece:
                    break
        finally:
            if self._want_lines:
                if self._line:
                    self._offer(self._line.decode(errors="replace"))
                self._offer(None)

    async def _take_out(self, payload: bytes) -> None:
        if not self._want_lines:
            self._stdout += payload
            if len(self._stdout) > _LARGEST_OUTPUT_BYTES:
                self._pipes.kill()
                raise UnreachableError(
                    f"a command printed more than {_LARGEST_OUTPUT_BYTES >> 20} MiB.",
                    where=self._box,
                )
            return
        self._line += payload
        while (at := self._line.find(b"\n")) >= 0:
            await self._lines.put(self._line[:at].decode(errors="replace").rstrip("\r"))
            del self._line[: at + 1]
        del self._line[_LONGEST_LINE_BYTES:]

    def _offer(self, line: str | None) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._lines.put_nowait(line)

    async def _read_err(self) -> None:
        while self._err.code is None:
            piece = await self._pipes.stderr.read(_PIECE_BYTES)
            payload = self._err.feed(piece) if piece else self._err.rest()
            self._stderr += payload
            del self._stderr[: -(1 << 20)]
            self._tell_error_lines(payload)
            if not piece:
                break

    def _tell_error_lines(self, payload: bytes) -> None:
        if self._on_error_line is None:
            return
        self._error_line += payload
        while (at := self._error_line.find(b"\n")) >= 0:
            self._on_error_line(self._error_line[:at].decode(errors="replace").rstrip("\r"))
            del self._error_line[: at + 1]
        del self._error_line[_LONGEST_LINE_BYTES:]

    async def write(self, data: bytes, *, timeout_s: float = 60.0) -> None:
        """Write to the script's standard input."""
        try:
            async with asyncio.timeout(timeout_s):
                for at in range(0, len(data), _PIECE_BYTES):
                    self._pipes.stdin.write(data[at : at + _PIECE_BYTES])
                    await self._pipes.stdin.drain()
        except (TimeoutError, OSError) as error:
            raise UnreachableError(
                "the command took no more input.", where=self._box, do_next="Try again."
            ) from error

    def end_input(self) -> None:
        """Close the script's standard input."""
        with contextlib.suppress(OSError):
            self._pipes.stdin.write_eof()

    async def line(self, *, timeout_s: float) -> str | None:
        """The next line of standard output, None at its end; raises UnreachableError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._lines.get()
        except TimeoutError as error:
            raise UnreachableError(
                f"the command said nothing for {timeout_s:g} s.",
                where=self._box,
                do_next="See whether the box is awake, then try again.",
            ) from error

    async def finish(self, *, timeout_s: float) -> Output:
        """Wait for the end and give what was printed (lines that were read are not in it)."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._readers)
                code = self._out.code
                if code is None:
                    code = await self._exit_status()
        except TimeoutError as error:
            raise UnreachableError(
                f"a command did not end within {timeout_s:g} s.",
                where=self._box,
                do_next="See whether the box is awake or very busy, then try again.",
            ) from error
        except OSError as error:
            raise UnreachableError(
                f"the connection broke: {error}.",
                where=self._box,
                do_next="See whether the box is on and reachable, then try again.",
            ) from error
        if not self._out.begun:
            self._complain_no_begin(code)
        return Output(
            raw=bytes(self._stdout),
            stderr=self._stderr.decode(errors="replace").strip("\n"),
            code=code,
        )

    async def _exit_status(self) -> int:
        status = await self._pipes.wait()  # type: ignore[misc]
        return status if isinstance(status, int) else -1

    def _complain_no_begin(self, code: int) -> None:
        said = bytes(self._out.before + self._err.before).decode(errors="replace").strip()
        raise UnreachableError(
            f"the login shell did not start `sh` (exit status {code}"
            + (f", it said: {said[-300:]!r})." if said else ")."),
            where=self._box,
            do_next="Check that `ssh BOX sh -c true` works there.",
        )

    async def close(self) -> None:
        """End the script if it still runs; safe to call twice."""
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._pipes.end(self._out.code is not None)


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

    @contextlib.asynccontextmanager
    async def start(
        self,
        script: str,
        *,
        input: bytes | None = None,
        keep_input: bool = False,
        lines: bool = True,
        on_error_line: Callable[[str], None] | None = None,
        timeout_s: float = 20.0,
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
            raise UnreachableError(
                f"no command could be started within {timeout_s:g} s.",
                where=self.name,
                do_next="See whether the box is awake, then try again.",
            ) from error
        running = Running(self.name, pipes, token)
        running._begin(lines=lines, on_error_line=on_error_line)  # pyright: ignore[reportPrivateUsage]
        try:
            await running.write(opening(script, token), timeout_s=timeout_s)
            if input is not None:
                await running.write(input, timeout_s=max(timeout_s, 60.0))
            if not keep_input:
                running.end_input()
            yield running
        finally:
            await running.close()

    async def run(
        self, script: str, *, input: bytes | None = None, timeout_s: float = 30.0
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
        deadline = asyncio.get_running_loop().time() + timeout_s
        async with self.start(script, input=input, on_error_line=on_error_line) as running:
            while True:
                left = deadline - asyncio.get_running_loop().time()
                line = await running.line(timeout_s=max(0.01, min(left, idle_s or left)))
                if line is None:
                    break
                on_line(line)
            return await running.finish(timeout_s=max(1.0, deadline - _now()))

    async def read(self, remote: str, *, timeout_s: float = 30.0) -> bytes | None:
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
        async with self.start(script, keep_input=True, lines=False) as running:
            try:
                await self._pour(running, local, done, total, progress, deadline, stall_s)
            except UnreachableError as error:
                # A full disk ends the script early: what it said tells more than the broken pipe.
                self._must(await running.finish(timeout_s=5.0), f"write {remote}")
                raise error from None
            output = await running.finish(timeout_s=max(stall_s, 1.0))
        self._must(output, f"write {remote}")

    async def _part_bytes(self, part: str, total: int) -> int:
        output = await self.run(f"wc -c < {shlex.quote(part)} 2>/dev/null || echo 0")
        text = output.stdout.strip()
        done = int(text) if text.isdigit() else 0
        return done if done <= total else 0

    async def _pour(
        self,
        running: Running,
        local: Path,
        done: int,
        total: int,
        progress: Callable[[int, int], None] | None,
        deadline: float,
        stall_s: float,
    ) -> None:
        with await asyncio.to_thread(local.open, "rb") as file:
            file.seek(done)
            while piece := await asyncio.to_thread(file.read, 1 << 20):
                if _now() > deadline:
                    raise UnreachableError(f"copying {local.name} took too long.", where=self.name)
                await running.write(piece, timeout_s=stall_s)
                done += len(piece)
                if progress:
                    progress(done, total)
        running.end_input()

    def _must(self, output: Output, what: str) -> None:
        if not output.ok:
            said = output.stderr.splitlines()[-1:] or [f"exit status {output.code}"]
            raise UnreachableError(
                f"can't {what}: {said[0]}.",
                where=self.name,
                do_next="Check free space and permissions there.",
            )

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
