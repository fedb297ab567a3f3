"""`homesplit status`: how the deployment stands."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.deployment_text import deployment_lines
from homesplit.cli.output import add_json, command_context, print_json
from homesplit.stages import deploy

_NOTHING = "Nothing is deployed from here. Another desk's: homesplit status BOX [BOX]"


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "status",
        help="how the deployment stands",
        description="Asks every box. Exit code 0 when all runs, 1 when something does not. With "
        "names it looks at those boxes, also when another desk deployed there; changes nothing.",
    )
    parser.add_argument("boxes", nargs="*", metavar="BOX")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    deployment = asyncio.run(deploy.status(command_context(), tuple(args.boxes)))
    if args.json:
        print_json({"deployment": deployment})
    elif deployment is None:
        print("Nothing is deployed there." if args.boxes else _NOTHING)
    else:
        print("\n".join(deployment_lines(deployment)))
    if deployment is None:
        return 0
    words = [box.state for box in deployment.boxes] + [deployment.router_state]
    return 0 if all(word == "running" for word in words) else 1
