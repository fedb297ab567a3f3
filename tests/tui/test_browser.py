"""The app in a browser: spoken to as `textual serve` does, by packets over pipes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
RECORDING = CHECKOUT / "screenshots" / "two-boxes.jsonl.gz"
LIMIT_S = 120.0
BEGIN = b"__GANGLION__\n"


class Browser:
    """The far end of the pipes: what is painted comes in, keys and sizes go out."""

    def __init__(self, home: Path) -> None:
        command = [str(Path(sys.executable).with_name("homesplit")), "app"]
        command += ["--replay", str(RECORDING), "--speed", "0.01"]
        environ = {**os.environ, "HOMESPLIT_HOME": str(home), "COLUMNS": "120", "ROWS": "40"}
        environ |= {"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver"}
        environ |= {"TEXTUAL_COLOR_SYSTEM": "truecolor", "TERM": "dumb"}
        environ.pop("NO_COLOR", None)
        self.app = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=CHECKOUT
        )
        self._raw, self._begun = b"", False
        self.painted = ""
        self.meta: list[str] = []

    def send(self, kind: bytes, payload: bytes) -> None:
        """One packet: its kind, its length, its content."""
        assert self.app.stdin is not None
        self.app.stdin.write(kind + len(payload).to_bytes(4, "big") + payload)
        self.app.stdin.flush()

    def press(self, keys: str) -> None:
        """Type, forgetting what was painted before."""
        self.painted = ""
        self.send(b"D", keys.encode())

    def resize(self, width: int, height: int) -> None:
        """The browser's window has another size."""
        self.painted = ""
        told = {"type": "resize", "width": width, "height": height}
        self.send(b"M", json.dumps(told).encode())

    def wait_for(self, word: str) -> None:
        """Read until this is painted, or told as meta information."""
        deadline = time.monotonic() + LIMIT_S
        while word not in self.painted and word not in self.meta:
            assert self._read(deadline), f"{word!r} did not come:\n{self.painted[-2000:]}"

    def _read(self, deadline: float) -> bool:
        """Take what has come; False when nothing will any more."""
        assert self.app.stdout is not None
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([self.app.stdout], [], [], left_s)[0]:
            return False
        piece = os.read(self.app.stdout.fileno(), 2**16)
        self._raw += piece
        self._take()
        return bool(piece)

    def _take(self) -> None:
        """Every packet that is whole."""
        if not self._begun:
            _, found, after = self._raw.partition(BEGIN)
            if not found:
                return
            self._begun, self._raw = True, after
        while len(self._raw) >= 5:
            length = int.from_bytes(self._raw[1:5], "big")
            if len(self._raw) < 5 + length:
                return
            kind, payload = self._raw[:1], self._raw[5 : 5 + length]
            self._raw = self._raw[5 + length :]
            if kind == b"D":
                self.painted += payload.decode()
            elif kind == b"M":
                self.meta.append(str(json.loads(payload)["type"]))

    def close(self) -> None:
        """End the app if it has not ended."""
        self.app.kill()
        self.app.wait()
        for pipe in (self.app.stdin, self.app.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def browser(tmp_path: Path) -> Generator[Browser]:
    """A recording shown in a browser's window."""
    made = Browser(tmp_path)
    yield made
    made.close()


def test_a_recording_is_walked_through_in_a_browser(browser: Browser) -> None:
    browser.wait_for("Machines found")
    browser.send(b"M", b'{"type": "focus"}')
    browser.press("4")
    browser.wait_for("What each box does")
    browser.resize(80, 24)
    browser.wait_for("TTFT")
    browser.press("?")
    browser.wait_for("Keys on this screen")
    browser.press("\x1b")
    # Help lies over this until it is gone: with the escape still unread, q would be alt+q.
    browser.wait_for("Longest wait")
    browser.press("q")
    browser.wait_for("exit")
    assert browser.app.wait(LIMIT_S) == 0
