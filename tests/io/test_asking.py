"""Passphrases and passwords: asked for at a terminal, told in a sentence where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.io.far_end import FEW, Lab

LOOK = "status"
"""A command that logs in and changes nothing."""
LIMIT_S = 60.0


def locked_key(lab: Lab) -> Path:
    """The only key there is, locked by a passphrase."""
    path = lab.home / ".ssh" / "id_ed25519"
    lab.client_key.write_private_key(str(path), passphrase="open", **FEW)
    return path


def no_key(lab: Lab) -> Path:
    """Only the password is left."""
    path = lab.home / ".ssh" / "id_ed25519"
    path.unlink()
    return path


def trusted(lab: Lab) -> None:
    """The server's key is known, so that nothing else is asked."""
    key = lab.host_key.export_public_key().decode()
    (lab.home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{lab.port} {key}")


def environment(lab: Lab) -> dict[str, str]:
    return {**os.environ, "HOME": str(lab.home), "HOMESPLIT_HOME": str(lab.home / "own")}


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (locked_key, "locked by a passphrase: {path}. Nobody gave its passphrase: put the key"),
        (no_key, "It takes a password, which nobody gave"),
    ],
)
async def test_without_a_terminal_a_missing_secret_is_one_sentence_and_nothing_waits(
    lab: Lab, left: Callable[[Lab], Path], says: str
) -> None:
    trusted(lab)
    path = left(lab)
    # The other end of its input stays open: who reads it would wait for ever.
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "homesplit", "probe", "box"),
        env=environment(lab),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert done.stdout and done.stderr
    async with asyncio.timeout(LIMIT_S):
        out, err = await asyncio.gather(done.stdout.read(), done.stderr.read())
        assert await done.wait() == 1
    assert says.format(path=path) in err.decode()
    assert "Traceback" not in err.decode()
    assert out == b""


@dataclass
class Typed:
    """A command at a terminal of its own: what it shows, and keys for it."""

    process: asyncio.subprocess.Process
    keyboard: int
    shown: str = ""

    async def until(self, words: str, times: int = 1) -> None:
        """Return once the terminal has shown this so often."""
        async with asyncio.timeout(LIMIT_S):
            while self.shown.count(words) < times:
                came = await asyncio.to_thread(os.read, self.keyboard, 4096)
                # A character may come in two pieces.
                self.shown += came.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    def shows_what_is_typed(self) -> bool:
        return bool(termios.tcgetattr(self.keyboard)[3] & termios.ECHO)

    async def end(self) -> tuple[int, str]:
        """Its exit code and what it printed."""
        assert self.process.stdout
        async with asyncio.timeout(LIMIT_S):
            out = await self.process.stdout.read()
            return await self.process.wait(), out.decode()


@contextlib.asynccontextmanager
async def typed(lab: Lab) -> AsyncGenerator[Typed]:
    """The command that looks at the box, at a terminal."""
    keyboard, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        # Who runs the tests in the background has it ignored, and so would the command.
        *("env", "--default-signal=INT"),
        *(sys.executable, "-m", "homesplit", LOOK, "box"),
        env=environment(lab),
        stdin=terminal,
        stdout=asyncio.subprocess.PIPE,
        stderr=terminal,
        start_new_session=True,
    )
    try:
        yield Typed(process, keyboard)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(terminal)
        os.close(keyboard)


@pytest.mark.parametrize(
    ("left", "asks", "secret"),
    [(locked_key, "Passphrase of", "open"), (no_key, "Password of", "right")],
)
async def test_at_a_terminal_the_secret_is_asked_for_and_not_shown_nor_kept(
    lab: Lab, left: Callable[[Lab], Path], asks: str, secret: str
) -> None:
    trusted(lab)
    left(lab)
    async with typed(lab) as command:
        await command.until(asks)
        assert not command.shows_what_is_typed()
        command.type(f"wrong-{secret}\n")
        await command.until(asks, times=2)
        command.type(f"{secret}\n")
        code, out = await command.end()
        assert (code, "Nothing is deployed there." in out) == (0, True), command.shown
        assert secret not in command.shown
        assert command.shows_what_is_typed()
    kept = [path for path in (lab.home / "own").rglob("*") if path.is_file()]
    assert [path for path in kept if f"wrong-{secret}" in path.read_text(errors="replace")] == []


async def test_a_question_that_is_broken_off_ends_the_command_and_leaves_the_terminal_as_it_was(
    lab: Lab,
) -> None:
    trusted(lab)
    locked_key(lab)
    async with typed(lab) as command:
        await command.until("Passphrase of")
        command.process.send_signal(signal.SIGINT)
        code, out = await command.end()
        assert (code, out) == (1, "")
        assert command.shows_what_is_typed()


@pytest.mark.parametrize(("answer", "code"), [("yes", 0), ("yy", 1)])
async def test_an_unknown_host_key_is_taken_by_a_clear_yes_alone(
    lab: Lab, answer: str, code: int
) -> None:
    async with typed(lab) as command:
        await command.until("[y/N]")
        assert lab.host_key.get_fingerprint() in command.shown
        command.type(f"{answer}\n")
        assert (await command.end())[0] == code
