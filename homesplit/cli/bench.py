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
    on_target,
    price_of,
    replay_of,
    seed_of,
    workload_of,
)
from homesplit.cli.load_checks import check_capacity, check_replay
from homesplit.cli.output import add_json, command_context, print_json, without_outcome
from homesplit.cli.progress_line import with_progress_line
from homesplit.cli.stopping import stopped_by_hand
from homesplit.core.bench_result import (
    BenchResult,
    bench_document,
    bench_sentence,
    energy_sentence,
    marked,
    rate_text,
    seconds_text,
    share_text,
)
from homesplit.core.capacity import CapacityResult, capacity_sentence
from homesplit.stages.bench import Target, bench
from homesplit.stages.capacity import capacity_document, find_capacity
from homesplit.stages.context import Context

HEAD = ("", "offered", "done", "TTFT p50", "p90", "TPOT p50", "stall p90", "attained", "good/s")
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
        help="search for the highest rate with nine of ten requests inside the targets",
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
    check_replay(args)
    workload = workload_of(ctx, args)
    if not args.json:
        ctx = without_outcome(ctx, "capacity")

    async def against(target: Target) -> CapacityResult:
        seconds = args.seconds or CAPACITY_SECONDS
        return await find_capacity(
            ctx,
            target,
            workload,
            seconds=seconds,
            seed=seed_of(args),
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
    asked = asked_of(ctx, args)

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
    """The run in a sentence, then the figures by class as an aligned table on stdout."""
    summary = result.summary
    rows: list[tuple[str, ...]] = [HEAD]
    for name, figures in (("all", summary.figures), *summary.by_class.items()):
        rows.append(
            (
                name,
                str(figures.offered),
                str(figures.completed),
                seconds_text(figures.ttft_s.p50),
                seconds_text(figures.ttft_s.p90),
                marked("tpot_s", summary, seconds_text(figures.tpot_s.p50)),
                seconds_text(figures.stall_s.p90),
                marked("attainment", summary, share_text(figures.attainment)),
                marked(
                    "goodput_requests_per_s",
                    summary,
                    rate_text(None if summary.no_data else figures.goodput_requests_per_s),
                ),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    print(bench_sentence(result))
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(energy_sentence([result]))
    print(f"counted: {summary.window.rule}")
    if summary.estimated:
        print("~ marks estimates: they rest on counts of tokens that the server did not tell")
    for note in summary.notes:
        print(f"note: {note}")
    print(f"seed {result.seed}")
