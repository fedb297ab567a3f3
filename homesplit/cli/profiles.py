"""`homesplit profiles`: the machines, links, models and loads that can be named."""

from __future__ import annotations

import argparse
from typing import Any

from msgspec import to_builtins

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.io.profile_list import KINDS, Listed, listed


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "profiles", help="machines, links, models and workloads that can be named"
    )
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only these")
    parser.add_argument("--find", metavar="TEXT", help="only those whose name holds it")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every profile by its name; the user's own are marked."""
    ctx = command_context()
    kinds = (args.kind,) if args.kind else KINDS
    found = {
        kind: [each for each in listed(kind, ctx.paths) if each.holds(args.find or "")]
        for kind in kinds
    }
    if args.json:
        print_json({kind: to_builtins(rows) for kind, rows in found.items()})
        return 0
    for kind, rows in found.items():
        own = ctx.paths.user_profiles / kind
        print(f"{kind}: {len(rows)} (your own, marked *, lie in {own})")
        width = max((len(each.name) for each in rows), default=0)
        for each in rows:
            print(f"{'*' if each.own else ' '} {each.name:<{width}}  {_told(each)}")
    return 0


def _told(each: Listed) -> str:
    if each.why:
        return f"can't be used: {each.why}"
    return each.full_name
