"""How fast the screen is there, what it costs, how soon a key is answered, whether it grows.

    python -m tests.bench.screen [--rate 50] [--seconds 30] [--keys 60] [--requests 20000] [--write]

The app runs in a pseudo-terminal of 120 by 40 as its users have it. First paint is `homesplit
app` from the start of its process to the first frame with its first panel. For the rest the app
follows a process that speaks as a router does (the router's own feed, a made-up busy run in split
mode), at true speed for cost and keys and as fast as asked for growth. `--write` keeps the page
in `results/screen.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from homesplit_engine.records import ModeSetting
from homesplit_engine.router.feed import Feed
from homesplit_engine.words import percentile

from tests.bench.busy_run import READS, WRITES, busy_run

SIZE = (120, 40)
FIRST_PAINT_S, CORE_SHARE, KEY_S, RSS_BYTES = 0.7, 0.05, 0.05, 150e6
PANEL = b"Machines found"
STARTS = 7
SETTLE_S = 6.0
FILL_REQUESTS = 16_000
"""After so many requests every ring of the app is full."""
FAST = 20.0
ALONE = (
    "from textual.app import App\nfrom textual.widgets import Static\n"
    "class Alone(App):\n def compose(self): yield Static('Machines found')\nAlone().run()"
)
DIALOGS = {
    "help opened": (b"?", b"Keys on this screen"),
    "chat opened": (b"c", b"Chat with the model"),
    "palette opened": (b"\x10", b"Everything you can do"),
}
"""The key for each and the first words of it."""
RESULT = Path(__file__).with_name("results") / "screen.md"
MIB = 2**20


# ------------------------------------------------------------------------- the far end


async def source(rate: float, speed: float) -> None:
    """A router's stream of events; prints its address, ends with its input."""
    feed = Feed()
    told = {"requests": 0, "events": 0}

    async def events(request: web.Request) -> web.StreamResponse:
        watcher = feed.watch([])
        assert watcher is not None
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(await watcher.take(5.0))
        return response

    async def count(request: web.Request) -> web.Response:
        return web.json_response(told)

    app = web.Application()
    app.router.add_get("/homesplit/events", events)
    app.router.add_get("/count", count)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    telling = asyncio.create_task(_tell(feed, rate, speed, told))
    await asyncio.to_thread(sys.stdin.read)
    telling.cancel()
    await runner.cleanup()


async def _tell(feed: Feed, rate: float, speed: float, told: dict[str, int]) -> None:
    began = time.monotonic()
    for at_s, event in busy_run(rate, began):
        wait_s = (at_s - began) / speed - (time.monotonic() - began)
        if wait_s > 0.002:
            await asyncio.sleep(wait_s)
        feed.tell(event)
        told["events"] += 1
        told["requests"] += type(event).__name__ == "RequestDone"


def app(url: str) -> None:
    """The real app on its Monitor screen, following `url` as a deployment that it found."""
    from homesplit.__main__ import seldom_look_for_garbage
    from homesplit.controller import Controller
    from homesplit.core import events
    from homesplit.core.choices import Choices
    from homesplit.core.deployment import DeployedBox, Deployment
    from homesplit.core.workload import Targets
    from homesplit.tui.app import HomesplitApp

    seldom_look_for_garbage()
    controller = Controller()
    setting = ModeSetting(mode="split", prefill_box=READS, decode_box=WRITES)
    boxes = tuple(
        DeployedBox(box=box, address="127.0.0.1", state="running") for box in (READS, WRITES)
    )

    def begin() -> None:
        targets = Targets(ttft_s=0.2, tpot_s=0.03)
        controller.emit(events.ChoiceMade(choices=Choices(boxes=(READS, WRITES), targets=targets)))
        controller.emit(
            events.DeploymentSeen(
                deployment=Deployment(
                    id="bench",
                    boxes=boxes,
                    router_box=WRITES,
                    model="made-up",
                    setting=setting,
                    router_port=0,
                    loopback=True,
                )
            )
        )
        controller.start("serve", lambda ctx: controller.follow(ctx, url, None))

    HomesplitApp(controller, start="monitor", on_start=begin, on_ready=gc.freeze).run()


# ------------------------------------------------------------------------ the terminal


