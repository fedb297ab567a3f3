"""Whatever stands in a file, it is taken with figures that are finite, or refused by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from homesplit.core.cost import cost_model
from homesplit.core.load import plan_load
from homesplit.core.machine import BoxProfile
from homesplit.core.model_config import shape_from_config
from homesplit.core.predict import load_of
from homesplit.core.profile_files import (
    box_from_table,
    link_from_table,
    model_from_table,
    workload_from_table,
)
from homesplit.core.shape import ModelShape
from homesplit.core.workload import Workload
from homesplit.errors import ProfileError
from tests.core.configs import CONFIGS
from tests.core.more_configs import MORE

Path = tuple[str | int, ...]

HARDWARE: dict[str, Any] = {
    "name": "x",
    "memory_bytes": 8e9,
    "memory_bytes_per_s": 1e11,
    "flops_per_s": {"fp16": 1e13},
    "watts": 100.0,
    "price": 500.0,
    "cores": 4,
}
LINK: dict[str, Any] = {
    "name": "l",
    "payload_bytes_per_s": 1e8,
    "payload_back_bytes_per_s": 2e8,
    "label_bytes_per_s": 1.25e8,
    "round_trip_p50_s": 1e-3,
    "round_trip_p99_s": 2e-3,
}
MODEL: dict[str, Any] = {
    "name": "m",
    "parameters": 1_000_000_000,
    "active_parameters": 500_000_000,
    "weights_bytes": 2_000_000_000,
    "layers": 16,
    "kv_heads": 8,
    "head_dim": 64,
    "heads": 32,
    "hidden": 2048,
    "vocabulary": 32000,
    "max_context": 4096,
    "sliding_layers": 4,
    "sliding_window": 512,
    "shared_layers": 2,
    "recurrent_layers": 2,
    "state_elements": 1000,
    "plain_layers": 1,
}
WORKLOAD: dict[str, Any] = {
    "name": "w",
    "classes": [
        {"name": "a", "share": 1.0, "prompt_tokens": [10, 200], "output_tokens": [5, 20]},
        {"name": "b", "share": 0.5, "pairs": [[10, 20], [30, 40, 2.0]]},
    ],
    "arrivals": {
        "pattern": "on_off",
        "rate_requests_per_s": 1.0,
        "on_s": 3.0,
        "off_s": 3.0,
        "burstiness": 1.0,
        "think_s": 0.0,
        "users": 3,
    },
    "targets": {"ttft_s": 1.0, "tpot_s": 0.1},
    "shared_prefix_tokens": 10,
    "shared_prefix_groups": 2,
    "turns": 2,
    "turn_think_s": 1.0,
    "cancel_share": 0.1,
    "cancel_after_s": 1.0,
}
HUGE = 10**30
ODD: tuple[Any, ...] = (
    *(None, 0, -1, 1, 2.5, HUGE, 1e300, 1e-300, -0.0),
    *(math.nan, math.inf, -math.inf),
    *("", "x", "12", True, False),
    *([], [0], ["x"], [1, 2, 3], [[1]], {}, {"a": 1}),
)
BOX = box_from_table(HARDWARE, where="x.toml")
SHAPE = model_from_table(MODEL, where="m.toml")
ALL_CONFIGS = {**CONFIGS, **MORE}


def places(table: Mapping[str, Any] | list[Any], path: Path = ()) -> Iterator[Path]:
    """The way to every value of a table, tables and lists in it too."""
    entries = enumerate(table) if isinstance(table, list) else table.items()
    for key, value in entries:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def with_value(table: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """The table with another value at one place."""
    made: Any = copy.deepcopy(table)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


def finite(figures: Iterator[float]) -> bool:
    return all(math.isfinite(figure) and figure >= 0 for figure in figures)


def of_shape(shape: ModelShape) -> Iterator[float]:
    yield from (shape.parameters, shape.weights_bytes, shape.active_parameters)
    for tokens in (1, 1_000, 100_000):
        yield shape.kv_bytes(tokens, "fp16")
        yield shape.prefill_flops(tokens)
        yield shape.step_weight_bytes(tokens)


def of_cost(box: BoxProfile, shape: ModelShape) -> Iterator[float]:
    cost = cost_model(box, shape)
    for each in (cost.prefill_s(2_000), cost.decode_step_s(3, 5_000)):
        yield from (each.low, each.mid, each.high)


def of_load(workload: Workload) -> Iterator[float]:
    load, _ = load_of(workload, 20, seed=1)
    yield from (request.prompt_tokens + request.output_tokens for request in load.requests)
    yield from (request.send_at_s or 0.0 for request in load.requests)
    yield from (r.pause_s for r in plan_load(workload, seed=1, seconds=1.0).requests)


def of_box(table: dict[str, Any]) -> Iterator[float]:
    return of_cost(box_from_table(table, where="odd.toml"), SHAPE)


def of_link(table: dict[str, Any]) -> Iterator[float]:
    link = link_from_table(table, "a", "b", where="odd.toml")
    readings = (link.a_to_b, link.b_to_a, link.latency_s.p50, link.latency_s.p99)
    return (reading.value for reading in readings if reading.value is not None)


def of_model(table: dict[str, Any]) -> Iterator[float]:
    shape = model_from_table(table, where="odd.toml")
    yield from of_shape(shape)
    yield from of_cost(BOX, shape)


def of_workload(table: dict[str, Any]) -> Iterator[float]:
    return of_load(workload_from_table(table, where="odd.toml"))


TABLES: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], Iterator[float]]]] = {
    "hardware": (HARDWARE, of_box),
    "link": (LINK, of_link),
    "model": (MODEL, of_model),
    "workload": (WORKLOAD, of_workload),
    "closed": (
        with_value(WORKLOAD, ("arrivals",), {"kind": "closed", "users": 3, "think_s": 1.0}),
        of_workload,
    ),
}


@pytest.mark.parametrize("kind", TABLES)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_in_a_file_is_taken_or_refused_with_the_files_name(
    kind: str, data: st.DataObject
) -> None:
    """No figure that is not finite, no other error than the one that names file and fault."""
    base, figures = TABLES[kind]
    path = data.draw(st.sampled_from(list(places(base))))
    value = data.draw(st.sampled_from(ODD))
    try:
        assert finite(figures(with_value(base, path, value)))
    except ProfileError as error:
        assert "odd.toml" in str(error)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_in_a_config_is_taken_or_refused(data: st.DataObject) -> None:
    """Of every family's config.json; a shape that is taken has finite figures and some weights."""
    config = ALL_CONFIGS[data.draw(st.sampled_from(sorted(ALL_CONFIGS)))]
    path = data.draw(st.sampled_from(list(places(config))))
    odd = with_value(config, path, data.draw(st.sampled_from(ODD)))
    try:
        shape = shape_from_config(odd, name="m")
    except ProfileError as error:
        assert "config.json" in str(error) or "number format" in str(error)
        return
    assert finite(of_shape(shape)) and shape.weights_bytes > 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("num_hidden_layers", HUGE),
        ("vocab_size", HUGE),
        ("num_hidden_layers", -1),
        ("num_attention_heads", "many"),
        ("layer_types", []),
    ],
)
def test_a_config_is_refused_by_the_key_that_is_wrong(key: str, value: Any) -> None:
    config = {**CONFIGS["Llama-3.1-8B"], key: value}
    with pytest.raises(ProfileError, match=f"{key}|layers"):
        shape_from_config(config, name="m")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("hardware", ("memory_bytes",)),
        ("hardware", ("flops_per_s", "fp16")),
        ("link", ("payload_bytes_per_s",)),
        ("link", ("payload_back_bytes_per_s",)),
        ("link", ("round_trip_p50_s",)),
        ("model", ("kv_heads",)),
        ("model", ("sliding_window",)),
        ("model", ("parameters",)),
        ("workload", ("arrivals", "on_s")),
        ("workload", ("arrivals", "off_s")),
        ("workload", ("arrivals", "rate_requests_per_s")),
        ("workload", ("arrivals", "burstiness")),
        ("workload", ("targets", "ttft_s")),
        ("workload", ("turns",)),
        ("workload", ("cancel_share",)),
        ("closed", ("arrivals", "users")),
    ],
)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, HUGE])
def test_a_figure_that_nothing_has_is_refused_by_its_key(
    kind: str, path: tuple[str, ...], value: float
) -> None:
    base, figures = TABLES[kind]
    with pytest.raises(ProfileError, match=path[-1]):
        list(figures(with_value(base, path, value)))


