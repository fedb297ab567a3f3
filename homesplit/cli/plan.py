"""`homesplit plan`: the advice for two boxes, a link, a model and a load."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.cli.plan_text import plan_lines
from homesplit.core.workload import Targets
from homesplit.stages.plan import PlanQuestion, make_plan
from homesplit.stages.plan_entry import keep_with_curves_if_possible


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("plan", help="the advice: which arrangement to run")
    parser.add_argument(
        "--boxes",
        required=True,
        metavar="A,B",
        help="probed boxes, hardware profiles or TOML files",
    )
    parser.add_argument("--link", metavar="L", help="a link profile or a rate; else the probed one")
    parser.add_argument("--model", default="smollm2-135m", metavar="M", help="folder, file or name")
    parser.add_argument(
        "--weights",
        choices=("same", "int8"),
        default="same",
        help="int8: as `up --weights int8` has them, on processors",
    )
    parser.add_argument("--workload", metavar="W", help="a workload's name or a TOML file")
    parser.add_argument("--prompt-tokens", type=int, metavar="P", help="instead of a workload")
    parser.add_argument("--output-tokens", type=int, metavar="O", help="instead of a workload")
    parser.add_argument("--users", type=int, metavar="U", help="users at a time")
    parser.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="requests per second; of a load with turns, conversations",
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="the load ends then; else it goes on"
    )
    parser.add_argument("--ttft", type=float, metavar="S", help="TTFT target, seconds")
    parser.add_argument("--tpot", type=float, metavar="S", help="TPOT target, seconds")
    parser.add_argument("--no-flips", action="store_true", help="leave out what would change it")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Work out the advice and print it."""
    targets = None
    if args.ttft is not None or args.tpot is not None:
        targets = Targets(ttft_s=args.ttft, tpot_s=args.tpot)
    question = PlanQuestion(
        boxes=tuple(name.strip() for name in args.boxes.split(",") if name.strip()),
        link=args.link,
        model=args.model,
        weights=args.weights,
        workload=args.workload,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        users=args.users,
        rate_requests_per_s=args.rate,
        seconds=args.seconds,
        targets=targets,
        flips=not args.no_flips,
    )
    ctx = command_context()
    plan = make_plan(ctx, question)
    try:
        if args.json:
            print_json(plan)
        else:
            print("\n".join(plan_lines(plan)))
        sys.stdout.flush()
    finally:
        # After the answer, for the curves take a moment; also where its reader has gone.
        keep_with_curves_if_possible(ctx, question, plan)
    return 0
