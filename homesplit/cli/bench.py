"""`homesplit bench`: load and goodput, against any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio

from homesplit.cli.load_arguments import (
    SECONDS,
    add_load_arguments,
    add_server_arguments,
    add_shape_arguments,
    add_trace_arguments,
    asked_of,
    drawn_of,
    on_target,
    price_of,
    replay_of,
    seed_of,
)
from homesplit.cli.load_checks import check_capacity, check_no_search, check_replay
from homesplit.cli.output import add_json, command_context, print_json, without_outcome
from homesplit.cli.progress_line import with_progress_line
from homesplit.cli.stopping import stopped_by_hand
from homesplit.core.bench_result import (
    BenchResult,
    bench_document,
    bench_sentence,
)
from homesplit.core.capacity import CapacityResult, capacity_sentence
from homesplit.stages.bench import Target, bench
from homesplit.stages.capacity import WITHIN_S, capacity_document, check_search, find_capacity
from homesplit.stages.context import Context
from homesplit.view.figures_table import ESTIMATES, figure_lines, point_lines
from homesplit.view.measured_rows import measured_rows
from homesplit.view.notebook_words import beside

CAPACITY_SECONDS = 30.0
"""Shortest run of each rate that the search for capacity tries."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """The command's arguments."""
    parser = subparsers.add_parser("bench", help="measure a server under load")
    add_server_arguments(parser)
    add_load_arguments(parser)
    add_shape_arguments(parser)
    add_trace_arguments(parser)
    parser.add_argument(
        "--capacity",
        action="store_true",
        help="search for the highest rate with nine of ten requests inside the targets; each "
        "rate is tried for --seconds (30), or until 60 requests count",
    )
    parser.add_argument(
        "--within",
        type=float,
        metavar="S",
        help=f"with --capacity: begin no run that would end later (default {WITHIN_S:g} s)",
    )
    parser.add_argument("--no-notebook", action="store_true", help="keep no entry of this run")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when at least one request was completed, 1 when there is no data or it was stopped."""
    with with_progress_line(command_context()) as ctx:
        if args.capacity:
            return _capacity(ctx, args)
        shown = ctx if args.json else without_outcome(ctx, "bench")
        result = asyncio.run(_bench(shown, args))
    if args.json:
        print_json(bench_document(result))
    else:
        _print_table(result)
    return 1 if result.summary.no_data or result.stopped else 0


def _capacity(ctx: Context, args: argparse.Namespace) -> int:
    """0 when a capacity was found."""
    check_capacity(args)
    seconds, seed = args.seconds or CAPACITY_SECONDS, seed_of(args)
    check_replay(args)
    workload = drawn_of(ctx, args, seconds, seed)
    within_s = WITHIN_S if args.within is None else args.within
    check_search(workload, seconds, within_s)
    if not args.json:
        ctx = without_outcome(ctx, "capacity")

    async def against(target: Target) -> CapacityResult:
        return await find_capacity(
            ctx,
            target,
            workload,
            seconds=seconds,
            seed=seed,
            within_s=within_s,
            keep=not args.no_notebook,
        )

    result = asyncio.run(on_target(ctx, args, against))
    if args.json:
        print_json(capacity_document(result))
    else:
        print(capacity_sentence(result))
    return 1 if result.capacity_requests_per_s is None else 0


async def _bench(ctx: Context, args: argparse.Namespace) -> BenchResult:
    seed, price = seed_of(args), price_of(args)
    check_no_search(args)
    asked = asked_of(ctx, args, args.seconds or SECONDS, seed)

    async def against(target: Target) -> BenchResult:
        workload, plan = (asked, None) if asked else await replay_of(args, [target], seed)
        with stopped_by_hand() as stop:
            return await bench(
                ctx,
                target,
                workload,
                seconds=args.seconds or SECONDS,
                seed=seed,
                plan=plan,
                warm_up=args.warm_up,
                drain=args.drain,
                stop=stop,
                keep=not args.no_notebook,
                price_per_kwh=price,
            )

    return await on_target(ctx, args, against)


def _print_table(result: BenchResult) -> None:
    """The run in a sentence, then its figures by class with their intervals, on stdout."""
    page = {"body": bench_document(result), "sentence": bench_sentence(result)}
    rows = measured_rows(page)
    print(page["sentence"])
    print()
    for told in figure_lines(rows):
        print(told)
    print()
    estimates = (ESTIMATES,) if result.summary.estimated else ()
    for told in point_lines([*beside(page, rows), *estimates, f"seed {result.seed}"]):
        print(told)
