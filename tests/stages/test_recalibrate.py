"""What a comparison measured is kept, and the next plan goes by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from homesplit_engine.records import ModeSetting, PrefillSlice, StepEvent, TransferEvent
from homesplit_engine.status import RouterStatus
from msgspec.structs import replace

from homesplit.core.compare_result import CompareResult, verdict
from homesplit.core.link import LatencyReading, LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import stated
from homesplit.core.served import Timed
from homesplit.io import calibration_store, probe_store
from homesplit.io.paths import Paths
from homesplit.stages.context import AskNobody, Context
from homesplit.stages.plan import PlanQuestion, make_plan, read_compared, read_question
from homesplit.stages.recalibrate import take_back
from tests.core.test_handoff_fit import quiet_record
from tests.core.test_verdict import QUICK, SLOW, WORKLOAD, runs
from tests.stages.test_compare import calibration

NAMES = ("a", "b")
TOKENS, BYTES = 100, 1_000_000


def context(folder: Path) -> Context:
    """Two calibrated boxes with a probed link of 1 MB/s."""
    paths = Paths(config=folder / "c", cache=folder / "k", data=folder / "d")
    for name in NAMES:
        probe_store.save_box(paths, BoxProfile(name=name, source="probe", memory_bytes=MEMORY))
        calibration_store.save(paths, calibration(name))
    rate = stated(1e6, unit="bytes/s", source="test")
    trip = LatencyReading(p50=stated(0.001, unit="s", source="test"))
    link = LinkProfile(a="a", b="b", source="probe", a_to_b=rate, b_to_a=rate, latency_s=trip)
    probe_store.save_link(paths, link, NAMES)
    return Context(emit=lambda _: None, ask=AskNobody(), paths=paths)


MEMORY = stated(8e9, unit="bytes", source="test")
STATUS = cast(
    RouterStatus,
    SimpleNamespace(
        workers=[SimpleNamespace(box=name, ready=None) for name in NAMES],
        model_name="smollm2-135m",
        loopback=False,
    ),
)


def timed(step_s: float, commit_s: float) -> Timed:
    """Prompts that `a` reads in `step_s` each, handed over to `b` and committed so much later."""
    steps: list[StepEvent] = []
    transfers: list[TransferEvent] = []
    for number in range(40):
        start_s, name = 10.0 * number, f"r{number}"
        piece = PrefillSlice(request_id=name, start=0, tokens=TOKENS, last=True)
        read = StepEvent(
            box="a", step=number, start_s=start_s, end_s=start_s + step_s, prefill=(piece,)
        )
        exposed_s = start_s + step_s * (1 / 30) + 1.0 + 0.0004 - (start_s + step_s) + commit_s
        steps.append(read)
        transfers.append(
            TransferEvent(
                box_from="a",
                box_to="b",
                request_id=name,
                start_s=start_s,
                end_s=read.end_s + exposed_s,
                bytes=BYTES,
                tokens=TOKENS,
                exposed_s=exposed_s,
            )
        )
    records = tuple(quiet_record(f"r{number}", rest_s=0.035) for number in range(6))
    return Timed(steps=tuple(steps), transfers=tuple(transfers), records=records)


ALONE = Timed(records=(quiet_record("alone", rest_s=0.005, served="colocated"),))
"""Of a request that reserved nothing."""


def result(told: Timed) -> CompareResult:
    settings = (
        ModeSetting(mode="split", prefill="whole", prefill_box="a", decode_box="b"),
        ModeSetting(mode="colocated", prefill="whole", decode_box="a"),
    )
    measured = (runs("split", [QUICK] * 60), runs("colocated", [QUICK, SLOW] * 30))
    modes = tuple(
        replace(mode, setting=setting, runs=(replace(mode.runs[0], timed=seen),))
        for mode, setting, seen in zip(measured, settings, (told, ALONE), strict=True)
    )
    return CompareResult(
        modes=modes,
        verdict=verdict(modes, None),
        identical_text=True,
        compared_prompts=1,
        repeats=1,
        seed=1,
        loopback=False,
    )


def question(**more: Any) -> PlanQuestion:
    return PlanQuestion(
        boxes=NAMES, prompt_tokens=TOKENS, output_tokens=8, users=1, flips=False, **more
    )


def test_measured_steps_and_hand_offs_are_what_the_next_plan_goes_by(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    before = make_plan(ctx, question())
    assert any("not timed" in said for said in before.guesses)
    said = take_back(ctx, STATUS, result(timed(step_s=0.022, commit_s=0.015)))
    assert any(sentence.startswith("a: recalibrated on 40") for sentence in said)
    after = make_plan(ctx, question())
    # 11 ms was known of reading 100 tokens; 22 ms is what was measured. Of b there was no step.
    reads = [
        f.step_seconds([(0, TOKENS)], 0, 0) for f in read_question(ctx, question()).calibrations
    ]
    assert reads == [pytest.approx(0.022, rel=0.05), pytest.approx(0.011)]
    assert after.sources[0].startswith("a: calibrated on 100 steps of the engine, and on 40 steps")
    assert not any("not timed" in said for said in after.guesses)
    fit = read_question(ctx, question()).handoffs[0]
    assert (fit.sender, fit.receiver) == ("a", "b")
    assert fit.commit_s == pytest.approx(0.015, abs=0.002)
    known = next(fit for fit in read_question(ctx, question()).calibrations if fit.box == "a")
    assert known.router_s == pytest.approx(0.005)


def test_the_measured_winner_is_the_next_plans_answer(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    asked = read_question(ctx, question())
    here = replace(asked, workload=WORKLOAD, targets=WORKLOAD.targets)
    assert read_compared(ctx, here) is None
    take_back(ctx, STATUS, result(timed(step_s=0.011, commit_s=0.015)))
    found = read_compared(ctx, here)
    assert found is not None and [s.mode for s in found.near] == ["split"]
    assert read_compared(ctx, asked) is None


def test_unknown_boxes_are_told_and_nothing_is_kept(tmp_path: Path) -> None:
    paths = Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d")
    ctx = Context(emit=lambda _: None, ask=AskNobody(), paths=paths)
    said = take_back(ctx, STATUS, result(timed(step_s=0.011, commit_s=0.015)))
    assert len(said) == 1 and "Nothing was recalibrated" in said[0]
    assert calibration_store.list_all(paths) == ()
