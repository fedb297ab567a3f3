"""Arguments that `bench` and `compare` share: which load, against whom."""

from __future__ import annotations

import argparse
import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from homesplit.cli.load_checks import (
    check_meaning,
    check_named,
    check_numbers,
    check_replay,
    check_server,
)
from homesplit.core.load import LoadPlan, with_load
from homesplit.core.replay import recorded, replay
from homesplit.core.workload import Arrivals, Targets, Workload, fixed_lengths
from homesplit.errors import UsageError
from homesplit.io.endpoint import base_url
from homesplit.io.traces import read_trace
from homesplit.stages.bench import Target, context_of, counted_window, deployed, make_load
from homesplit.stages.context import Context

SECONDS = 60.0
OF_CONTEXT = 0.97
"""Of a server's context, what a replay fills: made-up words hold a few tokens more or fewer than
planned, and a request that is too long by one is refused."""
_Shaped = TypeVar("_Shaped", Workload, Arrivals)
_T = TypeVar("_T")


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked: a workload profile, or lengths, with rate or users, targets and seed."""
    load = parser.add_argument_group("load")
    load.add_argument("--workload", metavar="W", help="a workload profile's name or a TOML file")
    load.add_argument("--prompt-tokens", type=int, metavar="P", help="instead of a workload")
    load.add_argument("--output-tokens", type=int, metavar="O", help="instead of a workload")
    load.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="requests per second, open loop; with turns, conversations per second",
    )
    load.add_argument("--users", type=int, metavar="N", help="users at a time, closed loop")
    load.add_argument("--seconds", type=float, metavar="N", help="how long requests are offered")
    load.add_argument("--ttft", type=float, metavar="S", help="TTFT target, seconds")
    load.add_argument("--tpot", type=float, metavar="S", help="TPOT target, seconds")
    load.add_argument(
        "--seed",
        type=int,
        help="the same seed gives the same requests; without it a fresh one is drawn and told",
    )
    load.add_argument(
        "--price-per-kwh",
        type=float,
        metavar="M",
        help="what a kilowatt-hour costs, for the cost of 1,000 good tokens where power is told",
    )
    edge = "instead of a tenth of the run, at most 5 s"
    for flag, end in (("--warm-up", "beginning"), ("--drain", "end")):
        told = f"leave out what is due in so many seconds of its {end}, {edge}"
        load.add_argument(flag, type=float, metavar="S", help=told)


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """How the load is shaped, each in place of what the workload says."""
    shape = parser.add_argument_group("shape of the load")
    shape.add_argument("--burstiness", type=float, metavar="C", help="1 Poisson, 0 even, 3 bursts")
    shape.add_argument("--ramp-to", type=float, metavar="R", help="the rate at the end of the run")
    shape.add_argument("--on-off", metavar="ON,OFF", help="seconds on and off, in turns")
    shape.add_argument("--think", type=float, metavar="S", help="pause of a user or between turns")
    shape.add_argument("--turns", type=int, metavar="N", help="questions of one conversation")
    shape.add_argument("--shared-prefix", type=int, metavar="N", help="tokens that prompts share")
    shape.add_argument("--groups", type=int, metavar="N", help="how many different prefixes")
    shape.add_argument("--cancel-share", type=float, metavar="X", help="users who give up, 0 to 1")
    shape.add_argument("--cancel-after", type=float, metavar="S", help="their mean patience")


def shaped(workload: Workload, args: argparse.Namespace) -> Workload:
    """The workload with what the arguments say of its shape; raises UsageError.

    A pause is that of a user of a closed loop, and the one between turns of a conversation.
    """
    arrivals = _given(
        workload.arrivals,
        burstiness=args.burstiness,
        think_s=args.think,
        ramp_to_requests_per_s=args.ramp_to,
        pattern=_pattern(args),
        **_phases(args.on_off),
    )
    return _given(
        workload,
        arrivals=arrivals,
        turns=args.turns,
        turn_think_s=args.think,
        shared_prefix_tokens=args.shared_prefix,
        shared_prefix_groups=args.groups,
        cancel_share=args.cancel_share,
        cancel_after_s=args.cancel_after,
    )


def _given(base: _Shaped, **values: object) -> _Shaped:
    return replace(base, **{key: value for key, value in values.items() if value is not None})


def _pattern(args: argparse.Namespace) -> str | None:
    return "ramp" if args.ramp_to is not None else "on_off" if args.on_off is not None else None


def _phases(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    try:
        on, off = (float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError("--on-off takes two numbers of seconds, as 10,5.") from error
    if not (0 < on < float("inf") and 0 <= off < float("inf")):
        raise UsageError("--on-off takes seconds above 0.")
    return {"on_s": on, "off_s": off}


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Against whom: any OpenAI-compatible server, or the current deployment."""
    server = parser.add_argument_group("server")
    server.add_argument("--url", help="an OpenAI-compatible server; else the current deployment")
    server.add_argument("--api-key-file", metavar="FILE", help="a file that holds the server's key")
    server.add_argument("--model", help="the model's name there; else the first one listed")
    server.add_argument("--api", choices=("chat", "completions"), help="which door to use")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Replaying a recorded load instead of drawing one."""
    trace = parser.add_argument_group("replay")
    trace.add_argument("--trace", metavar="FILE", help="Azure CSV, BurstGPT CSV, Mooncake JSONL")
    trace.add_argument("--speed", type=float, metavar="X", help="replay so many times as fast")
    trace.add_argument("--limit", type=int, metavar="N", help="at most so many requests")
    trace.add_argument(
        "--max-context",
        type=int,
        metavar="N",
        help="scale all lengths so that the longest fits; else by what the server tells",
    )
    trace.add_argument("--max-output", type=int, metavar="N", help="cut answers to so many tokens")


async def on_target(
    ctx: Context, args: argparse.Namespace, work: Callable[[Target], Awaitable[_T]]
) -> _T:
    """Do the work on the server named, or on the current deployment; raises UsageError."""
    check_server(args)
    if args.url:
        key = api_key_of(args)
        return await work(
            Target(url=args.url, api_key=key, model=args.model, api=args.api, named=True)
        )
    async with deployed(ctx) as target:
        return await work(dataclasses.replace(target, model=args.model, api=args.api))


def price_of(args: argparse.Namespace) -> float | None:
    """The price of a kilowatt-hour; raises UsageError where it can't be one."""
    price = args.price_per_kwh
    if price is not None and not 0 <= price < float("inf"):
        raise UsageError("--price-per-kwh must be a number from 0 on.")
    return price


