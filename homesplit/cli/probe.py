"""`homesplit probe BOX [BOX]`: measures boxes and the link between them."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import msgspec

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.cli.probe_text import box_lines, link_lines
from homesplit.core.machine import BoxProfile
from homesplit.stages.probe import probe


def add_parser(subparsers: Any) -> None:
    """Adds `probe` to the command line."""
    parser = subparsers.add_parser("probe", help="measure boxes and the link between them")
    parser.add_argument("boxes", nargs="+", metavar="BOX", help="a name or [user@]host[:port]")
    parser.add_argument("--link", action="store_true", help="only the link between two boxes")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, save and print."""
    result = asyncio.run(probe(command_context(), args.boxes, only_link=args.link))
    if args.json:
        boxes = [_document(box) for box in result.boxes]
        print_json({"boxes": boxes, "link": result.link, "kept": result.kept})
        return 0
    lines = [line for box in result.boxes for line in box_lines(box)]
    if result.link:
        lines += link_lines(result.link)
    print("\n".join([*lines, *(f"  ! {sentence}" for sentence in result.kept)]))
    return 0


def _document(box: BoxProfile) -> dict[str, Any]:
    """The profile with its memory as a plain number of bytes, its reading beside it."""
    memory = box.memory_bytes
    value = None if memory.value is None else int(memory.value)
    return {**msgspec.to_builtins(box), "memory_bytes": value, "memory": memory}
