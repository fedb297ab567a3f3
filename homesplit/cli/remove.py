"""`homesplit remove BOX`: leave nothing behind."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.stages import deploy


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "remove",
        help="delete everything that was brought to a box",
        description="Stops what runs there, deletes ~/.local/share/homesplit/box and the empty "
        "folders above it that were made for it.",
    )
    parser.add_argument("box")
    parser.add_argument(
        "--take-over", action="store_true", help="also when another desk holds the box"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Remove and say so."""
    asyncio.run(deploy.remove(command_context(), args.box, take_over=args.take_over))
    if args.json:
        print_json({"removed": args.box})
    return 0
