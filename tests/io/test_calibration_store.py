"""Kept fits: found by box and model, trusted more than the probe, broken files passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from homesplit.core.calibration import Calibration
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import stated
from homesplit.io import calibration_store, probe_store
from homesplit.io.paths import Paths
from homesplit.stages.context import AskNobody, Context
from homesplit.stages.plan import PlanQuestion, make_plan, read_question

FIT = Calibration(
    box="atlas",
    model="smollm2-135m",
    step_s=0.030,
    token_s=0.003,
    pair_s=0.0,
    sequence_s=0.001,
    context_s=1e-6,
    steps=100,
    error_p50=0.01,
    error_p90=0.03,
    host_key="SHA256:a",
    fingerprint="f1",
    kv_bytes_per_token=46080,
    kv_tokens=4096,
    at="2026-11-29T10:00:00+00:00",
)
SIZES = (23040, 46080)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d")


def test_the_newest_fit_of_the_same_host_key_and_model_is_found(paths: Paths) -> None:
    calibration_store.save(paths, FIT)
    newer = replace(FIT, fingerprint="f2", at="2026-11-30T10:00:00+00:00")
    calibration_store.save(paths, newer)
    found = calibration_store.load(paths, "other-name", "SHA256:a", "SmolLM2-135M", SIZES)
    assert found == newer


def test_another_box_model_or_kv_size_gets_no_fit(paths: Paths) -> None:
    calibration_store.save(paths, FIT)
    assert calibration_store.load(paths, "atlas", "SHA256:b", "smollm2-135m", SIZES) is None
    assert calibration_store.load(paths, "atlas", "SHA256:a", "llama", SIZES) is None
    assert calibration_store.load(paths, "atlas", "SHA256:a", "smollm2-135m", (1,)) is None


def test_steps_with_int8_weights_are_no_fit_for_others(paths: Paths) -> None:
    int8 = replace(FIT, fingerprint="f2", weights="int8", at="2026-11-30T10:00:00+00:00")
    for fit in (FIT, int8):
        calibration_store.save(paths, fit)
    whose = (paths, "atlas", "SHA256:a", "smollm2-135m", SIZES)
    assert calibration_store.load(*whose) == FIT
    assert calibration_store.load(*whose, "int8") == int8


def test_a_broken_file_is_passed_over(paths: Paths) -> None:
    calibration_store.save(paths, FIT).with_name("broken.json").write_text("{")
    assert calibration_store.list_all(paths) == (FIT,)


def test_plan_uses_the_fit_before_the_probe_and_says_so(paths: Paths) -> None:
    box = BoxProfile(
        name="atlas",
        source="probe",
        host_key="SHA256:a",
        memory_bytes=stated(8e9, unit="bytes", source="test"),
        memory_bytes_per_s=stated(10e9, unit="bytes/s", source="test"),
        flops_per_s={"fp32": stated(50e9, unit="flop/s", source="test")},
    )
    probe_store.save_box(paths, box)
    ctx = Context(emit=lambda _: None, ask=AskNobody(), paths=paths)
    question = PlanQuestion(
        boxes=("atlas",), prompt_tokens=100, output_tokens=10, users=1, flips=False
    )
    before = make_plan(ctx, question)
    calibration_store.save(paths, FIT)
    assert [fit.box for fit in read_question(ctx, question).calibrations] == ["atlas"]
    after = make_plan(ctx, question)
    # 30 ms for the step, 3 ms a token; the reading of 100 tokens in one chunk.
    assert after.ledger[1].prefill_s == pytest.approx(0.330, rel=0.01)
    assert before.ledger[1].prefill_s != after.ledger[1].prefill_s
    assert any("not from the engine" in said for said in before.guesses)
    assert not any("not from the engine" in said for said in after.guesses)


def test_a_fit_of_a_busy_box_is_told_as_a_guess(paths: Paths) -> None:
    calibration_store.save(paths, replace(FIT, error_p50=0.3, error_p90=0.5))
    box = BoxProfile(
        name="atlas", source="probe", memory_bytes=stated(8e9, unit="bytes", source="test")
    )
    probe_store.save_box(paths, box)
    ctx = Context(emit=lambda _: None, ask=AskNobody(), paths=paths)
    question = PlanQuestion(
        boxes=("atlas",), prompt_tokens=50, output_tokens=5, users=1, flips=False
    )
    assert any("Calibrate again" in said for said in make_plan(ctx, question).guesses)
