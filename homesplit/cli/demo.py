"""`homesplit demo`: this machine alone teaches the mechanism."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from homesplit_engine.records import KV_WIRES

from homesplit.cli.output import add_json, command_context, print_json, say
from homesplit.core.demo_result import (
    DemoResult,
    demo_document,
    demo_problems,
    divergences,
)
from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.say import counted
from homesplit.errors import UsageError
from homesplit.stages.demo import MODEL, run_demo
from homesplit.view.figures_table import figure_lines
from homesplit.view.measured_rows import measured_rows


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """The `demo` command."""
    parser = subparsers.add_parser(
        "demo",
        help="two workers on this machine, every mode in turn",
        description="Two workers and a router on this machine, over loopback: it teaches the "
        "mechanism and measures no network. Without --headless it opens the terminal app.",
    )
    parser.add_argument(
        "--headless", action="store_true", help="run every mode, compare all text, no screen"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="load over all modes together (default 60)"
    )
    parser.add_argument("--out", type=Path, help="folder for the notebook's exports")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write the app's events, for `app --replay`"
    )
    parser.add_argument(
        "--kv-wire",
        choices=KV_WIRES,
        default="same",
        help="with --headless: one more split that sends KV so, and how far its texts stray",
    )
    parser.add_argument("--model", default=MODEL, help=f"model name or folder (default {MODEL})")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 1 when a request was lost or any text differs."""
    if not 1 <= args.seconds <= 3600:
        raise UsageError("--seconds must be between 1 and 3600.")
    if args.kv_wire != "same" and not args.headless:
        raise UsageError("--kv-wire goes with --headless.")
    if not args.headless:
        from homesplit.cli.app import run_app

        return run_app(demo=True, record=args.record)
    result = asyncio.run(
        run_demo(
            command_context(),
            seconds=args.seconds,
            out=args.out,
            model=args.model,
            kv_wire=args.kv_wire,
        )
    )
    if args.json:
        print_json(demo_document(result))
    else:
        _tell(result)
    problems = demo_problems(result)
    for problem in problems:
        say(f"homesplit: {problem}")
    return 1 if problems else 0


def _tell(result: DemoResult) -> None:
    """The modes as tables."""
    for told in figure_lines(measured_rows({"body": demo_document(result)})):
        print(told)
    same = "identical" if result.identical_text else "DIFFERENT"
    prompts = counted(result.compared_prompts, "prompt")
    print(f"Text over {prompts}: {same}. {LOOPBACK_LABEL.capitalize()}.")
    for found in divergences(result):
        print(f"{found.sentence}.")
    for path in result.exports:
        print(f"wrote {path}")
