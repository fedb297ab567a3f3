"""`homesplit model get` and `homesplit model show`."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.cli.progress_line import with_progress_line
from homesplit.core.known_models import known_names
from homesplit.stages import model as stage
from homesplit.view.numbers import count, size

_LENGTHS = (1024, 8192)


def add_parser(subparsers: Any) -> None:
    """Add the command and its two actions."""
    parser = subparsers.add_parser("model", help="fetch or describe a model")
    actions = parser.add_subparsers(dest="action", required=True, metavar="get|show")
    get = actions.add_parser(
        "get",
        help="fetch a known model into the user's cache",
        description=f"Fetches a model, checks it by hash and keeps it in the user's cache. "
        f"Known: {known_names()}; or a hub repository as owner/name.",
    )
    get.add_argument("model")
    add_json(get)
    get.set_defaults(run=run_get)
    show = actions.add_parser(
        "show",
        help="shape, bytes and fingerprint",
        description="Describes a model folder, a fetched model, a config.json, a GGUF file or a "
        "model profile.",
    )
    show.add_argument("model")
    show.add_argument(
        "--tokens",
        type=_lengths,
        default=_LENGTHS,
        metavar="N,…",
        help="lengths to tell KV bytes for",
    )
    show.add_argument("--kv-dtype", default="fp16", metavar="T", help="fp16, bf16, fp32, int8, …")
    show.add_argument(
        "--weights",
        choices=("same", "int8"),
        default="same",
        help="the fingerprint of a worker with the weights in the KV's dtype, or int8",
    )
    add_json(show)
    show.set_defaults(run=run_show)


def run_get(args: argparse.Namespace) -> int:
    """Fetch one model and print its folder."""
    with with_progress_line(command_context()) as ctx:
        folder = asyncio.run(stage.get_model(ctx, args.model))
    if args.json:
        print_json({"model": args.model, "folder": str(folder)})
    else:
        print(folder)
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Describe one model."""
    shown = stage.show_model(
        command_context(),
        args.model,
        tokens=args.tokens,
        kv_dtype=args.kv_dtype,
        weights=args.weights,
    )
    if args.json:
        print_json(shown)
        return 0
    print(f"{shown.model}: {count(shown.parameters)} parameters, {shown.layers} layers")
    if shown.active_parameters != shown.parameters:
        print(f"  active per token  {count(shown.active_parameters)}")
    print(f"  attention         {shown.attention}")
    print(f"  weights           {size(shown.weights_bytes)} ({shown.dtype})")
    print(f"  KV per token      {size(shown.kv_bytes_per_token)} ({shown.kv_dtype})")
    for tokens, kept in shown.kv_bytes.items():
        print(f"  KV of {tokens:<11} {size(kept)}")
    print(f"  fingerprint       {shown.fingerprint or f'none: {shown.fingerprint_why}'}")
    return 0


def _lengths(text: str) -> tuple[int, ...]:
    """Token counts of `N,N,…`; argparse turns the error into exit code 2."""
    lengths = tuple(int(part) for part in text.split(",") if part.strip())
    if not lengths or any(length < 1 for length in lengths):
        raise argparse.ArgumentTypeError("give lengths of 1 token or more, as 1024,8192")
    return lengths
