"""The server's side of a run: what a stall was caused by, and what energy was used."""

from __future__ import annotations

from typing import Any

import pytest
from homesplit_engine.records import (
    PrefillSlice,
    RequestRecord,
    StepEvent,
    TransferEvent,
    WorkerStatus,
)

from homesplit.core.events import RequestDone, StepSeen
from homesplit.core.served import (
    Timed,
    as_asked_words,
    background,
    background_words,
    energy,
    gather,
    server_side,
    stall_causes,
)


def record(request_id: str = "run-1", **changes: Any) -> RequestRecord:
    given: dict[str, Any] = {
        "request_id": request_id,
        "mode": "split",
        "served": "split",
        "prefill": "whole",
        "prefill_box": "a",
        "decode_box": "b",
        "why": "",
        "outcome": "completed",
        "prompt_tokens": 10,
        "output_tokens": 3,
        "received_s": 0.0,
        "token_s": (1.0, 1.1, 2.0),
    }
    return RequestRecord(**{**given, **changes})


def step(start_s: float, end_s: float, *, box: str = "b", reads: str | None = None) -> StepEvent:
    piece = PrefillSlice(request_id=reads or "", start=0, tokens=64)
    return StepEvent(
        box=box,
        step=1,
        start_s=start_s,
        end_s=end_s,
        decode=("run-1",),
        prefill=(piece,) if reads else (),
    )


def transfer(start_s: float, end_s: float, request_id: str = "run-1") -> TransferEvent:
    return TransferEvent(
        box_from="a",
        box_to="b",
        request_id=request_id,
        start_s=start_s,
        end_s=end_s,
        bytes=1000,
        tokens=10,
        exposed_s=0.1,
    )


def causes(**timed: Any) -> dict[str, int]:
    """Causes of the one gap above 0.5 s in `record`: the one from 1.1 to 2.0 s."""
    given: dict[str, Any] = {"records": (record(),), **timed}
    return stall_causes(Timed(**given), 0.5)


def test_a_gap_during_somebody_elses_prompt_is_a_prefill_stall() -> None:
    assert causes(steps=(step(1.2, 1.9, reads="run-2"),)) == {"prefill": 1}


def test_a_gap_in_which_the_box_only_wrote_is_its_own_step() -> None:
    assert causes(steps=(step(1.2, 1.9),)) == {"own step": 1}


def test_a_prompt_read_on_a_box_that_does_not_serve_the_request_stalls_nobody_here() -> None:
    assert causes(steps=(step(1.2, 1.9, box="c", reads="run-2"),)) == {"not seen": 1}


def test_a_prompt_that_was_read_before_the_gap_did_not_cause_it() -> None:
    found = causes(steps=(step(0.2, 1.05, reads="run-2"), step(1.2, 1.9)))
    assert found == {"own step": 1}


def test_the_requests_own_kv_on_its_way_is_a_hand_off_stall_and_anothers_is_not() -> None:
    assert causes(transfers=(transfer(0.9, 1.8),)) == {"hand-off": 1}
    assert causes(transfers=(transfer(0.9, 1.8, "run-2"),)) == {"not seen": 1}


def test_a_request_that_changed_boxes_was_moved() -> None:
    moved = record(resubmitted=1)
    assert causes(records=(moved,)) == {"moved": 1}


def test_a_long_run_of_steps_is_searched_where_the_gap_is() -> None:
    steps = tuple(step(t / 100, t / 100 + 0.009) for t in range(1000))
    late = record(token_s=(9.0, 9.1, 9.9))
    stalled = step(9.2, 9.8, reads="run-2")
    assert causes(records=(late,), steps=(*steps, stalled)) == {"prefill": 1}


def test_without_a_target_nothing_is_called_a_stall() -> None:
    assert stall_causes(Timed(records=(record(),)), None) == {}


def test_only_this_runs_records_count_and_box_clocks_are_moved_to_the_routers() -> None:
    events = [
        RequestDone(record=record("run-1")),
        RequestDone(record=record("other-1")),
        StepSeen(event=step(11.2, 11.9, reads="run-2"), offset_s=-10.0),
    ]
    timed = gather(events, "run")
    assert [r.request_id for r in timed.records] == ["run-1"]
    assert stall_causes(timed, 0.5) == {"prefill": 1}


