"""Makes the pictures in this folder from a real run: `python -m screenshots`.

A lab of two boxes is made (Linux, root), the app is led along the whole road there by keys, and
its run is kept in `two-boxes.jsonl.gz`, from which the pictures are drawn. `--replay FILE` draws
them from a run that was recorded before with `homesplit app --record FILE`. Where no lab can be
made, `--demo` takes two workers on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from homesplit.controller import Controller
from homesplit.io.event_log import read_events
from homesplit.io.paths import Paths, user_paths
from homesplit.replay import Replay
from homesplit.tui.app import HomesplitApp
from screenshots import lab
from screenshots.raster import to_png
from screenshots.recorded import moments

FOLDER = Path(__file__).parent
RECORDING = FOLDER / "two-boxes.jsonl.gz"
SIZE = (120, 40)
START_S = 300.0
COMPARE_S = 900.0


async def from_recording(file: Path) -> None:
    """A picture of each kind that the recorded run can give."""
    for moment in moments(tuple(read_events(file))):
        controller = _Still(moment.events, speed=0)
        app = HomesplitApp(controller, start=moment.screen, on_start=controller.begin)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(1.5)
            _keep(app, moment.name)


class _Still(Replay):
    """Shown as it was for who ran it."""

    recorded = False


async def from_demo() -> None:
    """The whole run."""
    with tempfile.TemporaryDirectory(prefix="homesplit-pictures-") as home:
        own = Path(home)
        paths = Paths(config=own / "config", cache=user_paths().cache, data=own / "data")
        controller = Controller(paths=paths)
        controller.demo = True
        app = HomesplitApp(controller, start="monitor", on_start=controller.begin_demo)
        async with app.run_test(size=SIZE) as pilot:
            await _pictures(app, controller, pilot)
            await controller.close()


async def _pictures(app: HomesplitApp, controller: Controller, pilot: Pilot[None]) -> None:
    await _until(lambda: controller.state.engine.total_requests >= 12, START_S)
    _keep(app, "monitor-colocated")
    for mode in ("colocated-chunked", "replica", "split"):
        await pilot.press("m")
        await asyncio.sleep(14)
        await pilot.pause()
        _keep(app, f"monitor-{mode}")
    await pilot.press("1")
    await pilot.pause(0.5)
    _keep(app, "machines")
    await pilot.press("5", "enter")
    await _until(lambda: controller.state.verdict is not None, COMPARE_S)
    await pilot.pause(0.5)
    _keep(app, "compare")
    await pilot.press("6")
    await pilot.pause(0.5)
    _keep(app, "notebook")


async def _until(ready: object, seconds: float) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not ready():  # type: ignore[operator]
        if asyncio.get_running_loop().time() > deadline:
            sys.exit("the run did not get as far as the pictures need")
        await asyncio.sleep(0.5)


def _keep(app: HomesplitApp, name: str) -> None:
    svg = FOLDER / f"{name}.svg"
    svg.write_text(app.export_screenshot(title="homesplit"))
    to_png(svg)
    print(svg.relative_to(Path.cwd()) if svg.is_relative_to(Path.cwd()) else svg)  # noqa: T201


def main() -> None:
    """Read the switches and make the pictures."""
    parser = argparse.ArgumentParser(prog="python -m screenshots")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="take a recorded run")
    parser.add_argument("--demo", action="store_true", help="take a run on this machine alone")
    args = parser.parse_args()
    if args.demo:
        asyncio.run(from_demo())
        return
    if args.replay is None:
        if lacks := lab.lacks():
            sys.exit(f"{'; '.join(lacks)}. Or take --replay or --demo.")
        lab.record(RECORDING)
    asyncio.run(from_recording(args.replay or RECORDING))


if __name__ == "__main__":
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
    main()
