"""Int8 weights in the advice: what they weigh, what they save, and when they would change it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from homesplit.core.calibration import Calibration
from homesplit.core.candidates import Asked, build_scene, kv_dtype, room_of
from homesplit.core.cost import (
    INT8_ARITHMETIC,
    INT8_BY_VNNI,
    cost_model,
    placed,
    run_dtype,
    why_no_int8,
)
from homesplit.core.decide import Thinking, decide
from homesplit.core.machine import BoxProfile
from homesplit.core.plan import Flip
from homesplit.core.predict import Effort
from homesplit.core.reading import stated
from homesplit.core.shape import LayerGroup, ModelShape
from homesplit.core.workload import Arrivals, Targets, Workload, fixed_lengths
from homesplit.errors import UsageError
from homesplit.stages.plan import check_weights

QUICK = Thinking(effort=Effort(requests=24, capacity_requests=12, capacity_rounds=2))


def shape(*, tied: bool, dtype: str = "bf16") -> ModelShape:
    """1,000 parameters, 200 of them the output head; an own input table of 200 unless `tied`."""
    parameters = 1000 if tied else 1200
    return ModelShape(
        name="tiny",
        parameters=parameters,
        active_parameters=parameters,
        embedding_parameters=0 if tied else 200,
        head_parameters=200,
        weights_bytes=parameters * (2 if dtype == "bf16" else 1),
        dtype=dtype,
        groups=(LayerGroup(kind="full", layers=2, kv_elements=8, attention_width=8),),
        attention="GQA",
    )


def box(
    name: str = "a",
    *,
    source: str = "probe",
    device: str = "cpu",
    memory: float = 1e6,
) -> BoxProfile:
    return BoxProfile(
        name=name,
        source=source,
        device=device,
        memory_bytes=stated(memory, unit="bytes", source="test"),
        memory_bytes_per_s=stated(1e9, unit="bytes/s", source="test"),
        flops_per_s={"fp32": stated(1e10, unit="flop/s", source="test")},
    )


def asked(*boxes: BoxProfile, **changes: Any) -> Asked:
    load = fixed_lengths(
        8, 4, name="few", arrivals=Arrivals(kind="closed", users=1), targets=NO_TARGETS
    )
    plain = Asked(boxes=boxes, link=None, shape=shape(tied=True), workload=load, targets=NO_TARGETS)
    return structs.replace(plain, **changes)


NO_TARGETS = Targets(ttft_s=None, tpot_s=None)


@pytest.mark.parametrize(
    ("tied", "all_bytes", "read_bytes"),
    [
        # The table of 200 stays in fp32, for looking up; tied, the head is a quantised copy of it.
        (True, 4 * 200 + 1000, 1000),
        (False, 4 * 200 + 1000, 1000),
    ],
)
def test_linear_layers_weigh_a_byte_and_the_table_what_it_did(
    tied: bool, all_bytes: int, read_bytes: int
) -> None:
    kept = placed(box(), shape(tied=tied), "int8")
    assert (kept.weights_bytes, kept.step_weight_bytes(1), kept.dtype) == (
        all_bytes,
        read_bytes,
        "fp32",
    )
    wide = placed(box(), shape(tied=tied), "same")
    assert wide.step_weight_bytes(1) == 4 * read_bytes


def test_a_decode_step_reads_a_quarter_and_multiplies_a_little_slower() -> None:
    wide, narrow = (
        cost_model(box(), placed(box(), shape(tied=True), weights), kv_dtype="fp32")
        for weights in ("same", "int8")
    )
    assert narrow.shape.step_weight_bytes(1) == wide.shape.step_weight_bytes(1) / 4
    assert narrow.flop_s == pytest.approx(wide.flop_s / INT8_ARITHMETIC)
    quick = structs.replace(box(), vnni=True)
    wide, narrow = (
        cost_model(quick, placed(quick, shape(tied=True), weights), kv_dtype="fp32")
        for weights in ("same", "int8")
    )
    assert narrow.flop_s == pytest.approx(wide.flop_s / INT8_BY_VNNI)
    assert narrow.attention_flop_s == pytest.approx(wide.attention_flop_s)
    assert narrow.kv_byte_s == wide.kv_byte_s


@pytest.mark.parametrize(
    ("device", "weights", "memory", "copy"),
    [
        # 800 parameters of 4 bytes: all but the head's 200.
        ("cpu", "same", 1e6, 3200),
        # With the head it must be a quarter of what is free beside the weights.
        ("cpu", "same", 19_999, 0),
        ("cpu", "same", 20_001, 3200),
        # A byte each; the weights came as 2,400 bytes, of which the table is 800.
        ("cpu", "int8", 6_399, 0),
        ("cpu", "int8", 6_401, 800),
        ("cuda", "same", 1e6, 0),
        ("mps", "same", 1e6, 0),
    ],
)
def test_a_second_copy_is_counted_where_the_engine_keeps_one(
    device: str, weights: Any, memory: float, copy: float
) -> None:
    one = box(device=device, memory=memory)
    assert room_of(one, asked(one, weights=weights)).copy == copy
    quick = structs.replace(one, vnni=True)
    kept = 0.0 if weights == "int8" else copy
    assert room_of(quick, asked(quick, weights=weights)).copy == kept


@pytest.mark.parametrize(
    ("model", "loading"),
    [
        (shape(tied=True), 2 * 800 + 4 * 200),
        # The head comes narrow, and is wide as well while the engine compares its logits.
        (shape(tied=False), 2 * 1000 + 4 * 200 + 4 * 200),
        (structs.replace(shape(tied=False), dtype="fp32"), 4 * 1200),
        (structs.replace(shape(tied=True), source="/m/tiny.gguf"), 4 * 1000),
    ],
    ids=["tied", "a head of its own", "files of fp32", "a GGUF file"],
)
def test_weights_that_become_int8_come_in_the_files_16_bits_where_they_have_these(
    model: ModelShape, loading: int
) -> None:
    one = box()
    assert room_of(one, asked(one, shape=model, weights="int8")).loading == loading
    assert room_of(one, asked(one, shape=model)).loading == 0


@pytest.mark.parametrize(
    ("devices", "dtypes"),
    [
        (("cuda", "cuda"), ("bf16", "bf16")),
        (("cuda", "cpu"), ("fp32", "fp32")),
        (("cpu", "cpu"), ("fp32", "fp32")),
        (("mps", "mps"), ("fp32", "fp32")),
    ],
)
def test_both_boxes_compute_in_what_both_can_keep_kv_in(
    devices: tuple[str, str], dtypes: tuple[str, str]
) -> None:
    first, second = box("a", device=devices[0]), box("b", device=devices[1])
    pair, model = (first, second), shape(tied=True)
    assert tuple(run_dtype(each, model, beside=pair) for each in pair) == dtypes
    wide = 4 if dtypes[0] == "fp32" else 2
    question = asked(*pair)
    assert [room_of(each, question).weights for each in pair] == [1000 * wide] * 2
    assert kv_dtype(question) == dtypes[0]


@pytest.mark.parametrize(
    ("one", "model", "why"),
    [
        (box(), shape(tied=True), None),
        (box(source="profile: x"), shape(tied=True), None),
        (box(device="cuda"), shape(tied=True), "a would run the model on its GPU"),
        (box(device="mps"), shape(tied=True), "a would run the model on its GPU"),
        (box(source="profile: x"), shape(tied=True, dtype="int8"), "quantised already"),
    ],
)
def test_int8_weights_that_can_not_be_had_are_refused_by_name(
    one: BoxProfile, model: ModelShape, why: str | None
) -> None:
    told = why_no_int8(one, model)
    assert (told is None) == (why is None)
    check_weights("same", (one,), model)
    if why is None:
        check_weights("int8", (one,), model)
        return
    with pytest.raises(UsageError, match=why):
        check_weights("int8", (one,), model)


def fit(weights: Any) -> Calibration:
    return Calibration(
        box="a",
        model="tiny",
        step_s=1.0,
        token_s=0.1,
        pair_s=0.01,
        sequence_s=0.2,
        context_s=0.001,
        steps=50,
        error_p50=0.01,
        error_p90=0.02,
        weights=weights,
        kv_tokens=512,
    )


def test_a_fit_of_these_weights_is_taken_as_it_is() -> None:
    question = asked(box(), weights="int8", calibrations=(fit("same"), fit("int8")))
    cost = build_scene(question).boxes[0].cost
    assert cost.fit is not None
    assert (cost.fit.weights, cost.fit.step_s, cost.fit.refitted) == ("int8", 1.0, False)


def test_a_fit_of_other_weights_is_changed_by_what_is_known_of_both() -> None:
    question = asked(box(), weights="int8", calibrations=(fit("same"),))
    cost = build_scene(question).boxes[0].cost
    assert cost.fit is not None
    assert cost.fit.refitted
    assert cost.fit.step_s < 1.0
    assert cost.fit.token_s == pytest.approx(0.1 / INT8_ARITHMETIC)
    assert (cost.fit.pair_s, cost.fit.context_s) == (0.01, 0.001)
    assert "by the cost model" in cost.source
    plan = decide(question, structs.replace(QUICK, flips=False))
    assert any("timed with other weights" in guess for guess in plan.guesses)


MINI = structs.replace(
    box(source="profile: mini", memory=8e9),
    memory_bytes_per_s=stated(20e9, unit="bytes/s", source="test"),
    flops_per_s={"fp32": stated(3e11, unit="flop/s", source="test")},
)
ONE_GB = structs.replace(
    shape(tied=True), parameters=10**9, active_parameters=10**9, weights_bytes=2 * 10**9
)


def flip_of(question: Asked) -> Flip | None:
    flips = decide(question, QUICK).flips
    return next((flip for flip in flips if flip.quantity == "weights"), None)


def targeted(tpot_s: float) -> Workload:
    targets = Targets(ttft_s=None, tpot_s=tpot_s)
    return fixed_lengths(
        8, 8, name="few", arrivals=Arrivals(kind="closed", users=1), targets=targets
    )


@pytest.mark.parametrize(
    ("tpot_s", "weights", "device", "flips"),
    [
        (0.1, "same", "cpu", True),
        (0.1, "int8", "cpu", False),
        (0.1, "same", "cuda", False),
        (10.0, "same", "cpu", False),
        (0.001, "same", "cpu", False),
    ],
)
def test_the_advice_says_when_int8_weights_would_hold_the_targets(
    tpot_s: float, weights: Any, device: str, flips: bool
) -> None:
    load = targeted(tpot_s)
    mini = structs.replace(MINI, device=device)
    question = asked(mini, shape=ONE_GB, workload=load, targets=load.targets, weights=weights)
    flip = flip_of(question)
    assert (flip is not None) == flips
    if flip is not None:
        assert (flip.mode, flip.value, flip.unit) == ("colocated", 1.0, "bytes per weight")
        assert "100 % of the requests are inside the targets" in flip.sentence


def probed(memory: float) -> BoxProfile:
    """The box, with so much memory, as one that this engine was tried on."""
    held = stated(memory, unit="bytes", source="test")
    return structs.replace(MINI, memory_bytes=held, source="probe")


def test_the_advice_says_when_int8_weights_would_fit() -> None:
    # A fifth of it belongs to others: 2 GB of bf16 can just be loaded, 4 GB of fp32 never could.
    flip = flip_of(asked(probed(2.6e9), shape=ONE_GB))
    assert flip is not None
    assert "the model fits" in flip.sentence


def test_what_can_not_be_loaded_before_it_is_made_int8_does_not_fit() -> None:
    small = probed(2.4e9)
    assert flip_of(asked(small, shape=ONE_GB)) is None
    first = decide(asked(small, shape=ONE_GB, weights="int8"), QUICK).rules[0]
    assert (first.verdict, first.value) == ("fail", pytest.approx(2e9))
    assert "To load the weights before they are made int8 takes 2 GB;" in first.sentence
