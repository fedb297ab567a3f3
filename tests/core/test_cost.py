"""The cost model against public single-machine measurements, and its fit to engine steps."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.records import PrefillSlice, StepEvent
from msgspec import structs

from homesplit.core import efficiency
from homesplit.core.calibration import CalibrationOf, Weights, fit_calibration
from homesplit.core.cost import PLAIN, Interval, StepClock, cost_model, placed
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading, stated
from homesplit.core.shape import ModelShape
from homesplit.errors import ProfileError
from homesplit.io.paths import user_paths
from homesplit.io.profiles import load_hardware, load_model

ROWS = Path(__file__).parents[3] / "shared" / "cases" / "single_box.jsonl"
PROFILE_OF = {
    "Llama 3 8B": "llama-3.1-8b",
    "Llama 3 70B": "llama-3.3-70b",
    "gpt-oss-120b": "gpt-oss-120b",
    "gpt-oss-20b": "gpt-oss-20b",
    "Qwen2.5-Coder-7B": "qwen2.5-7b",
    "LLaMA 2 7B": "llama-2-7b",
    "LLaMA 7B": "llama-2-7b",
    "gemma-3-4b-it-qat": "gemma-3-4b",
    "Qwen3-Coder-30B-A3B": "qwen3-30b-a3b",
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Llama 3.1 8B": "llama-3.1-8b",
    "SmolLM-135M": "smollm2-135m",
    "Llama 3.2 3B": "llama-3.2-3b",
    "TinyLlama 1.1B": "tinyllama-1.1b",
    "LLaMA 2 13B": "llama-2-13b",
    "LLaMA 2 70B": "llama-2-70b",
    "Llama-3.3-70B-Instruct": "llama-3.3-70b",
    "Qwen3-4B": "qwen3-4b",
    "Gemma-4-26B-A4B": "gemma-4-26b-a4b",
    "Nemotron-3-Super-120B-A12B": "nemotron-3-super-120b-a12b",
}


def box(
    *, bandwidth: float = 100e9, flops: float = 10e12, device: str = "cuda", name: str = "b"
) -> BoxProfile:
    return BoxProfile(
        name=name,
        source="profile: test",
        memory_bytes=stated(64e9, unit="bytes", source="test"),
        memory_bytes_per_s=stated(bandwidth, unit="bytes/s", source="test"),
        flops_per_s={"fp16": stated(flops, unit="flop/s", source="test")},
        device=device,
    )


def model(name: str = "llama-3.1-8b") -> ModelShape:
    return load_model(name, user_paths())


def measured() -> dict[str, list[tuple[float, Interval]]]:
    """(seconds measured, interval predicted) of prefill, decode and batched decode rows."""
    found: dict[str, list[tuple[float, Interval]]] = {"prefill": [], "decode": [], "batch": []}
    for line in ROWS.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        name = PROFILE_OF.get(row["model"])
        if not (name and row["weights_gb"] and row["memory_bandwidth_gbs"] and row["fp16_tflops"]):
            continue
        shape = structs.replace(model(name), weights_bytes=int(row["weights_gb"] * 1e9))
        machine = structs.replace(
            box(bandwidth=row["memory_bandwidth_gbs"] * 1e9, flops=row["fp16_tflops"] * 1e12),
            unified="GB10" in row["hardware"],
        )
        cost = cost_model(machine, shape)
        tokens, batch = row["prompt_len"] or 512, row["batch"] or 1
        if row["pp_tps"]:
            found["prefill"].append((tokens / row["pp_tps"], cost.prefill_s(tokens)))
        if row["tg_tps"]:
            per_user = "per user" in (row["note"] or "")
            step_s = (1 if per_user else batch) / row["tg_tps"]
            grown = tokens / 2 if "separate runs" in row["engine"] else 64
            context = int(batch * (row["context_before"] or grown))
            kind = "decode" if batch <= 1 else "batch"
            found[kind].append((step_s, cost.decode_step_s(max(1, round(batch)), context)))
    return found


@pytest.mark.skipif(not ROWS.exists(), reason="the public case files aren't here")
def test_maker_figures_predict_public_measurements_within_the_stated_error() -> None:
    found = measured()
    assert len(found["prefill"]) > 150 and len(found["decode"]) > 120

    def median_error(kind: str) -> float:
        return statistics.median(abs(made.mid / took - 1) for took, made in found[kind])

    assert median_error("decode") < 0.25
    assert median_error("prefill") < 0.40
    rows = [pair for pairs in found.values() for pair in pairs]
    inside = sum(made.low <= took <= made.high for took, made in rows)
    assert inside / len(rows) >= 0.85


SHIPPED = (
    # (machine, model, GB of weights, prompt tokens or 0 for a token of an answer, tokens/s)
    ("rtx-4090", "llama-3.1-8b", 4.66, 512, 10_359),  # ggml-org/llama.cpp 7676
    ("rtx-4090", "llama-3.1-8b", 4.92, 2048, 9_279),  # 7860
    ("rtx-3090", "llama-3.1-8b", 4.66, 2048, 4_013),  # 8416
    ("rtx-5090", "llama-3.1-8b", 4.66, 512, 14_934),  # 24127
    ("rtx-6000-ada", "llama-3.1-8b", 4.66, 8096, 8_008),  # 19053
    ("rtx-6000-ada", "gpt-oss-20b", 12.1, 8096, 8_404),
    ("rtx-6000-ada", "gpt-oss-20b", 12.1, 0, 253.8),
    ("rtx-6000-ada", "llama-3.1-8b", 4.66, 0, 168.9),
    ("tesla-p40", "llama-3.1-8b", 4.66, 2048, 857),  # 8416
    ("rx-6800-16gb", "llama-3.1-8b", 4.66, 2048, 684),
    ("rx-7900-xtx", "llama-3.1-8b", 4.92, 2048, 3_227),  # 26284
    ("rx-7900-xtx", "llama-3.1-8b", 4.92, 0, 105.8),
    ("rx-6700-xt", "llama-2-7b", 3.83, 512, 1_017),  # 5835
    ("rx-6800-xt", "llama-2-13b", 10.68, 512, 684),  # 2059
    ("arc-b580", "qwen2.5-7b", 4.68, 512, 2_336),  # intel/ipex-llm 12991
    ("arc-b580", "qwen2.5-7b", 4.68, 0, 66.5),
    ("rtx-4090", "qwen2.5-14b", 8.99, 0, 92.5),  # geerlingguy/ai-benchmarks, as all below
    ("rtx-3080-ti", "qwen2.5-14b", 8.99, 0, 70.7),
    ("radeon-ai-pro-r9700", "qwen2.5-14b", 8.99, 0, 53.7),
    ("mac-studio-m3-ultra-512gb", "qwen2.5-14b", 8.99, 0, 51.9),
    ("rtx-3060-12gb", "qwen2.5-14b", 8.99, 0, 29.8),
    ("dgx-spark", "qwen2.5-14b", 8.99, 0, 23.9),
    ("intel-n150", "qwen2.5-14b", 8.99, 0, 2.13),
    ("raspberry-pi-5-16gb", "qwen2.5-14b", 8.99, 0, 1.2),
    ("rtx-4070-ti-12gb", "gpt-oss-20b", 12.1, 0, 163.1),
    ("mac-studio-m3-ultra-512gb", "gpt-oss-20b", 12.1, 0, 115.3),
    ("strix-halo-128gb", "llama-3.2-3b", 2.02, 0, 88.1),
    ("mac-mini-m4-16gb", "llama-3.2-3b", 2.02, 0, 41.3),
)
"""Public measurements of quantised models with llama.cpp or Ollama, none of them in the rows.