@pytest.mark.parametrize("key", ["ffn_mult", "n_heads_in_group"])
@pytest.mark.parametrize("value", [math.nan, math.inf, "x", [1], {"a": 1}, -1])
def test_what_is_no_number_in_one_layer_is_refused_by_its_key(key: str, value: Any) -> None:
    config = MORE["Llama-3.3-Nemotron-Super-49B"]
    path = next(path for path in places(config) if path[-1] == key)
    with pytest.raises(ProfileError, match=key):
        shape_from_config(with_value(config, path, value), name="m")


@pytest.mark.parametrize("key", ["kv_heads", "head_dim", "heads"])
def test_only_a_model_without_attention_has_no_heads(key: str) -> None:
    with pytest.raises(ProfileError, match=key):
        model_from_table({**MODEL, key: 0}, where="m.toml")
    bare = {**MODEL, "layers": 4, "recurrent_layers": 4, "kv_heads": 0, "head_dim": 0}
    for gone in ("sliding_layers", "sliding_window", "shared_layers", "plain_layers", "heads"):
        del bare[gone]
    assert model_from_table(bare, where="m.toml").kv_bytes_per_token() == 0


def test_rates_in_formats_that_no_model_here_has_do_no_harm() -> None:
    rates = {"fp16": 1e13, "tf32": 5e12, "fp64": 1e12, "fp4": 8e13, "fp8_e4m3": 2e13}
    assert finite(of_box({**HARDWARE, "flops_per_s": rates}))


