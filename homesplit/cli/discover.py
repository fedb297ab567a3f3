"""`homesplit discover`: the machines found, how, and why one is not usable."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.core.machine import FoundBox
from homesplit.stages.discover import discover


def add_parser(subparsers: Any) -> None:
    """Adds `discover` to the command line."""
    parser = subparsers.add_parser("discover", help="find machines in this network")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="how long to listen for announcements"
    )
    parser.add_argument(
        "targets", nargs="*", metavar="[USER@]HOST[:PORT]", help="machines to try by hand"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, then print."""
    seconds = min(max(args.seconds, 0.0), 300.0)
    boxes = asyncio.run(discover(command_context(), seconds=seconds, typed=args.targets))
    if args.json:
        print_json({"boxes": boxes})
        return 0
    for box in boxes:
        _print_box(box)
    return 0


def _print_box(box: FoundBox) -> None:
    note = "this machine" if box.this_machine else ", ".join(box.found_by)
    trust = (
        ""
        if box.this_machine or not box.host_key
        else ", key " + ("trusted" if box.trusted else "not yet trusted")
    )
    print(f"{'+' if box.usable else '-'} {box.name} ({note}{trust})")
    if box.why:
        print(f"    {box.why}")
    for address in box.addresses:
        way = f" over {address.interface}" if address.interface else ""
        print(
            f"    {address.address} port {address.port}{way}"
            + f": {address.why}" * bool(address.why)
        )