Prompts of dense models tell nothing new of the machines in `FITTED`: their constants are from
there."""

FITTED = {
    "INT8_REACHED": {
        **{"rtx-3090": 0.23, "rtx-4090": 0.25, "rtx-5090": 0.28},
        **{"rtx-6000-ada": 0.2, "tesla-p40": 0.27},
    },
    "ROCM": {"rx-7900-xtx": 0.61, "rx-6800-xt": 0.63, "rx-6800-16gb": 0.48, "rx-6700-xt": 0.76},
}
"""What single machines reached, by the constant that is the median over them."""


def error_of(machine: str, name: str, gigabytes: float, tokens: int, per_s: float) -> float:
    """How far the middle of the prediction lies from a measurement, which its interval contains."""
    shape = structs.replace(model(name), weights_bytes=int(gigabytes * 1e9))
    cost = cost_model(load_hardware(machine, user_paths()), shape)
    made = cost.prefill_s(tokens) if tokens else cost.decode_step_s(1, 128)
    took = max(tokens, 1) / per_s
    assert made.low <= took <= made.high, f"{machine} {name}: {took} outside of {made}"
    return abs(made.mid / took - 1)


def test_shipped_machines_answer_as_quickly_as_others_measured_them() -> None:
    answers = [error_of(*row) for row in SHIPPED if not row[3]]
    assert statistics.median(answers) < 0.25


def test_a_machine_that_no_constant_was_fitted_to_reads_prompts_as_others_measured_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[float] = []
    for machine, name, gigabytes, tokens, per_s in SHIPPED:
        with monkeypatch.context() as patch:
            for constant, reached in FITTED.items():
                assert statistics.median(reached.values()) == pytest.approx(
                    getattr(efficiency, constant)
                )
                others = [share for name, share in reached.items() if name != machine]
                patch.setattr(efficiency, constant, statistics.median(others))
            if tokens:
                errors.append(error_of(machine, name, gigabytes, tokens, per_s))
    assert statistics.median(errors) < 0.15 and max(errors) < 0.25


def test_a_gpus_rate_in_int8_hastens_prompts_of_quantised_dense_models_alone() -> None:
    def times(name: str, share: float = 1.0, **changes: object) -> float:
        shape = model(name)
        shape = structs.replace(shape, weights_bytes=int(shape.weights_bytes * share))
        plain = structs.replace(box(flops=40e12, bandwidth=1e12), **changes)
        rates = {**plain.flops_per_s, "int8": stated(160e12, unit="flop/s", source="test")}
        quick = structs.replace(plain, flops_per_s=rates)
        slow, fast = (cost_model(each, shape) for each in (plain, quick))
        assert fast.decode_step_s(1, 100).mid == slow.decode_step_s(1, 100).mid
        return slow.prefill_s(512).mid / fast.prefill_s(512).mid

    # 0.25 of 160 are 40 TFLOP/s, the plain way reaches 0.68 of 40.
    assert times("llama-3.1-8b", 0.3) == pytest.approx(1 / 0.68, rel=0.1)
    assert times("llama-3.1-8b") == 1.0
    assert times("gpt-oss-20b") == 1.0
    for changes in ({"unified": True}, {"device": "rocm"}, {"device": "cpu"}):
        assert times("llama-3.1-8b", 0.3, **changes) == 1.0


ENGINE = {
    # Of an AMD EPYC of 2017 (AVX2) and one of 2022 (AVX-512): memory and products in fp32 of one
    # core, then tokens/s of SmolLM2-135M that the engine reached: answers in batches, prompts.
    (11.3e9, 34e9, "same"): {1: 18, 4: 59, 8: 73, 128: 142, 512: 135, 2048: 111},
    (11.3e9, 34e9, "int8"): {1: 46, 4: 67, 8: 77, 128: 137, 512: 122, 2048: 109},
    (27e9, 109e9, "same"): {1: 36, 4: 129, 8: 234, 128: 398, 512: 395},
    (27e9, 109e9, "int8"): {1: 87, 4: 255, 8: 377, 128: 402, 512: 384},
}


def probed(bandwidth: float, flops: float, library: str = "torch") -> BoxProfile:
    rate = Reading(value=flops, unit="FLOP/s", method=library)
    made = box(bandwidth=bandwidth, device="cpu")
    return structs.replace(made, source="probe", flops_per_s={"fp32": rate})


@pytest.mark.parametrize("case", ENGINE)
def test_what_probes_alone_predict_contains_what_the_engine_did(
    case: tuple[float, float, Weights],
) -> None:
    bandwidth, flops, weights = case
    core = probed(bandwidth, flops)
    cost = cost_model(core, placed(core, model("smollm2-135m"), weights), kv_dtype="fp32")
    for tokens, rate in ENGINE[case].items():
        batch = tokens <= 8
        told = cost.decode_step_s(tokens, 70 * tokens) if batch else cost.prefill_s(tokens)
        assert told.low <= tokens / rate <= told.high
        assert told.mid == pytest.approx(tokens / rate, rel=0.45)


def test_what_a_slow_library_multiplied_is_the_least_that_a_box_can_do() -> None:
    """A plain BLAS reaches a tenth or less: what is quicker by that is still foreseen."""
    slow, quick = probed(11e9, 2e9, f"sgemm, a {PLAIN}"), probed(11e9, 34e9)
    shape = placed(slow, model("smollm2-135m"), "same")
    told, true = (cost_model(each, shape).prefill_s(512) for each in (slow, quick))
    assert told.low < true.mid < told.mid / 5


def test_a_cached_prefix_costs_nothing_to_read_again() -> None:
    cost = cost_model(box(), model())
    assert cost.prefill_s(1000, cached=1000).mid == 0
    assert cost.prefill_s(1000, cached=900).mid < cost.prefill_s(1000).mid / 2


def test_a_faster_memory_never_slows_a_decode_step() -> None:
    slow, quick = (cost_model(box(bandwidth=rate), model()) for rate in (100e9, 200e9))
    assert quick.decode_step_s(1, 500).mid < slow.decode_step_s(1, 500).mid


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "gemma-3-12b"])
def test_the_simulations_clock_is_the_cost_model(name: str) -> None:
    for device in ("cuda", "cpu"):
        cost = cost_model(box(device=device), model(name))
        clock = StepClock(cost)
        for pieces, batch, context in (
            ([(0, 512)], 0, 0),
            ([(512, 512)], 3, 4000),
            ([(0, 512)], 3, 4000),
            ([(0, 20), (7, 9)], 1, 1),
            ([], 8, 9000),
            ([], 0, 0),
        ):
            made = clock.step_seconds(pieces, batch, context)
            assert made == pytest.approx(cost.step_seconds(pieces, batch, context), rel=1e-12)


def test_a_missing_figure_is_named() -> None:
    bare = structs.replace(box(), flops_per_s={})
    with pytest.raises(ProfileError, match="flops_per_s"):
        cost_model(bare, model())


def steps() -> list[StepEvent]:
    """Steps that take 10 ms, 1 ms a prompt token, 2 ms an answer and 1 us a context token."""
    made: list[StepEvent] = []
    for number in range(40):
        tokens, batch = (number % 4) * 32, number % 5
        context = batch * (100 + number)
        took = 0.010 + 0.001 * tokens + 0.002 * batch + 1e-6 * context
        prefill = (PrefillSlice(request_id="p", start=0, tokens=tokens),) if tokens else ()
        made.append(
            StepEvent(
                box="b",
                step=number,
                start_s=float(number),
                end_s=number + took,
                decode=tuple(str(i) for i in range(batch)),
                prefill=prefill,
                context_tokens=context,
            )
        )
    return made


def test_a_fit_finds_the_seconds_that_steps_are_made_of() -> None:
    fit = fit_calibration(steps(), of=CalibrationOf(model="m"))
    assert fit is not None
    assert fit.step_s == pytest.approx(0.010, rel=0.02)
    assert fit.token_s == pytest.approx(0.001, rel=0.02)
    assert fit.sequence_s == pytest.approx(0.002, rel=0.05)
    assert fit.error_p90 < 0.01 and len(fit.residuals) == fit.steps == 40


def test_a_calibrated_box_says_so_and_has_a_narrow_interval() -> None:
    cost = cost_model(box(), model(), calibration=fit_calibration(steps()))
    made = cost.prefill_s(100)
    assert "calibrated" in cost.source
    assert made.mid == pytest.approx(0.110, rel=0.02)
    assert made.high / made.low < 1.1


def test_steps_that_another_program_disturbed_do_not_move_the_fit() -> None:
    made = steps()
    for number in range(0, 40, 7):
        made[number] = structs.replace(made[number], end_s=made[number].end_s + 0.5)
    fit = fit_calibration(made)
    assert fit is not None
    assert fit.token_s == pytest.approx(0.001, rel=0.02)
    assert fit.step_seconds([(0, 64)], 2, 200) == pytest.approx(0.0782, rel=0.02)


def test_steps_that_scatter_are_fitted_in_their_middle() -> None:
    """As many take twice as long as take half as long: neither draws the fit to its side."""
    made = [
        structs.replace(step, step=40 * turn + step.step, end_s=step.start_s + times * took)
        for turn, times in enumerate((0.5, 1.0, 2.0, 2.0, 0.5))
        for step in steps()
        for took in (step.end_s - step.start_s,)
    ]
    fit = fit_calibration(made)
    assert fit is not None
    assert fit.step_seconds([(0, 64)], 2, 200) == pytest.approx(0.0782, rel=0.02)


def test_the_pause_between_steps_of_a_busy_box_counts() -> None:
    made = [structs.replace(step, running=1) for step in steps()]
    moved, at_s = [], 0.0
    for step in made:
        took = step.end_s - step.start_s
        moved.append(structs.replace(step, start_s=at_s, end_s=at_s + took))
        at_s += took + 0.003
    fit = fit_calibration(moved)
    assert fit is not None and fit.gap_s == pytest.approx(0.003, rel=0.01)
    cost = cost_model(box(), model(), calibration=fit)
    assert cost.decode_step_s(1, 0).mid == pytest.approx(0.015, rel=0.03)


def test_too_few_steps_give_no_fit() -> None:
    assert fit_calibration(steps()[:5]) is None
