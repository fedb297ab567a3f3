"""Options of a load that mean nothing beside the others: refused by name, never passed over."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from homesplit.core.workload import Workload
from homesplit.errors import UsageError

_OPEN = ("burstiness", "ramp_to", "on_off")
_LENGTHS = ("prompt_tokens", "output_tokens")
_DRAWN = (
    *("workload", "rate", "users", *_LENGTHS, *_OPEN),
    *("think", "turns", "shared_prefix", "groups", "cancel_share", "cancel_after"),
)
"""What draws a load, which a trace brings."""
_REPLAY = ("speed", "limit", "max_context", "max_output")
_EDGES = ("warm_up", "drain")
_ABOVE_0 = ("seconds", "rate", "ttft", "tpot", "speed", "within")
_FROM_1 = (*_LENGTHS, "users", "limit", "max_context", "max_output")


def check_numbers(args: argparse.Namespace) -> None:
    """Raises UsageError for a figure that can't be meant."""
    for name in _ABOVE_0:
        value = getattr(args, name, None)
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{_flag(name)} must be above 0.")
    for name in _FROM_1:
        value = getattr(args, name, None)
        if value is not None and value < 1:
            raise UsageError(f"{_flag(name)} must be 1 or more.")
    for name in _EDGES:
        value = getattr(args, name)
        if value is not None and not 0 <= value < math.inf:
            raise UsageError(f"{_flag(name)} must be 0 or more seconds.")


def check_replay(args: argparse.Namespace) -> None:
    """Raises UsageError for what a trace brings itself, and what only a trace can use."""
    if args.trace is not None:
        _refuse(args, _DRAWN, "a trace brings its own times and lengths")
    else:
        _refuse(args, _REPLAY, "it shapes a replay", "Give --trace FILE, or leave it out.")


def check_named(args: argparse.Namespace) -> None:
    """Raises UsageError where two options say the same thing in two ways."""
    if args.rate is not None and args.users is not None:
        raise UsageError("--rate and --users exclude each other.", do_next="Give one of them.")
    if args.ramp_to is not None and args.on_off is not None:
        raise UsageError("--ramp-to and --on-off exclude each other.", do_next="Give one of them.")
    if args.workload is not None:
        _refuse(args, _LENGTHS, "the workload brings its own lengths")


def check_meaning(args: argparse.Namespace, workload: Workload) -> None:
    """Raises UsageError for an option that the load as it came out has no use for."""
    if workload.arrivals.kind == "closed":
        why = "users who wait for their answers send at no rate of their own"
        _refuse(args, _OPEN, why, "Give --rate, or leave it out.")
    elif workload.turns == 1:
        why = "nobody waits for an answer in an open loop of single requests"
        _refuse(args, ("think",), why, "Give --users or --turns, or leave it out.")
    shortest = min((kind.prompt_tokens_low for kind in workload.classes), default=1)
    if workload.shared_prefix_tokens == 0:
        _refuse(args, ("groups",), "nothing is shared", "Give --shared-prefix N.")
    elif workload.shared_prefix_tokens >= shortest:
        why = (
            f"it must be shorter than the shortest prompt, {shortest} tokens, which begins with it"
        )
        _refuse(args, ("shared_prefix",), why, "Give fewer tokens.")
    if workload.cancel_share == 0:
        _refuse(args, ("cancel_after",), "nobody gives up", "Give --cancel-share X.")


def check_server(args: argparse.Namespace) -> None:
    """Raises UsageError for a key without the server that it is for."""
    if not args.url:
        _refuse(args, ("api_key_file",), "a deployment has its own key", "Give --url U as well.")


def refuse_server(args: argparse.Namespace, why: str) -> None:
    """Raises UsageError for a server that is named and won't be asked."""
    _refuse(args, ("url", "api_key_file", "model", "api"), why)


def check_also(args: argparse.Namespace) -> None:
    """Raises UsageError for what is told of another server that isn't named."""
    if not args.also:
        names = ("also_api_key_file", "also_model")
        _refuse(args, names, "no other server is named", "Give --also URL as well.")


def check_capacity(args: argparse.Namespace) -> None:
    """Raises UsageError for what a search for the highest rate has no use for."""
    search = "--capacity tries rates of its own"
    _refuse(args, ("trace", "users", "ramp_to"), search)
    _refuse(args, (*_EDGES, "price_per_kwh"), "--capacity tells a rate alone")


def check_no_search(args: argparse.Namespace) -> None:
    """Raises UsageError for a search's bound where nothing is searched for."""
    _refuse(args, ("within",), "one run lasts --seconds", "Give --capacity, or leave it out.")


def _refuse(
    args: argparse.Namespace,
    names: Sequence[str],
    why: str,
    do_next: str = "Leave it out.",
) -> None:
    given = [_flag(name) for name in names if getattr(args, name, None) is not None]
    if given:
        raise UsageError(f"{' and '.join(given)} can't be meant here: {why}.", do_next=do_next)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