class Terminal:
    """A program in a pseudo-terminal whose output is read and searched."""

    def __init__(self, command: list[str], home: Path) -> None:
        environ = {**os.environ, "HOMESPLIT_HOME": str(home), "TERM": "xterm-256color"}
        environ |= {"COLORTERM": "truecolor", "COLUMNS": str(SIZE[0]), "LINES": str(SIZE[1])}
        # Compiled once by the start that is not counted, as on anyone's machine.
        environ |= {"PYTHONPYCACHEPREFIX": str(home / "pycache")}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self.began_s = time.monotonic()
        self._process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)
        self._fd = ours
        self._seen = b""
        self.pid = self._process.pid

    def until(self, word: bytes, limit_s: float) -> float:
        """Read until `word` is painted; the moment it was. Raises TimeoutError."""
        deadline = time.monotonic() + limit_s
        while word not in self._seen:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{word!r} was not painted in {limit_s:g} s")
            self._read(left_s)
        moment = time.monotonic()
        self._seen = self._seen.partition(word)[2]
        return moment

    def drain(self, seconds: float) -> int:
        """Read and forget what is painted for so long; returns how many bytes."""
        deadline, read = time.monotonic() + seconds, len(self._seen)
        self._seen = b""
        while (left_s := deadline - time.monotonic()) > 0:
            self._read(left_s)
            read += len(self._seen)
            self._seen = b""
        return read

    def press(self, keys: bytes) -> float:
        """Press, forgetting what was painted before; the moment it was."""
        self.drain(0)
        moment = time.monotonic()
        os.write(self._fd, keys)
        return moment

    def _read(self, limit_s: float) -> None:
        if select.select([self._fd], [], [], limit_s)[0]:
            self._seen += os.read(self._fd, 2**16)

    def cpu_s(self) -> float:
        """Processor seconds of the program and all of its threads."""
        return self._schedule()[0]

    def queued_s(self) -> float:
        """Seconds its threads were ready to run while others had the cores."""
        return self._schedule()[1]

    def _schedule(self) -> tuple[float, float]:
        ran_s = queued_s = 0.0
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                ran, queued, _ = (thread / "schedstat").read_text().split()
                ran_s += int(ran) / 1e9
                queued_s += int(queued) / 1e9
        return ran_s, queued_s

    def rss_bytes(self) -> int:
        """Memory that it holds now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def maps(self, word: str) -> bool:
        """Whether a library with this in its name is loaded."""
        return word in Path(f"/proc/{self.pid}/maps").read_text()

    def close(self) -> None:
        """End the program."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=3)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._fd)


