"""`homesplit compare`: the same requests through each mode on the same boxes."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.load_arguments import (
    add_load_arguments,
    add_server_arguments,
    add_shape_arguments,
    add_trace_arguments,
    asked_of,
    key_in,
    on_target,
    price_of,
    replay_of,
    seed_of,
)
from homesplit.cli.load_checks import check_also
from homesplit.cli.output import add_json, command_context, print_json, without_outcome
from homesplit.cli.progress_line import with_progress_line
from homesplit.core.compare_result import CompareResult, compare_document
from homesplit.errors import UsageError
from homesplit.stages.bench import Target
from homesplit.stages.compare import SECONDS, check_modes, compare
from homesplit.stages.context import Context
from homesplit.view.figures_table import ESTIMATES, figure_lines, point_lines
from homesplit.view.measured_rows import measured_rows
from homesplit.view.notebook_words import beside


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("compare", help="measure modes against each other")
    parser.add_argument(
        "--modes",
        default="colocated:whole,colocated:chunked,replica,split",
        help="comma-separated, each MODE or MODE:whole or MODE:chunked; split:fp16 and split:int8 "
        "send KV with less precision, and how far their texts stray is told",
    )
    parser.add_argument("--repeats", type=int, default=2, help="rounds, order reversed each time")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="URL",
        help="another server as one more column, such as what you would otherwise run",
    )
    parser.add_argument("--also-api-key-file", metavar="FILE", help="a file with that server's key")
    parser.add_argument("--also-model", metavar="M", help="the model's name there")
    add_server_arguments(parser)
    add_load_arguments(parser)
    add_shape_arguments(parser)
    add_trace_arguments(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when every mode gave figures and the texts agree, else 1."""
    if args.repeats < 1:
        raise UsageError("--repeats must be 1 or more.")
    with with_progress_line(command_context()) as ctx:
        shown = ctx if args.json else without_outcome(ctx, "compare", ("recalibrate",))
        result = asyncio.run(_compare(shown, args))
    if args.json:
        print_json(compare_document(result))
    else:
        show(result)
    lacking = any(mode.pooled.no_data for mode in result.modes)
    return 1 if lacking or result.identical_text is False else 0


async def _compare(ctx: Context, args: argparse.Namespace) -> CompareResult:
    seed, price = seed_of(args), price_of(args)
    modes = [text for text in args.modes.split(",") if text.strip()]
    check_modes(modes)
    check_also(args)
    asked = asked_of(ctx, args, args.seconds or SECONDS, seed)
    also_key = key_in(args.also_api_key_file)
    also = [Target(url=url, api_key=also_key, model=args.also_model) for url in args.also]

    async def on(target: Target) -> CompareResult:
        servers = [target, *also]
        workload, plan = (asked, None) if asked else await replay_of(args, servers, seed)
        return await compare(
            ctx,
            target,
            modes,
            workload,
            seconds=args.seconds or SECONDS,
            repeats=args.repeats,
            seed=seed,
            plan=plan,
            also=also,
            warm_up=args.warm_up,
            drain=args.drain,
            price_per_kwh=price,
        )

    return await on_target(ctx, args, on)


def show(result: CompareResult) -> None:
    """Print the figures by mode, what was predicted of each, and last the verdict."""
    page = {"body": compare_document(result), "sentence": result.sentence}
    rows = measured_rows(page)
    for told in figure_lines(rows):
        print(told)
    print()
    estimated = any(mode.pooled.estimated for mode in result.modes)
    points = [*beside(page, rows), *((ESTIMATES,) if estimated else ()), *result.learnt]
    for told in point_lines(points):
        print(told)
    print()
    print(result.sentence or result.verdict.sentence)
