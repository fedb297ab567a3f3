"""Runs a helper process of this machine to its end, line by line, and never leaves it behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

_KEPT_LINES = 40
_LINE_LIMIT_BYTES = 1 << 20
_END_WAIT_S = 5.0


class Ended(Struct, frozen=True, kw_only=True):
    """How a process ended, with the last lines of each stream."""

    code: int
    out: str
    err: str


async def run_process(
    argv: Sequence[str],
    *,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    on_out: Callable[[str], None] | None = None,
) -> Ended:
    """Run `argv` (no shell); raises TimeoutError past the deadline, FileNotFoundError if absent.

    Its whole process group ends with it when this call is cancelled or runs out of time.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if env is None else dict(env),
        cwd=cwd,
        limit=_LINE_LIMIT_BYTES,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(deadline_s):
            out, err, code = await asyncio.gather(
                _keep(process.stdout, on_out), _keep(process.stderr, None), process.wait()
            )
    except BaseException:
        await _end(process)
        raise
    return Ended(code=code, out=out, err=err)


async def _keep(stream: asyncio.StreamReader, seen: Callable[[str], None] | None) -> str:
    """Read to the end; returns the last lines."""
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    rest = b""
    while chunk := await stream.read(65536):
        # A progress bar's line may never end in a newline: its carriage returns end it too.
        *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        rest = rest[-_LINE_LIMIT_BYTES:]
        for line in lines:
            _take(line, kept, seen)
    _take(rest, kept, seen)
    return "\n".join(kept)


def _take(line: bytes, kept: deque[str], seen: Callable[[str], None] | None) -> None:
    text = line.decode(errors="replace").rstrip()
    if text:
        kept.append(text)
        if seen:
            seen(text)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    if os.name == "nt":
        # No groups of processes to signal there.
        process.kill()
        await process.wait()
        return
    _signal(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _END_WAIT_S)
    except TimeoutError:
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        # Already gone, which is what was wanted.
        return
