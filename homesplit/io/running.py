"""A script at work on a box: write to it, read its lines, wait for its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from homesplit.errors import UnreachableError
from homesplit.io.shell import NO_STATUS, Between, what_it_needs

_PIECE_BYTES = 1 << 18
_LARGEST_OUTPUT_BYTES = 64 << 20
_LARGEST_ERROR_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 20
_LINES_HELD = 10_000

AGAIN = "Repeat the command."
STANDS_STILL = (
    "See whether that box is awake, its cable in and its disk answering, then repeat the command."
)


def connection_lost(box: str, why: str) -> UnreachableError:
    """That a connection which stood has ended."""
    return UnreachableError(
        f"the connection to it was lost ({why}).",
        where=box,
        do_next="See whether that box is on, awake and in the network, then repeat the command.",
    )


def _ended(code: int) -> str:
    """How a process ended, by the status that its starter has of it."""
    return f"by signal {-code}" if code < NO_STATUS else "from outside"


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
    """Let go of the process and its pipes; given whether its script has ended by itself.

    Safe to call twice.
    """
    lost: Callable[[], str | None] = lambda: None
    """Why the way to the box has ended, in words; None while it stands."""


class _Lines:
    """Cuts a stream of bytes into lines; of an endless line only the beginning is held."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, payload: bytes) -> list[str]:
        """The lines that `payload` completes."""
        self._held += payload
        *whole, rest = bytes(self._held).split(b"\n")
        self._held[:] = rest[:_LONGEST_LINE_BYTES]
        return [line.decode(errors="replace").rstrip("\r") for line in whole]

    def rest(self) -> str | None:
        """The last line when nothing ended it."""
        return self._held.decode(errors="replace") if self._held else None


class Running:
    """A script at work on a box: write to it, read its lines, wait for its end."""

    def __init__(self, box: str, pipes: Pipes, token: str, script: str) -> None:
        self._box = box
        self._first_line = next(filter(None, script.splitlines()), token)
        self._pipes = pipes
        self._out = Between(token)
        self._err = Between(token)
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._cut_out = _Lines()
        self._cut_err = _Lines()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_LINES_HELD)
        self._on_error_line: Callable[[str], None] | None = None
        self._want_lines = False
        self._readers: list[asyncio.Task[None]] = []

    def begin(self, *, lines: bool, on_error_line: Callable[[str], None] | None) -> None:
        """Start reading both streams; `lines` makes `line` work."""
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
                last = self._cut_out.rest()
                if last is not None:
                    self._offer(last)
                self._offer(None)

    async def _take_out(self, payload: bytes) -> None:
        if not self._want_lines:
            self._stdout += payload
            if len(self._stdout) > _LARGEST_OUTPUT_BYTES:
                self._pipes.kill()
                raise UnreachableError(
                    f"a command printed more than {_LARGEST_OUTPUT_BYTES >> 20} MiB.",
                    where=self._box,
                    do_next="See what start files of that user's shell print.",
                )
            return
        for line in self._cut_out.feed(payload):
            await self._lines.put(line)

    def _offer(self, line: str | None) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._lines.put_nowait(line)

    async def _read_err(self) -> None:
        while self._err.code is None:
            piece = await self._pipes.stderr.read(_PIECE_BYTES)
            payload = self._err.feed(piece) if piece else self._err.rest()
            self._stderr += payload
            del self._stderr[:-_LARGEST_ERROR_BYTES]
            if self._on_error_line is not None:
                for line in self._cut_err.feed(payload):
                    self._on_error_line(line)
            if not piece:
                break

    async def write(self, data: bytes, *, timeout_s: float = 60.0) -> None:
        """Write to the script's standard input."""
        try:
            async with asyncio.timeout(timeout_s):
                for at in range(0, len(data), _PIECE_BYTES):
                    self._pipes.stdin.write(data[at : at + _PIECE_BYTES])
                    await self._pipes.stdin.drain()
        except TimeoutError as error:
            raise self._lost() or UnreachableError(
                f"it has taken nothing for {timeout_s:g} s.", where=self._box, do_next=STANDS_STILL
            ) from error
        except OSError as error:
            raise self._lost() or UnreachableError(
                "the command there ended before it had read all that was sent.",
                where=self._box,
                do_next=AGAIN,
            ) from error

    def _lost(self) -> UnreachableError | None:
        """That the connection has ended, if that is so: it explains whatever else was seen."""
        why = self._pipes.lost()
        return None if why is None else connection_lost(self._box, why)

    def end_input(self) -> None:
        """Close the script's standard input."""
        with contextlib.suppress(OSError):
            self._pipes.stdin.write_eof()

    async def line(self, *, timeout_s: float) -> str | None:
        """The next line of standard output, None at its end; raises UnreachableError."""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._lines.get()
        except TimeoutError as error:
            raise self._lost() or UnreachableError(
                f"the command there said nothing for {timeout_s:g} s.",
                where=self._box,
                do_next=STANDS_STILL,
            ) from error
        if line is None and self._out.code is None and (lost := self._lost()):
            raise lost
        return line

    async def finish(self, *, timeout_s: float) -> Output:
        """Wait for the end and give what was printed (lines that were read are not in it)."""
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._readers)
                code = self._out.code
                if code is None:
                    code = await self._exit_status()
        except TimeoutError as error:
            raise self._lost() or UnreachableError(
                f"a command there did not end within {timeout_s:g} s.",
                where=self._box,
                do_next=STANDS_STILL,
            ) from error
        except OSError as error:
            raise self._lost() or connection_lost(self._box, str(error)) from error
        if self._out.code is None:
            raise self._lost() or self._broken_off(code)
        return Output(
            raw=bytes(self._stdout),
            stderr=self._stderr.decode(errors="replace").strip("\n"),
            code=code,
        )

    async def complaint(self, *, timeout_s: float) -> str | None:
        """The last line on standard error of a script that broke off; None when it said nothing."""
        with contextlib.suppress(TimeoutError, OSError, UnreachableError):
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._readers[1])
        lines = self._stderr.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), None)

    async def _exit_status(self) -> int:
        status = await self._pipes.wait()  # type: ignore[misc]
        return status if isinstance(status, int) else -1

    async def why_not_begun(self, *, timeout_s: float) -> None:
        """Raise what a login shell said that has ended before it started `sh`, if that is so."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*self._readers)
                code = await self._exit_status()
                if not self._out.begun and self._pipes.lost() is None:
                    raise self._broken_off(code)

    def _broken_off(self, code: int) -> UnreachableError:
        """Of a script that has ended without its end marker, over a connection that stands."""
        if self._out.begun:
            return UnreachableError(
                f"a command there was ended before it was through ({_ended(code)}).",
                where=self._box,
                do_next="See whether that box is short of memory or is being shut down, then "
                "repeat the command.",
            )
        # Nor is what was sent told, though the shell may have said it all again.
        ends = (self._out.unheard(), self._err.unheard())
        said = " ".join(filter(None, (end.partition(self._first_line)[0] for end in ends)))
        return UnreachableError(
            f"the login shell did not start `sh` (exit status {code}"
            + (f", it said: {said[-300:]!r})." if said else ")."),
            where=self._box,
            do_next=what_it_needs(said),
        )

    async def close(self) -> None:
        """End the script if it still runs; safe to call twice."""
        for task in self._readers:
            task.cancel()
        try:
            await asyncio.gather(*self._readers, return_exceptions=True)
        finally:
            await self._pipes.end(self._out.code is not None)
