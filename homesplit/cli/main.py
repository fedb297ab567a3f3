"""Parses the command line and runs one command; each command is a module of this package."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from homesplit import __version__
from homesplit.cli.output import fail
from homesplit.errors import HomesplitError

COMMANDS = (
    "demo",
    "discover",
    "probe",
    "plan",
    "cost",
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


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; `run` in the namespace is the chosen command's function."""
    parser = argparse.ArgumentParser(
        prog="homesplit",
        description="Measures two machines at home and says how they should share a language "
        "model. Without a command: the terminal app.",
    )
    parser.add_argument("--version", action="version", version=f"homesplit {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"homesplit.cli.{name}").add_parser(subparsers)
    return parser


def run(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code (0 done, 1 ran and failed, 2 wrong usage)."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        from homesplit.cli.app import run_app

        return run_app()
    try:
        return int(args.run(args))
    except HomesplitError as error:
        return fail(error, as_json=getattr(args, "json", False))
    except KeyboardInterrupt:
        print("homesplit: stopped", file=sys.stderr)
        return 1
