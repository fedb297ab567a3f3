"""`homesplit mode X`: switch the running deployment's mode."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.mode_options import MODES, add_mode_options, setting_from
from homesplit.cli.output import add_json, command_context, print_json
from homesplit.stages import deploy


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("mode", help="switch the mode while it serves")
    parser.add_argument("mode", choices=MODES)
    add_mode_options(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Switch and say what is in force."""
    switched = asyncio.run(deploy.switch(command_context(), setting_from(args.mode, args)))
    if args.json:
        print_json(switched)
    else:
        print(f"mode {switched.setting.mode}, {switched.setting.prefill} prefill")
    return 0