def seed_of(args: argparse.Namespace) -> int:
    """The seed asked for, or a fresh one."""
    return secrets.randbelow(2**31) if args.seed is None else int(args.seed)


def api_key_of(args: argparse.Namespace) -> str | None:
    """The key of the server to measure, None without one; raises UsageError.

    Read once and kept: the file may be a pipe, which tells it only once.
    """
    if not hasattr(args, "api_key"):
        args.api_key = key_in(args.api_key_file)
    return args.api_key


def key_in(file: str | None) -> str | None:
    """The key in the file named, None without one; raises UsageError."""
    if file is None:
        return None
    path = Path(file)
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the API key file can't be read.",
            where=str(path),
            do_next="Check the path and its permissions.",
        ) from error


def asked_of(ctx: Context, args: argparse.Namespace, seconds: float, seed: int) -> Workload | None:
    """The load asked for, None where a trace brings it; raises UsageError or ProfileError.

    All that is wrong with it is told here, before a server is asked anything.
    """
    check_replay(args)
    if args.trace is None:
        return drawn_of(ctx, args, seconds, seed)
    check_addresses(args)
    check_numbers(args)
    counted_window(trace_plan(args, seed, None).seconds, args.warm_up, args.drain)
    return None


def drawn_of(ctx: Context, args: argparse.Namespace, seconds: float, seed: int) -> Workload:
    """The load to be drawn for a run of `seconds`; raises UsageError or ProfileError."""
    check_addresses(args)
    workload = workload_of(ctx, args)
    plan = make_load(workload, seconds=seconds, seed=seed)
    counted_window(plan.seconds, args.warm_up, args.drain)
    return workload


def check_addresses(args: argparse.Namespace) -> None:
    """Raises UsageError for an address that can't be one, and for a key that can't be read."""
    for url in (args.url, *getattr(args, "also", ())):
        if url is not None:
            base_url(url)
    check_server(args)
    api_key_of(args)


def workload_of(ctx: Context, args: argparse.Namespace) -> Workload:
    """The workload as the arguments mean it; raises UsageError or ProfileError."""
    check_numbers(args)
    check_named(args)
    base = _named(ctx, args.workload) if args.workload else _typed(args)
    made = with_load(
        shaped(base, args),
        rate_requests_per_s=args.rate,
        users=args.users,
        ttft_s=args.ttft,
        tpot_s=args.tpot,
    )
    check_meaning(args, made)
    return made


def _named(ctx: Context, name: str) -> Workload:
    # Imported here: profiles are only read when one is named.
    from homesplit.io.profiles import load_workload

    return load_workload(name, ctx.paths)


def _typed(args: argparse.Namespace) -> Workload:
    prompt, output = args.prompt_tokens, args.output_tokens
    if prompt is None or output is None:
        raise UsageError(
            "no load is named.",
            do_next="Give --workload W, or --prompt-tokens P and --output-tokens O.",
        )
    return fixed_lengths(
        prompt,
        output,
        name=f"{prompt}+{output} tokens",
        arrivals=Arrivals(rate_requests_per_s=1.0),
    )


async def replay_of(
    args: argparse.Namespace, servers: Sequence[Target], seed: int
) -> tuple[Workload, LoadPlan]:
    """The trace to replay on these servers, its lengths scaled to what all of them take.

    Raises UsageError, ProfileError.
    """
    told = [] if args.max_context else [await context_of(server) for server in servers]
    least = min((length for length in told if length), default=None)
    plan = trace_plan(args, seed, least and int(least * OF_CONTEXT))
    made = recorded(plan, Targets())
    return with_load(made, ttft_s=args.ttft, tpot_s=args.tpot), plan


def trace_plan(args: argparse.Namespace, seed: int, served_context: int | None) -> LoadPlan:
    """The replay asked for, scaled to what the server takes; raises UsageError, ProfileError."""
    if not hasattr(args, "trace_read"):
        # Kept: the file may be a pipe, which tells it only once.
        args.trace_read = read_trace(Path(args.trace))
    try:
        return replay(
            args.trace_read,
            seed=seed,
            speed=1.0 if args.speed is None else args.speed,
            limit=args.limit,
            seconds=args.seconds,
            max_context_tokens=args.max_context or served_context,
            max_output_tokens=args.max_output,
        )
    except ValueError as error:
        raise UsageError(f"{error}.", where=str(args.trace)) from error