def test_who_was_refused_or_served_another_way_was_not_served_as_the_mode_says() -> None:
    records = (
        record("run-1"),
        record("run-2", served="colocated"),
        record("run-3", served="none", outcome="rejected", token_s=()),
        record("run-4", served="none", outcome="failed", token_s=()),
        record("run-5", outcome="cancelled"),
    )
    side = server_side(Timed(records=records), tpot_target_s=0.5)
    assert side is not None and (side.served_as_asked, side.to_serve) == (0.25, 4)
    assert side.not_as_asked == {"another way": 1, "refused": 1, "failed": 1}
    assert side.served == {"colocated": 1, "none": 2, "split": 2}
    told = as_asked_words(side.to_serve, side.not_as_asked)
    assert told == (
        "1 of 4 requests were served the way the mode says (1 another way, 1 refused, 1 failed)"
    )


def test_what_is_left_out_of_a_run_is_left_out_of_the_routers_figures_too() -> None:
    slow = record("run-1", received_s=-9.0, served="colocated", prefill_s=9.0, handoff_bytes=7)
    timed = Timed(records=(slow, record("run-2", prefill_s=1.0)))
    side = server_side(timed, tpot_target_s=0.5, counted={"run-2"})
    assert side is not None and (side.requests, side.served_as_asked) == (1, 1.0)
    assert (side.ttft_s.p50, side.prefill_s.p50, side.handoff_bytes) == (1.0, 1.0, 0)
    assert side.stall_causes == {"not seen": 1}
    nothing = server_side(timed, tpot_target_s=0.5, counted=())
    assert nothing is not None and nothing.served_as_asked is None


def test_a_server_that_told_nothing_has_no_side() -> None:
    assert server_side(Timed(), tpot_target_s=0.5) is None


def status(box: str, clock_s: float, power_w: float | None, why: str | None = None) -> WorkerStatus:
    return WorkerStatus(
        box=box,
        clock_s=clock_s,
        running=0,
        waiting=0,
        reserved=0,
        blocks_free=1,
        blocks_total=1,
        power_w=power_w,
        power_why=why,
    )


def test_energy_is_the_area_under_every_boxs_power() -> None:
    told = [status("a", 0.0, 10.0), status("a", 2.0, 20.0), status("a", 3.0, 20.0)]
    told += [status("b", 100.0, 5.0), status("b", 104.0, 5.0)]
    found = energy(told)
    assert found.joules == pytest.approx(30.0 + 20.0 + 20.0)
    assert found.by_box == {"a": pytest.approx(50.0 / 3), "b": pytest.approx(5.0)}


def test_one_box_without_a_meter_makes_the_whole_unmeasured_and_says_why() -> None:
    told = [status("a", 0.0, 10.0), status("a", 1.0, 10.0), status("b", 0.0, None, "no meter")]
    found = energy(told)
    assert found.joules is None and found.why == "b: no meter"
    assert energy([]).joules is None


def test_idle_energy_is_taken_off_where_the_idle_power_of_every_box_is_known() -> None:
    told = [status("a", 0.0, 10.0), status("a", 10.0, 10.0)]
    found = energy(told, idle_w={"a": 4.0})
    assert (found.joules, found.above_idle_joules) == (100.0, 60.0)
    without = energy(told)
    assert without.above_idle_joules is None
    assert without.idle_why is not None and "a" in without.idle_why


def beside(box: str, cores: float | None, why: str | None = None) -> WorkerStatus:
    return WorkerStatus(
        box=box,
        clock_s=0.0,
        running=0,
        waiting=0,
        reserved=0,
        blocks_free=1,
        blocks_total=1,
        others_cores=cores,
        others_why=why,
    )


def test_what_other_programs_took_is_told_for_each_box_or_why_not() -> None:
    seen = background(
        [
            *(beside("a", cores) for cores in (0.5, 1.5)),
            beside("b", None, "no /proc"),
            beside("c", 0.01),
        ]
    )
    assert (seen["a"].mean_cores, seen["a"].most_cores, seen["a"].why) == (1.0, 1.5, None)
    assert [background_words(box, found) for box, found in seen.items()] == [
        "a: other programs took 1.0 cores on average, 1.5 at the most",
        "b: whether other programs ran beside is not known: no /proc",
        None,
    ]
