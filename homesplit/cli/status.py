"""`homesplit status`: how the deployment stands."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.deployment_text import deployment_lines
from homesplit.cli.output import add_json, command_context, print_json
from homesplit.core.deployment import Deployment
from homesplit.stages import deploy
from homesplit.stages.brought import boxes_brought_to, look_at
from homesplit.stages.context import Context
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
    ctx, names = command_context(), tuple(args.boxes)
    deployment = asyncio.run(deploy.status(ctx, names))
    runs = deployment is not None and _runs(deployment)
    # While all runs, what it runs from is there.
    lying = None if runs else asyncio.run(look_at(ctx, _to_look_at(ctx, names, deployment)))
    if args.json:
        print_json({"deployment": deployment, "brought": lying})
    else:
        print("\n".join([*_lines(deployment, names), *brought_lines(lying or ())]))
    return 0 if runs or deployment is None else 1


def _runs(deployment: Deployment) -> bool:
    words = [box.state for box in deployment.boxes] + [deployment.router_state]
    return all(word == "running" for word in words)


def _lines(deployment: Deployment | None, names: tuple[str, ...]) -> list[str]:
    if deployment is not None:
        return deployment_lines(deployment)
    return ["Nothing is deployed there." if names else _NOTHING]


def _to_look_at(
    ctx: Context, names: tuple[str, ...], deployment: Deployment | None
) -> tuple[str, ...]:
    """The named boxes, or those that something was brought to; not those just out of reach."""
    seen = deployment.boxes if deployment else ()
    away = {box.box for box in seen if box.state == "unreachable"}
    return tuple(name for name in names or boxes_brought_to(ctx) if name not in away)