@contextlib.contextmanager
def following(rate: float, speed: float, home: Path) -> Generator[tuple[Terminal, str]]:
    """The app on Monitor, following a source of its own."""
    here = [sys.executable, "-m", "tests.bench.screen"]
    command = [*here, "--source", "--rate", str(rate), "--speed", str(speed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as far:
        assert far.stdout is not None
        url = far.stdout.readline().decode().strip()
        terminal = Terminal([*here, "--app", url], home)
        try:
            terminal.until(b"KV hand-off", 30)
            yield terminal, url
        finally:
            terminal.close()
            far.terminate()


# ---------------------------------------------------------------------------- measured


Answer = tuple[float, float]
"""Seconds until a key was answered, and those of them that the app queued for a core."""


class Start(NamedTuple):
    """One start: seconds to the first panel, on a processor, and queueing for one."""

    took_s: float
    cpu_s: float
    queued_s: float


def starts(command: list[str], home: Path) -> tuple[list[Start], bool]:
    """Each start of a program that paints `PANEL`, and whether torch came along.

    The first is not counted: it reads the files from the disk.
    """
    found: list[Start] = []
    with_torch = False
    for number in range(STARTS + 1):
        terminal = Terminal(command, home)
        try:
            took_s = terminal.until(PANEL, 30) - terminal.began_s
            one = Start(took_s, terminal.cpu_s(), terminal.queued_s())
            terminal.drain(1.5)
            with_torch = with_torch or terminal.maps("torch")
        finally:
            terminal.close()
        found += [one] if number else []
    return found, with_torch


def paints(home: Path) -> dict[str, Any]:
    """Starts of the app, and of an app of Textual alone with one line of text."""
    command = [str(Path(sys.executable).with_name("homesplit")), "app"]
    ours, torch = starts(command, home)
    alone, _ = starts([sys.executable, "-c", ALONE], home)
    return {"paints": ours, "alone": alone, "torch": torch}


def at_true_speed(args: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Cost and key latency while the events come as they would."""
    with following(args.rate, 1.0, home) as (terminal, _):
        terminal.drain(SETTLE_S)
        began_s, cpu_s = time.monotonic(), terminal.cpu_s()
        painted = terminal.drain(args.seconds)
        share = (terminal.cpu_s() - cpu_s) / (time.monotonic() - began_s)
        waits = list(_zooms(terminal, args.keys))
        opened = {
            name: list(_dialogs(terminal, key, word, max(args.keys // 2, 1)))
            for name, (key, word) in DIALOGS.items()
        }
        return {
            "core_share": share,
            "painted_bytes_per_s": painted / args.seconds,
            "keys": waits,
            "opened": opened,
            "rss_bytes": terminal.rss_bytes(),
        }


def _zooms(terminal: Terminal, count: int) -> Iterator[Answer]:
    """Zoom out and in at odd moments: the time axis has other words then."""
    dice = random.Random(1)
    for number in range(count):
        terminal.drain(dice.uniform(0.2, 0.6))
        key, word = (b"]", b"16 s ago") if number % 2 == 0 else (b"[", b"10 s ago")
        queued_s, pressed_s = terminal.queued_s(), terminal.press(key)
        took_s = terminal.until(word, 20) - pressed_s
        yield took_s, terminal.queued_s() - queued_s


def _dialogs(terminal: Terminal, key: bytes, word: bytes, count: int) -> Iterator[Answer]:
    """Open what lies over the screen that moves on, again and again."""
    dice = random.Random(2)
    for _ in range(count):
        terminal.drain(dice.uniform(0.2, 0.6))
        queued_s, pressed_s = terminal.queued_s(), terminal.press(key)
        took_s = terminal.until(word, 20) - pressed_s
        yield took_s, terminal.queued_s() - queued_s
        terminal.press(b"\x1b")
        terminal.drain(0.3)


def growth(args: argparse.Namespace, home: Path) -> dict[str, Any]:
    """Memory after the rings are full, and after many more requests."""
    with following(args.rate, FAST, home) as (terminal, url):
        first = _after(terminal, url, FILL_REQUESTS)
        before = terminal.rss_bytes()
        second = _after(terminal, url, first + args.requests)
        after = terminal.rss_bytes()
    return {"requests": second - first, "before": before, "after": after}


def _after(terminal: Terminal, url: str, requests: int) -> int:
    import json
    import urllib.request

    while True:
        terminal.drain(0.5)
        with urllib.request.urlopen(f"{url}/count", timeout=10) as answer:
            told = int(json.load(answer)["requests"])
        if told >= requests:
            terminal.drain(1.0)
            return told


# ------------------------------------------------------------------------------ report


def report(args: argparse.Namespace, found: dict[str, Any]) -> str:
    """The page."""
    ours, alone = found["paints"], found["alone"]
    times = _median([one.cpu_s for one in ours]) / _median([one.cpu_s for one in alone])
    grown = found["growth"]["after"] - found["growth"]["before"]
    rows = [
        ("first paint, median", _median([one.took_s for one in ours]), FIRST_PAINT_S, "s"),
        ("… of it on a core", _median([one.cpu_s for one in ours]), FIRST_PAINT_S, "s"),
        (f"core while {args.rate:g} requests/s end", found["core_share"] * 100, 5.0, "%"),
        ("memory then", found["rss_bytes"] / MIB, RSS_BYTES / MIB, "MiB"),
        *_answers("key answered", found["keys"]),
        *(row for name, waits in found["opened"].items() for row in _answers(name, waits)),
    ]
    lines = [
        "# The screen: first paint, cost, keys, growth",
        "",
        f"    python -m tests.bench.screen --rate {args.rate:g} --seconds {args.seconds:g} "
        f"--keys {args.keys} --requests {args.requests}",
        "",
        f"{time.strftime('%Y-%m-%d')}: {found['machine']}; load average {found['load'][0]:.1f} "
        f"before and {found['load'][1]:.1f} after. A terminal of {SIZE[0]} by {SIZE[1]}.",
        "",
        "| what | measured | target | ratio |",
        "| --- | --- | --- | --- |",
        *(
            f"| {what} | {value:.3g} {unit} | {target:.3g} {unit} | {value / target:.2f} |"
            for what, value, target, unit in rows
        ),
        "",
        f"An app of Textual alone with one line of text took "
        f"{_median([one.took_s for one in alone]):.2f} s in the same run, "
        f"{_median([one.cpu_s for one in alone]):.2f} s of it on a core: homesplit's start is "
        f"{times:.2f} times its processor time. torch is {'' if found['torch'] else 'not '}loaded. "
        "`Less queueing` leaves out the time in which the app was ready to run and other programs "
        "had the cores.",
        "",
        f"Growth: {found['growth']['requests']} more requests after the rings were full changed "
        f"the memory from {found['growth']['before'] / MIB:.1f} to "
        f"{found['growth']['after'] / MIB:.1f} MiB ({grown / MIB:+.1f} MiB), told "
        f"{FAST:g} times as fast as at {args.rate:g} a second.",
        "",
        f"While it monitors, {found['painted_bytes_per_s'] / 1024:.0f} KiB/s are painted.",
        "",
        "Not in it: the SSH forward that a deployment on other boxes goes through, a load that the "
        "app itself offers, and a real terminal's own time to draw.",
        "",
    ]
    return "\n".join(lines)


def _answers(what: str, found: list[Answer]) -> list[tuple[str, float, float, str]]:
    whole = sorted(took_s for took_s, _ in found)
    own = sorted(max(took_s - queued_s, 0.0) for took_s, queued_s in found)
    return [
        (f"{what}, p{share * 100:.0f}{kind}", percentile(values, share) * 1e3, KEY_S * 1e3, "ms")
        for values, kind in ((whole, ""), (own, " less queueing"))
        for share in (0.5, 0.99)
    ]


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _machine() -> str:
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in facts if "model name" in line), "?")
    return f"{os.cpu_count()} cores of {name}, Python {sys.version.split()[0]}"


def main() -> None:
    """Measure everything in one run, or be one of its other processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--source", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--speed", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--app", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.source:
        asyncio.run(source(args.rate, args.speed))
        return
    if args.app:
        app(args.app)
        return
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="homesplit-screen-") as folder:
        home = Path(folder)
        found = paints(home)
        found |= at_true_speed(args, home)
        found |= {"growth": growth(args, home), "machine": _machine()}
    found["load"] = [*load, os.getloadavg()[0]]
    text = report(args, found)
    print(text)
    if args.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
