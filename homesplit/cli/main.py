"""Parses the command line and runs one command; each command is a module of this package."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from homesplit import __version__
from homesplit.cli.output import fail, reader_has_left, say, silence
from homesplit.errors import HomesplitError

COMMANDS = (
    "demo",
    "discover",
    "probe",
    "plan",
    "cost",
    "profiles",
    "model",
    "up",
    "mode",
    "status",
    "down",
    "remove",
    "calibrate",
    "bench",
    "compare",
    "notebook",
    "info",
    "app",
)
"""Each names a module here with `add_parser(subparsers)`, which sets `run` as a default."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line; `run` in the namespace is the chosen command's function.

    With `only` it holds that command alone, for each pulls in what it needs.
    """
    parser = argparse.ArgumentParser(
        prog="homesplit",
        description="Measures two machines at home and says how they should share a language "
        "model. Without a command: the terminal app.",
    )
    parser.add_argument("--version", action="version", version=f"homesplit {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in (only,) if only in COMMANDS else COMMANDS:
        importlib.import_module(f"homesplit.cli.{name}").add_parser(subparsers)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code (0 done, 1 ran and failed, 2 wrong usage).

    A reader of stdout that leaves early, as `head` does, ends it quietly with 1.
    """
    try:
        try:
            return _run(argv)
        finally:
            # Here, where it can be caught: at exit Python would complain of a closed pipe.
            sys.stdout.flush()
    except BrokenPipeError:
        if not reader_has_left(sys.stdout):
            raise
        silence(sys.stdout)
        return 1


def _run(argv: Sequence[str]) -> int:
    # Without a command it is the app.
    words = argv or ("app",)
    args = build_parser(words[0]).parse_args(words)
    try:
        return int(args.run(args))
    except HomesplitError as error:
        return fail(error, as_json=getattr(args, "json", False))
    except KeyboardInterrupt:
        say("homesplit: stopped")
        return 1
