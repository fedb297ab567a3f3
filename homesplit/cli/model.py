"""`homesplit model get` and `homesplit model show`."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.cli.progress_line import with_progress_line
from homesplit.core.known_models import known_names
from homesplit.stages import model as stage


def add_parser(subparsers: Any) -> None:
    """Add the command and its two actions."""
    parser = subparsers.add_parser("model", help="fetch or describe a model")
    actions = parser.add_subparsers(dest="action", required=True, metavar="get|show")
    get = actions.add_parser(
        "get",
        help="fetch a known model into the user's cache",
        description=f"Fetches a model, checks it by hash and keeps it in the user's cache. "
        f"Known: {known_names()}; or a hub repository as owner/name.",
    )
    get.add_argument("model")
    add_json(get)
    get.set_defaults(run=run_get)


def run_get(args: argparse.Namespace) -> int:
    """Fetch one model and print its folder."""
    with with_progress_line(command_context()) as ctx:
        folder = asyncio.run(stage.get_model(ctx, args.model))
    if args.json:
        print_json({"model": args.model, "folder": str(folder)})
    else:
        print(folder)
    return 0