def test_fewer_active_parameters_than_every_token_needs_are_refused() -> None:
    with pytest.raises(ProfileError, match="active_parameters"):
        model_from_table({**MODEL, "active_parameters": 1}, where="m.toml")


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("hardware", "memory_bytes"),
        ("hardware", "memory_bytes_per_s"),
        ("link", "payload_bytes_per_s"),
    ],
)
def test_a_figure_in_gigabytes_is_not_taken_for_bytes(kind: str, key: str) -> None:
    base, figures = TABLES[kind]
    with pytest.raises(ProfileError, match=f"'{key}' is 96, too little .* 8e9 for 8 G"):
        list(figures({**base, key: 96.0}))


@pytest.mark.parametrize(
    ("kind", "path", "value", "said"),
    [
        ("hardware", ("memory_bytes",), "8 GB", "'memory_bytes' is a text, where a number belongs"),
        ("hardware", ("flops_per_s",), 1e13, "'flops_per_s' is a number, where a table belongs"),
        ("hardware", ("flops_per_s", "fp16"), "x", "'flops_per_s' is a text, where a number"),
        ("hardware", ("watts",), "x", "'watts' is a text, where a number belongs"),
        ("hardware", ("name",), "", "'name' is empty"),
        ("workload", ("arrivals", "users"), 2.5, "'arrivals.users' is a number, where a whole"),
        ("workload", ("arrivals", "kind"), "burst", "'arrivals.kind' is 'burst', not open or clos"),
        ("workload", ("arrivals", "x"), 1, "the key 'x' is unknown in arrivals"),
        ("workload", ("classes", 0, "prompt_tokens"), [1, 2, 3], "prompt_tokens' lists 3, where 2"),
        ("model", ("dtype",), "q9", "'q9' is no number format"),
    ],
)
def test_a_wrong_value_is_told_in_words(kind: str, path: Path, value: Any, said: str) -> None:
    base, figures = TABLES[kind]
    with pytest.raises(ProfileError) as told:
        list(figures(with_value(base, path, value)))
    assert said in str(told.value) and "odd.toml" in str(told.value)
    assert "`" not in str(told.value)


def test_a_box_of_the_least_and_the_most_figures_gives_finite_times() -> None:
    for factor in (1e5, 1e24):
        table = {**HARDWARE, "memory_bytes_per_s": factor, "flops_per_s": {"fp16": factor}}
        made = structs.replace(BOX, flops_per_s=box_from_table(table, where="x").flops_per_s)
        assert finite(of_cost(made, SHAPE))
