"""The load as the arguments of `bench` and `compare` mean it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from homesplit.cli.load_arguments import (
    add_load_arguments,
    add_server_arguments,
    add_shape_arguments,
    add_trace_arguments,
    api_key_of,
    asked_of,
    price_of,
    trace_plan,
    workload_of,
)
from homesplit.cli.load_checks import check_also, check_capacity, check_server, refuse_server
from homesplit.cli.main import run
from homesplit.core.load import plan_load
from homesplit.errors import UsageError
from homesplit.io.paths import Paths
from homesplit.stages.context import Context

TYPED = ("--prompt-tokens", "40", "--output-tokens", "5")


def parsed(*words: str) -> argparse.Namespace:
    return bare(*TYPED, *words)


def bare(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_server_arguments(parser)
    add_load_arguments(parser)
    add_shape_arguments(parser)
    add_trace_arguments(parser)
    return parser.parse_args(words)


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
    assert workload(tmp_path, "--rate", "2", "--turns", "2", "--think", "3").turn_think_s == 3.0
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
        ("--users", "0"),
        ("--seconds", "0"),
        ("--ttft", "-1"),
        ("--tpot", "nan"),
        ("--warm-up", "-1"),
        ("--shared-prefix", "40"),
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
        ("--shared-prefix", "10", "--groups", "0"),
        ("--cancel-share", "2"),
        ("--cancel-share", "0.1", "--cancel-after", "0"),
        ("--users", "2", "--think", "-1"),
    ],
)
def test_a_load_that_cannot_be_planned_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        plan_load(workload(tmp_path, *words), seed=1, seconds=10.0)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--users", "2", "--burstiness", "3"), "--burstiness"),
        (("--users", "2", "--ramp-to", "3"), "--ramp-to"),
        (("--users", "2", "--on-off", "3,4"), "--on-off"),
        (("--workload", "chat", "--ramp-to", "3"), "--ramp-to"),
        (("--rate", "2", "--think", "3"), "--think"),
        (("--think", "3"), "--think"),
        (("--groups", "3"), "--groups"),
        (("--cancel-after", "3"), "--cancel-after"),
        (("--workload", "chat", "--prompt-tokens", "3"), "--prompt-tokens"),
        (("--workload", "chat", "--output-tokens", "3"), "--output-tokens"),
        (("--speed", "2"), "--speed"),
        (("--limit", "2"), "--limit"),
        (("--max-context", "2"), "--max-context"),
        (("--max-output", "2"), "--max-output"),
        (("--trace", "x.csv", "--rate", "2"), "--rate"),
        (("--trace", "x.csv", "--users", "2", "--think", "3"), "--users and --think"),
        (("--trace", "x.csv", "--workload", "chat"), "--workload"),
        (("--trace", "x.csv", "--turns", "2"), "--turns"),
        (("--trace", "x.csv", "--shared-prefix", "2"), "--shared-prefix"),
        (("--trace", "x.csv", "--cancel-share", "0.2"), "--cancel-share"),
        (("--trace", "x.csv", "--burstiness", "2"), "--burstiness"),
    ],
)
def test_an_option_that_means_nothing_beside_the_others_is_refused_by_its_name(
    tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    whole = {"--trace", "--workload"} & set(words)
    args = bare(*(() if whole else TYPED), *words)
    ctx = Context(paths=Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d"))
    with pytest.raises(UsageError, match=f"{named} can't be meant here"):
        asked_of(ctx, args, 30.0, 1)


@contextlib.contextmanager
def told_once(text: str) -> Generator[str, None, None]:
    """A file as a shell's `<(command)` gives it: what was read of it is gone."""
    reading, writing = os.pipe()
    try:
        os.write(writing, text.encode())
        os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


def test_a_key_and_a_trace_may_come_from_pipes(tmp_path: Path) -> None:
    ctx = Context(paths=Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d"))
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,900,100\n"
    rows += "2023-11-16 18:15:56.0000000,90,10\n"
    with told_once("secret\n") as key, told_once(rows) as trace:
        args = bare("--url", "http://127.0.0.1:9", "--api-key-file", key, "--trace", trace)
        assert asked_of(ctx, args, 30.0, 1) is None
        assert api_key_of(args) == "secret"
        assert len(trace_plan(args, 1, None).requests) == 2
    with told_once("secret\n") as key:
        args = bare(*TYPED, "--url", "http://127.0.0.1:9", "--api-key-file", key)
        assert asked_of(ctx, args, 30.0, 1) is not None and api_key_of(args) == "secret"


@pytest.mark.parametrize(
    "words",
    [
        ("--users", "2", "--think", "3"),
        ("--workload", "chat", "--rate", "2", "--burstiness", "3"),
        ("--workload", "chat", "--groups", "3"),
        ("--workload", "agent", "--think", "3"),
    ],
)
def test_an_option_that_the_workload_gives_a_meaning_is_taken(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    args = bare(*(() if "--workload" in words else TYPED), *words)
    ctx = Context(paths=Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d"))
    assert asked_of(ctx, args, 30.0, 1) is not None


@pytest.mark.parametrize(
    "words",
    [
        ("--trace", "x.csv"),
        ("--users", "2"),
        ("--ramp-to", "3"),
        ("--warm-up", "3"),
        ("--price-per-kwh", "3"),
    ],
)
def test_a_search_for_capacity_refuses_what_it_has_no_use_for(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=words[0]):
        check_capacity(bare(*words))


def test_a_key_or_a_model_of_no_server_is_refused() -> None:
    with pytest.raises(UsageError, match="--api-key-file"):
        check_server(bare("--api-key-file", "x"))
    check_server(bare("--api-key-file", "x", "--url", "http://127.0.0.1:1"))
    also = argparse.Namespace(also=[], also_api_key_file=None, also_model="m")
    with pytest.raises(UsageError, match="--also-model"):
        check_also(also)


def test_a_server_named_for_an_entry_that_asks_none_is_refused() -> None:
    with pytest.raises(UsageError, match="--url and --model can't be meant here: it is a plan"):
        refuse_server(bare("--url", "http://127.0.0.1:1", "--model", "m"), "it is a plan")


@pytest.mark.parametrize("command", ["bench", "compare"])
def test_what_is_refused_is_wrong_usage_of_the_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "--url", "http://127.0.0.1:9", *TYPED, "--users", "2", "--burstiness", "3"]
    assert run(words) == 2
    assert "--burstiness can't be meant here" in capsys.readouterr().err


@pytest.mark.parametrize("price", ["-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(price: str) -> None:
    with pytest.raises(UsageError):
        price_of(parsed("--price-per-kwh", price))
