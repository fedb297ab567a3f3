"""The load as the arguments of `bench` and `compare` mean it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from homesplit.cli.load_arguments import (
    add_load_arguments,
    add_shape_arguments,
    price_of,
    workload_of,
)
from homesplit.core.load import plan_load
from homesplit.errors import UsageError
from homesplit.io.paths import Paths
from homesplit.stages.context import Context

TYPED = ("--prompt-tokens", "40", "--output-tokens", "5")


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_load_arguments(parser)
    add_shape_arguments(parser)
    return parser.parse_args([*TYPED, *words])


def workload(folder: Path, *words: str) -> Any:
    ctx = Context(paths=Paths(config=folder / "c", cache=folder / "k", data=folder / "d"))
    return workload_of(ctx, parsed(*words))


def test_a_load_is_shaped_by_its_arguments(tmp_path: Path) -> None:
    made = workload(
        tmp_path,
        *("--rate", "2", "--burstiness", "3", "--turns", "3", "--shared-prefix", "10"),
        *("--groups", "4", "--cancel-share", "0.5", "--cancel-after", "2", "--ramp-to", "8"),
    )
    assert (made.turns, made.shared_prefix_tokens, made.shared_prefix_groups) == (3, 10, 4)
    assert (made.cancel_share, made.cancel_after_s) == (0.5, 2.0)
    arrivals = made.arrivals
    assert (arrivals.pattern, arrivals.rate_requests_per_s) == ("ramp", 2.0)
    assert (arrivals.ramp_to_requests_per_s, arrivals.burstiness) == (8.0, 3.0)
    requests = plan_load(made, seed=1, seconds=20.0).requests
    assert any(r.cancel_after_s for r in requests)
    assert {r.turn for r in requests} == {0, 1, 2}


def test_users_think_and_a_load_goes_on_and_off(tmp_path: Path) -> None:
    assert workload(tmp_path, "--users", "2", "--think", "3").arrivals.think_s == 3.0
    arrivals = workload(tmp_path, "--rate", "2", "--on-off", "4,6").arrivals
    assert (arrivals.pattern, arrivals.on_s, arrivals.off_s) == ("on_off", 4.0, 6.0)


@pytest.mark.parametrize(
    "words",
    [
        ("--on-off", "4"),
        ("--on-off", "0,1"),
        ("--on-off", "a,b"),
        ("--on-off", "4,4", "--ramp-to", "3"),
        ("--rate", "0"),
        ("--rate", "1", "--users", "1"),
    ],
)
def test_a_shape_that_cannot_be_is_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        workload(tmp_path, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("--ramp-to", "0"),
        ("--burstiness", "-1"),
        ("--burstiness", "nan"),
        ("--turns", "0"),
        ("--shared-prefix", "-1"),
        ("--groups", "0"),
        ("--cancel-share", "2"),
        ("--cancel-share", "0.1", "--cancel-after", "0"),
        ("--think", "-1"),
    ],
)
def test_a_load_that_cannot_be_planned_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        plan_load(workload(tmp_path, *words), seed=1, seconds=10.0)


@pytest.mark.parametrize("price", ["-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(price: str) -> None:
    with pytest.raises(UsageError):
        price_of(parsed("--price-per-kwh", price))
