"""`homesplit down`: stop the deployment."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.stages import deploy


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "down",
        help="stop the engine on the boxes",
        description="Ends every process and deletes the keys; weights and packages stay there.",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Stop everything."""
    stopped = asyncio.run(deploy.down(command_context()))
    if args.json:
        names = [box.box for box in stopped.boxes] if stopped else []
        print_json({"stopped": names})
    return 0
