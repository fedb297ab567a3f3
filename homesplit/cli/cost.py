"""`homesplit cost`: the cost model's bare answer for one box and model."""

from __future__ import annotations

import argparse
from typing import Any

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.core import say
from homesplit.core.cost import Interval, cost_model, kv_dtype_of, placed
from homesplit.errors import UsageError
from homesplit.io import profiles
from homesplit.stages.plan import check_weights, read_box, read_calibrations

MOST_TOKENS = 100_000_000


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("cost", help="seconds of prefill and decode on one box")
    parser.add_argument("--box", required=True, help="a probed box, hardware profile or TOML file")
    parser.add_argument("--model", required=True, help="a model folder, file or name")
    parser.add_argument("--prompt-tokens", type=int, required=True, metavar="P")
    parser.add_argument(
        "--cached", type=int, default=0, metavar="C", help="of these, there already"
    )
    parser.add_argument("--context", type=int, metavar="T", help="tokens in all that decode reads")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="answers written at once")
    parser.add_argument(
        "--weights", choices=("same", "int8"), default="same", help="as `up --weights` has them"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the intervals."""
    for name, value, least in (
        ("--prompt-tokens", args.prompt_tokens, 1),
        ("--cached", args.cached, 0),
        ("--context", args.context, 0),
        ("--batch", args.batch, 1),
    ):
        if value is not None and not least <= value <= MOST_TOKENS:
            raise UsageError(f"{name} is {value}; it must lie between {least} and {MOST_TOKENS:,}.")
    if args.cached > args.prompt_tokens:
        raise UsageError("--cached is more than --prompt-tokens.")
    ctx = command_context()
    box = read_box(ctx, args.box)
    described = profiles.load_model(args.model, ctx.paths)
    check_weights(args.weights, (box,), described)
    shape = placed(box, described, args.weights)
    fits = read_calibrations(ctx, (box,), shape)
    fit = next((fit for fit in fits if fit.weights == args.weights), None)
    model = cost_model(box, shape, calibration=fit, kv_dtype=kv_dtype_of(shape.dtype))
    context = args.batch * args.prompt_tokens if args.context is None else args.context
    prefill = model.prefill_s(args.prompt_tokens, args.cached)
    decode = model.decode_step_s(args.batch, context)
    if args.json:
        print_json(
            {
                "prefill_s": prefill,
                "decode_step_s": decode,
                "source": model.source,
                "box": box.name,
                "model": shape.name,
                "weights_dtype": shape.dtype,
                "weights_bytes": shape.weights_bytes,
                "kv_dtype": model.kv_dtype,
            }
        )
    else:
        print(f"prefill     {_told(prefill)}")
        print(f"decode step {_told(decode)}")
        size = say.size(shape.weights_bytes)
        print(f"weights     {shape.name} in {shape.dtype} ({size}); KV cache in {model.kv_dtype}")
        print(f"source      {model.source}")
    return 0


def _told(value: Interval) -> str:
    return f"{say.seconds(value.mid)} ({say.seconds(value.low)} to {say.seconds(value.high)})"
