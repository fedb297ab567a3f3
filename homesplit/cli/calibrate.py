"""`homesplit calibrate`: times the running engine's own steps, so that `plan` can use them."""

from __future__ import annotations

import argparse
import asyncio

import msgspec

from homesplit.cli.load_arguments import add_server_arguments, on_target
from homesplit.cli.output import add_json, command_context, print_json
from homesplit.core import say
from homesplit.core.calibration import Calibration
from homesplit.core.explain import ROUGH
from homesplit.stages.bench import Target
from homesplit.stages.calibrate import CalibrateResult, calibrate
from homesplit.stages.context import Context


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the command."""
    parser = subparsers.add_parser("calibrate", help="time the running engine's steps on each box")
    add_server_arguments(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when every box got a fit."""
    result = asyncio.run(_calibrate(command_context(), args))
    if args.json:
        print_json(msgspec.to_builtins(result))
    else:
        for fit in result.boxes:
            print(_line(fit))
        for each in result.missing:
            print(f"{each.box}: no fit, {each.why}")
    return 1 if result.missing else 0


async def _calibrate(ctx: Context, args: argparse.Namespace) -> CalibrateResult:
    async def against(target: Target) -> CalibrateResult:
        return await calibrate(ctx, target)

    return await on_target(ctx, args, against)


def _line(fit: Calibration) -> str:
    prompt, answer = fit.step_seconds([(0, 512)], 0, 0), fit.step_seconds([], 1, 512)
    rough = "; the box was busy: calibrate again" if fit.error_p50 > ROUGH else ""
    return (
        f"{fit.box}: {fit.steps} steps; 512 prompt tokens {say.seconds(prompt)}, "
        f"a decode step {say.seconds(answer)}; fit off by {fit.error_p50:.1%} in the median, "
        f"{fit.error_p90:.1%} at p90{rough}"
    )
