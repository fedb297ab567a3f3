"""`homesplit up`: deploy to one box or two and start the engine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from homesplit.cli.deployment_text import deployment_lines, plan_lines
from homesplit.cli.mode_options import MODES, add_mode_options, setting_from
from homesplit.cli.output import add_json, command_context, print_json, say
from homesplit.cli.progress_line import with_progress_line
from homesplit.core.deployment import DeployPlan
from homesplit.errors import UsageError
from homesplit.io.platforms import target_from_key, this_target
from homesplit.stages import deploy
from homesplit.stages.context import Context
from homesplit.stages.deploy_blueprint import UpOptions
from homesplit.stages.deploy_ports import PORTS

_DESCRIPTION = """Shows every file, process, port and byte that it will add to each box, asks, and
does it. All lies in ~/.local/share/homesplit/box of the box's user; nothing needs root. Repeating
the command changes nothing that is right and goes on where an earlier one stopped. A box without
internet gets its packages from this machine: fetch them ahead, while this machine has internet,
with --fetch-only (and the weights with `homesplit model get`)."""


_BOUNDS = {"threads": (1, 4_096), "kv_blocks": (1, 2**31 - 1), "port": PORTS}


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "up", help="deploy and start the engine", description=_DESCRIPTION
    )
    parser.add_argument("--boxes", metavar="A[,B]", help="the boxes, by name or [user@]host[:port]")
    parser.add_argument("--model", metavar="M", help="a model folder or a fetched model's name")
    parser.add_argument("--mode", choices=MODES, default="colocated")
    add_mode_options(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads of each worker")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"))
    parser.add_argument(
        "--weights",
        choices=("same", "int8"),
        default="same",
        help="int8: linear layers quantised, quicker on a CPU, at a loss of quality",
    )
    parser.add_argument("--kv-blocks", type=int, metavar="N", help="KV blocks each worker takes")
    parser.add_argument("--port", type=int, metavar="N", help="first of the three ports on a box")
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="an address of the router's box at which the API is offered too, to whoever has its "
        "key; otherwise it is reached over SSH alone",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the changes, make none")
    parser.add_argument("--yes", action="store_true", help="do not ask before changing boxes")
    parser.add_argument(
        "--take-over", action="store_true", help="also when another desk holds a box"
    )
    parser.add_argument(
        "--fetch-only", action="store_true", help="only fetch packages for boxes without internet"
    )
    parser.add_argument(
        "--platform",
        metavar="P",
        help="with --fetch-only: the kind of box, as linux-x86_64-py3.11-cpu (default: this one)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan, ask, do."""
    with with_progress_line(command_context()) as ctx:
        if args.fetch_only:
            return _fetch_only(ctx, args)
        if not args.boxes or not args.model:
            raise UsageError("Give --boxes and --model.", do_next="See: homesplit up --help")
        _check_figures(args)
        boxes = tuple(name.strip() for name in args.boxes.split(",") if name.strip())
        setting = setting_from(args.mode, args)
        options = UpOptions(
            threads=args.threads,
            dtype=args.dtype,
            weights=args.weights,
            kv_blocks=args.kv_blocks,
            port=args.port,
            listen=args.listen,
            take_over=args.take_over,
        )
        if args.dry_run or not args.yes:
            plan = asyncio.run(deploy.plan_deployment(ctx, boxes, args.model, setting, options))
            if args.dry_run:
                return _show(plan, args)
            _ask(plan)
        deployment = asyncio.run(deploy.up(ctx, boxes, args.model, setting, options))
    if args.json:
        print_json(deployment)
    else:
        print("\n".join(deployment_lines(deployment)))
    return 0


def _check_figures(args: argparse.Namespace) -> None:
    """Raises UsageError, before a box is reached, for what no worker could do anything with."""
    for name, (least, most) in _BOUNDS.items():
        value: int | None = getattr(args, name)
        if value is not None and not least <= value <= most:
            word = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{word} {value}: it lies between {least:,} and {most:,}.",
                do_next=f"Give such a number, or leave {word} out to have one chosen.",
            )


def _show(plan: DeployPlan, args: argparse.Namespace) -> int:
    if args.json:
        print_json(plan)
    else:
        print("\n".join(plan_lines(plan)))
    return 0


def _ask(plan: DeployPlan) -> None:
    """Show the plan and let the person agree; without a terminal `--yes` must have said so."""
    say("\n".join(plan_lines(plan)))
    if not any(change.needed for change in plan.changes):
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "Nothing was changed: there is nobody to ask.",
            do_next="Add --yes to make these changes, or --dry-run to see them only.",
        )
    sys.stderr.write("Make these changes? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("Nothing was changed.")


def _fetch_only(ctx: Context, args: argparse.Namespace) -> int:
    own = this_target()
    # This machine, too, may be of a kind that there are no packages for.
    named = target_from_key(args.platform or own.key)
    target = named if args.platform else own
    house = asyncio.run(deploy.fetch_only(ctx, target))
    if args.json:
        files = len(house.manifest.files)
        print_json({"folder": str(house.folder), "packages": files, "bytes": house.manifest.bytes})
    else:
        print(house.folder)
    return 0
