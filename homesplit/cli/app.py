"""Starts the terminal app: for real, on this machine alone, or over a recorded run."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from homesplit.controller import Controller
from homesplit.errors import UsageError
from homesplit.io.event_log import EventLog, read_events
from homesplit.replay import Replay


def run_app(
    demo: bool = False,
    *,
    replay: Path | None = None,
    record: Path | None = None,
    speed: float = 1.0,
) -> int:
    """Run the app until it is left; returns the exit code.

    `replay` shows a recorded run instead of anything real; `record` writes this run's
    events to a file that `replay` can show.
    """
    if not (_is_served() or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise UsageError(
            "The app needs a terminal, and this is none.",
            do_next="`homesplit --help` lists the commands that work without one.",
        )
    from homesplit.tui.app import HomesplitApp

    log = EventLog(record) if record is not None else None
    if replay is not None:
        controller: Controller = Replay(tuple(read_events(replay)), speed=speed)
    else:
        controller = Controller(log=log)
        controller.demo = demo
    begin = controller.begin_demo if demo else controller.begin
    start = "monitor" if demo else "machines"
    # What is imported stays: looking through it for garbage would hold up a key.
    app = HomesplitApp(controller, start=start, on_start=begin, on_ready=gc.freeze)
    app.run()
    return app.return_code or 0


def _is_served() -> bool:
    """Whether a browser is the terminal: `textual serve` names its driver, and talks by pipes."""
    return os.environ.get("TEXTUAL_DRIVER", "").startswith("textual.drivers.web_driver:")


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],  # pyright: ignore[reportPrivateUsage]
) -> None:
    """`homesplit app`: the terminal app with its rarer switches."""
    parser = subparsers.add_parser("app", help="the terminal app (also without any command)")
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="show a recorded run (.jsonl or .jsonl.gz); touches no machine",
    )
    parser.add_argument("--speed", type=float, default=1.0, help="how fast to replay")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write this run's events")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    return run_app(replay=args.replay, record=args.record, speed=args.speed)
