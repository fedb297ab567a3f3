"""`homesplit status`: how the deployment stands."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.deployment_text import deployment_lines
from homesplit.cli.output import add_json, command_context, print_json
from homesplit.core.deployment import Deployment
from homesplit.stages.brought import standing
from homesplit.view.brought import brought_lines

_NOTHING = "Nothing is deployed from here. Another desk's: homesplit status BOX [BOX]"


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "status",
        help="how the deployment stands",
        description="Asks every box. Exit code 0 when all runs, 1 when something does not. With "
        "names it looks at those boxes, also when another desk deployed there. When not all runs, "
        "it tells what lies on the boxes, whole or half made, and how large. Changes nothing.",
    )
    parser.add_argument("boxes", nargs="*", metavar="BOX")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    names = tuple(args.boxes)
    stand = asyncio.run(standing(command_context(), names))
    if args.json:
        print_json(stand)
    else:
        lines = [stand.at_work] if stand.at_work else []
        lines += _lines(stand.deployment, names)
        lines += brought_lines(stand.brought or (), at_work=stand.at_work is not None)
        print("\n".join(lines))
    return 0 if stand.runs or stand.deployment is None else 1


def _lines(deployment: Deployment | None, names: tuple[str, ...]) -> list[str]:
    if deployment is not None:
        return deployment_lines(deployment)
    return ["Nothing is deployed there." if names else _NOTHING]
