"""`homesplit compare`: the same requests through each mode on the same boxes."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit_engine.words import Figures

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
from homesplit.core.bench_result import (
    energy_sentence,
    marked,
    rate_text,
    seconds_text,
    share_text,
)
from homesplit.core.compare_result import CompareResult, ModeRuns, compare_document
from homesplit.core.predict_run import Predicted
from homesplit.core.say import counted
from homesplit.errors import UsageError
from homesplit.stages.bench import Target
from homesplit.stages.compare import SECONDS, compare
from homesplit.stages.context import Context

_PREDICTED = "  predicted"
"""What stands before a mode's prediction, in the column of the modes' names."""


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
    asked, seed, price = asked_of(ctx, args), seed_of(args), price_of(args)
    modes = [text for text in args.modes.split(",") if text.strip()]
    if not modes:
        raise UsageError("--modes names no mode.")
    check_also(args)
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


def _rate(figures: Figures | Predicted) -> str:
    found = figures.goodput_requests_per_s
    return rate_text(None) if found is None else f"{rate_text(found)}/s"


def _predicted(mode: ModeRuns) -> str:
    found = mode.predicted
    if found is None:
        return f"nothing: {mode.predicted_why}"
    low, high = seconds_text(found.ttft_s.low), seconds_text(found.ttft_s.high)
    return (
        f"TTFT p50 {seconds_text(found.ttft_s.p50)} ({low} to {high})  TPOT p50 "
        f"{seconds_text(found.tpot_s.p50)}  stalled p90 {seconds_text(found.stall_s.p90)}  "
        f"attained {share_text(found.attainment)}  goodput {_rate(found)}"
    )


def show(result: CompareResult) -> None:
    """Print the figures by mode, what was predicted of each, and the verdict."""
    width = max(len(name) for name in (_PREDICTED, *(mode.name for mode in result.modes)))
    for mode in result.modes:
        figures = mode.pooled.figures
        print(
            f"{mode.name:<{width}}  {figures.completed}/{figures.offered} done  "
            f"TTFT p50 {seconds_text(figures.ttft_s.p50)}  TPOT p50 "
            f"{marked('tpot_s', mode.pooled, seconds_text(figures.tpot_s.p50))}  "
            f"stalled p90 {seconds_text(figures.stall_s.p90)}  "
            f"attained {marked('attainment', mode.pooled, share_text(figures.attainment))}  "
            f"goodput {marked('goodput_requests_per_s', mode.pooled, _rate(figures))}"
        )
        print(f"{_PREDICTED:<{width}}  {_predicted(mode)}")
        print(f"  {energy_sentence(mode.runs)}")
    print(f"counted: {result.modes[0].pooled.window.rule}")
    texts = {True: "identical", False: "DIFFERENT", None: "not compared"}[result.identical_text]
    print(f"text over {counted(result.compared_prompts, 'prompt')}: {texts}")
    for each in result.divergences:
        print(each.sentence)
    if result.trade:
        print(result.trade)
    print(result.verdict.sentence)
    for note in (*result.notes, *result.learnt):
        print(f"note: {note}")
