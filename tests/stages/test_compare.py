"""The comparison against a fake router whose modes are as quick as the test says."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.records import ModeSetting, WorkerStatus
from msgspec.structs import replace

from homesplit.core.calibration import Calibration
from homesplit.core.compare_result import compare_document
from homesplit.core.events import CompareRun, CompareVerdict, Event
from homesplit.core.replay import Trace, TraceRow, recorded, replay
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload
from homesplit.errors import EngineError, UsageError
from homesplit.io import calibration_store
from homesplit.io.paths import Paths
from homesplit.stages import bench as bench_stage
from homesplit.stages import compare as compare_stage
from homesplit.stages import repeat as repeat_stage
from homesplit.stages.bench import Target
from homesplit.stages.compare import check_modes, compare, parse_mode
from homesplit.stages.compare_entry import CompareEntry
from homesplit.stages.compare_texts import CHECKED_EACH
from homesplit.stages.context import Context
from homesplit.stages.notebook import list_entries, show_entry
from tests.io.fake_openai import Manners, fake_server
from tests.io.fake_router import fake_router

LOAD = Workload(
    name="small",
    classes=(
        LengthClass(
            name="small",
            share=1.0,
            prompt_tokens_low=10,
            prompt_tokens_high=20,
            output_tokens_low=3,
            output_tokens_high=3,
        ),
    ),
    arrivals=Arrivals(rate_requests_per_s=30.0),
    targets=Targets(ttft_s=1.0, tpot_s=1.0),
)
QUICK = Manners(model="smollm2-135m")
SLOW = Manners(model="smollm2-135m", ttft_s=1.5)
EVEN = {"colocated": QUICK, "split": QUICK}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake router tells no events: don't wait for them."""
    monkeypatch.setattr("homesplit.stages.load_watch.FIRST_EVENT_S", 0.02)
    monkeypatch.setattr("homesplit.stages.load_watch.LAST_RECORDS_S", 0.02)


@pytest.fixture
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow mode is asked for one text each: how much is compared is tried elsewhere."""
    monkeypatch.setattr("homesplit.stages.compare_texts.CHECK_S", 6.0)


def replace_context(ctx: Context, emit: Callable[[Event], None]) -> Context:
    return dataclasses.replace(ctx, emit=emit)


def context(folder: Path, told: list[Event] | None = None) -> Context:
    paths = Paths(config=folder / "c", cache=folder / "k", data=folder / "d")
    return Context(emit=(told if told is not None else []).append, paths=paths)


async def run(folder: Path, url: str, *modes: str, **more: Any) -> Any:
    given: dict[str, Any] = {"seconds": 1.0, "repeats": 2, **more}
    return await compare(context(folder), Target(url=url), modes, LOAD, **given)


async def test_every_mode_gets_the_same_times_and_lengths_in_other_words_in_turned_order(
    tmp_path: Path,
) -> None:
    async with fake_router(EVEN) as router:
        before = router.setting
        result = await run(tmp_path, router.url, "colocated:whole", "split")
    order = [(s.mode, s.prefill) for s in router.switches[:4]]
    one, other = ("colocated", "whole"), ("split", "chunked")
    assert order == [one, other, other, one]
    assert router.setting == before
    logs = [run.logs for mode in result.modes for run in mode.runs]
    asked = [[(log.due_s, log.prompt_tokens_asked) for log in each] for each in logs]
    assert len(asked) == 4 and all(each == asked[0] for each in asked)
    assert router.server is not None
    prompts = [str(seen.body["prompt"]) for seen in router.server.load_requests()]
    words = [" ".join(text.split()[:8]) for text in prompts]
    checks = 2 * CHECKED_EACH
    # The text check asks each of its prompts once in each mode, on purpose.
    assert len(set(words)) == len(words) - checks


async def test_the_routers_own_figures_leave_warm_up_out_and_tell_who_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.stages.load_watch.LAST_RECORDS_S", 10.0)
    async with fake_router(EVEN) as router:
        router.refuses = 20
        result = await run(
            tmp_path, router.url, "colocated:whole", repeats=1, warm_up=0.3, drain=0.0
        )
    (mode,) = compare_document(result)["modes"]
    left_out, counted = mode["left_out"], mode["offered"]
    assert 0 < left_out < 20 < left_out + counted
    assert (mode["to_serve"], mode["not_as_asked"]) == (counted, {"refused": 20 - left_out})


async def test_a_slower_mode_loses_and_the_verdict_is_in_the_notebook(
    tmp_path: Path, few_texts: None
) -> None:
    told: list[Event] = []
    async with fake_router({"colocated": SLOW, "split": QUICK}) as router:
        target = Target(url=router.url)
        modes = ["colocated:chunked", "split"]
        result = await compare(context(tmp_path, told), target, modes, LOAD, seconds=1.5)
    assert result.verdict.mode == "split" and result.identical_text is True
    runs = [event for event in told if isinstance(event, CompareRun)]
    assert [(event.mode, event.repeats) for event in runs].count(("split", 2)) == 1
    entries = list_entries(context(tmp_path))
    assert [entry.kind for entry in entries] == ["comparison"]
    assert result.trade is not None and "of TTFT at p50 against a alone" in result.trade
    assert entries[0].sentence == result.sentence != result.verdict.sentence
    assert result.sentence.startswith(f"{result.trade.rstrip('.')}; split had the most goodput")
    assert result.sentence.count(". ") == 0 and compare_document(result)["sentence"] in str(told)
    _, raw = show_entry(context(tmp_path), entries[0].id)
    assert len(raw) == 4 and all(raw.values())


async def test_what_takes_long_is_done_beside_the_loop_that_draws_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[str, threading.Thread]] = []

    def watch(stage: Any, name: str) -> None:
        work = getattr(stage, name)

        def noted(*told: Any, **more: Any) -> Any:
            threads.append((name, threading.current_thread()))
            return work(*told, **more)

        monkeypatch.setattr(stage, name, noted)

    for name in ("gather", "server_side", "summarise"):
        watch(bench_stage, name)
    for name in ("summed", "verdict", "trade"):
        watch(compare_stage, name)
    for name in ("run_ended", "ended"):
        watch(CompareEntry, name)
    async with fake_router(EVEN) as router:
        result = await run(tmp_path, router.url, "colocated", seconds=0.3, repeats=2)
        entry, raw = show_entry(context(tmp_path), str(result.entry))
        watch(repeat_stage, "change")
        await repeat_stage.repeat(context(tmp_path), entry, raw, Target(url=router.url))
    each = ["gather", "server_side", "summarise"]
    once = [*each, *each, "run_ended", "summed", "run_ended", "verdict", "trade", "ended"]
    assert sorted(name for name, _ in threads) == sorted([*once, *once, "change"])
    assert threading.current_thread() not in [thread for _, thread in threads]


async def test_every_run_is_in_the_notebook_before_it_is_told(tmp_path: Path) -> None:
    told: list[tuple[Event, Any]] = []
    ctx = context(tmp_path)

    def take(event: Event) -> None:
        found = list_entries(ctx)
        told.append((event, show_entry(ctx, found[0].id) if found else None))

    async with fake_router(EVEN) as router:
        modes = ["colocated", "split"]
        watched = replace_context(ctx, take)
        result = await compare(watched, Target(url=router.url), modes, LOAD, seconds=0.3, repeats=2)
    runs = [kept for event, kept in told if isinstance(event, CompareRun)]
    assert [len(raw) for _, raw in runs] == [1, 2, 3, 4]
    first, raw = runs[0]
    assert not first.ended and first.sentence.startswith("Comparison, not ended: 1 of 4 runs done.")
    assert first.body["modes"][0]["offered"] > 0
    assert first.body["verdict"]["mode"] is None and list(raw) == ["colocated:chunked round 1"]
    assert {entry.id for entry, _ in runs} == {result.entry}
    last, raw = next(kept for event, kept in told if isinstance(event, CompareVerdict))
    assert last.ended and len(raw) == 4 and last.sentence == result.sentence


async def test_a_comparison_that_broke_off_keeps_what_was_measured(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    async with fake_router(EVEN) as router:

        def stop(event: Event) -> None:
            if isinstance(event, CompareRun):
                raise RuntimeError("ended from outside")

        target = Target(url=router.url)
        with pytest.raises(RuntimeError):
            watched = replace_context(ctx, stop)
            await compare(watched, target, ["colocated", "split"], LOAD, seconds=0.3)
    (entry,) = list_entries(ctx)
    _, raw = show_entry(ctx, entry.id)
    assert not entry.ended and raw["colocated:chunked round 1"]


async def test_a_recorded_load_is_replayed_through_every_mode(tmp_path: Path) -> None:
    rows = tuple(
        TraceRow(at_s=0.04 * n, prompt_tokens=20 + n, output_tokens=2, hash_ids=(7, n))
        for n in range(25)
    )
    plan = replay(Trace(name="recorded", rows=rows, block_tokens=8), seed=3, speed=2.0, limit=24)
    load = recorded(plan, LOAD.targets)
    ctx = context(tmp_path)
    async with fake_router(EVEN) as router, fake_server() as other:
        result = await compare(
            ctx,
            Target(url=router.url),
            ["colocated", "split"],
            load,
            plan=plan,
            repeats=1,
            also=[Target(url=other.url)],
        )
        assert router.server is not None
        prompts = [str(seen.body["prompt"]).split() for seen in other.load_requests()]
    asked = [
        [(log.due_s, log.prompt_tokens_asked) for log in run.logs]
        for mode in result.modes
        for run in mode.runs
    ]
    assert len(asked) == 3 and asked[0] == asked[1] == asked[2] and len(asked[0]) == 24
    # The first block is the same hash id in every row, and so the same text.
    assert len({tuple(words[:8]) for words in prompts}) == 1
    assert len({tuple(words[8:16]) for words in prompts}) == 24
    entry, raw = show_entry(ctx, str(result.entry))
    assert len(raw["offered"]) == 24 and entry.about.settings["workload"]["source"] == "trace"
    assert "replay of 24 requests of recorded at 2 times its speed" in " ".join(result.notes)


async def test_different_text_is_found(tmp_path: Path) -> None:
    short = Manners(model="smollm2-135m", eos_after=2)
    async with fake_router({"colocated": QUICK, "split": short}) as router:
        result = await run(tmp_path, router.url, "colocated:whole", "split", repeats=1)
    assert result.identical_text is False
    assert result.compared_prompts == 2 * CHECKED_EACH


@pytest.mark.parametrize("modes", [("colocated", "split:int8"), ("split:int8",)])
async def test_a_lossy_wire_is_told_by_itself_and_held_against_a_mode_without_loss(
    tmp_path: Path, modes: tuple[str, ...]
) -> None:
    told: list[Event] = []
    strays = Manners(model="smollm2-135m", eos_after=2)
    async with fake_router({**EVEN, "split:int8": strays}) as router:
        target = Target(url=router.url)
        result = await compare(context(tmp_path, told), target, modes, LOAD, seconds=1.0, repeats=1)
        assert {s.kv_wire for s in router.switches if s.mode == "colocated"} <= {"same"}
    prompts = 2 * CHECKED_EACH
    assert result.identical_text is True and result.compared_prompts == prompts
    assert result.modes[-1].name == "split:int8"
    (found,) = result.divergences
    assert (found.compared, found.identical, found.differs_after_tokens) == (prompts, 0, (2,) * 6)
    assert compare_document(result)["divergences"][0]["sentence"] == found.sentence
    assert [e.divergences for e in told if isinstance(e, CompareVerdict)] == [(found.sentence,)]


@pytest.mark.parametrize(
    ("text", "prefill", "wire"),
    [
        ("split", "chunked", "fp16"),
        ("split:same", "chunked", "same"),
        ("split:whole:int8", "whole", "int8"),
        ("auto-int8", "chunked", "int8"),
        ("replica:whole", "whole", "same"),
        ("colocated-chunked", "chunked", "same"),
    ],
)
def test_a_mode_is_written_with_how_it_reads_and_how_it_sends(
    text: str, prefill: str, wire: str
) -> None:
    now = ModeSetting(mode="split", prefill_box="a", decode_box="b", kv_wire="fp16")
    setting = parse_mode(text, now, ["a", "b"])
    assert (setting.prefill, setting.kv_wire) == (prefill, wire)


@pytest.mark.parametrize(
    "modes",
    [
        ("split", "split:same"),
        ("split:int8", "auto", "split", "colocated", "replica"),
        ("auto:whole:fp16", "auto:whole"),
        ("colocated:whole", "colocated"),
    ],
)
def test_what_only_the_deployment_can_tell_to_be_the_same_is_not_refused_before(
    modes: tuple[str, ...],
) -> None:
    check_modes(modes)


@pytest.mark.parametrize(
    "modes",
    [
        ("split", "replica", "split:chunked"),
        ("split:same", "auto", "split:chunked:same"),
        ("colocated", "split", "colocated"),
    ],
)
def test_one_mode_named_twice_is_refused_before_anybody_is_asked(modes: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"{modes[-1]} is named twice"):
        check_modes(modes)


async def test_a_mode_that_turns_out_to_be_another_is_refused_by_the_deployment(
    tmp_path: Path,
) -> None:
    async with fake_router(EVEN) as router:
        with pytest.raises(UsageError, match="split:same is named twice"):
            await run(tmp_path, router.url, "split", "split:same")


@pytest.mark.parametrize("text", ["replica:int8", "split:fp8", "split:int8:fp16", "split:"])
def test_a_wire_that_a_mode_can_not_have_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no mode"):
        parse_mode(text, ModeSetting(), ["a", "b"])


async def test_another_server_is_one_more_column_with_the_same_requests(tmp_path: Path) -> None:
    async with fake_router(EVEN) as router, fake_server(Manners(ttft_s=1.5)) as other:
        result = await run(tmp_path, router.url, "split", also=[Target(url=other.url)], seconds=1.5)
    own, foreign = compare_document(result)["modes"]
    assert (own["mode"], foreign["mode"]) == ("split", "other")
    assert foreign["url"] == other.url and foreign["offered"] == own["offered"]
    assert foreign["attainment"] == 0.0 < own["attainment"]
    assert foreign["predicted"] is None and "another server" in foreign["predicted_why"]
    assert result.verdict.mode == "split"


async def test_the_boxes_are_watched_while_another_server_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.stages.load_watch.FIRST_EVENT_S", 60.0)
    async with fake_router(EVEN) as router, fake_server() as other:
        router.statuses.append(status("a", others_cores=1.5))
        also = [Target(url=other.url)]
        result = await run(tmp_path, router.url, "split", also=also, seconds=0.3, repeats=1)
    _, foreign = compare_document(result)["modes"]
    assert foreign["background_cores"] == {"a": 1.5} and foreign["loopback"] is True
    assert (
        f"other server {other.url}: programs other than homesplit took 1.5 cores of a meanwhile, "
        "its own work among it where it runs there; another machine is not watched"
    ) in result.notes
    # What the other server itself takes of a box is no reason to call the modes unfair.
    assert not any("not equally free" in note for note in result.notes)


async def test_boxes_that_told_nothing_meanwhile_are_not_taken_for_quiet(tmp_path: Path) -> None:
    async with fake_router(EVEN) as router, fake_server() as other:
        also = [Target(url=other.url)]
        result = await run(tmp_path, router.url, "split", also=also, seconds=0.3, repeats=1)
    assert any("what ran on the boxes meanwhile is not known" in note for note in result.notes)
    assert compare_document(result)["modes"][1]["background_cores"] == {}


def status(box: str, **more: Any) -> WorkerStatus:
    return WorkerStatus(
        box=box,
        clock_s=1.0,
        running=0,
        waiting=0,
        reserved=0,
        blocks_free=1,
        blocks_total=1,
        **more,
    )


@pytest.mark.parametrize("repeats", [1, 2])
async def test_what_stands_beside_the_figures_is_told_once(tmp_path: Path, repeats: int) -> None:
    strict = Manners(strict_fields=True, ttft_s=0.02)
    async with fake_router(EVEN) as router, fake_server(strict) as other:
        also = [Target(url=other.url)]
        result = await run(tmp_path, router.url, "split", also=also, repeats=repeats)
    assert len(set(result.notes)) == len(result.notes)
    assert len([note for note in result.notes if "knows no ignore_eos" in note]) == 1
    late = [note for note in result.notes if "event loop woke" in note]
    assert len(late) <= 1


async def test_a_warm_up_of_ones_own_is_kept(tmp_path: Path) -> None:
    async with fake_router(EVEN) as router:
        result = await run(tmp_path, router.url, "colocated", "split", warm_up=0.5)
    assert {run.summary.window.warm_up_s for mode in result.modes for run in mode.runs} == {0.5}
    assert all(mode.pooled.window.warm_up_s == 0.5 for mode in result.modes)


async def test_arrangements_that_share_a_mode_keep_their_records_apart(tmp_path: Path) -> None:
    async with fake_router({"replica": QUICK, "colocated": QUICK}) as router:
        result = await run(tmp_path, router.url, "replica:whole", "replica", repeats=1)
        with pytest.raises(UsageError, match="named twice"):
            await run(tmp_path, router.url, "replica", "replica:chunked")
    assert [mode.name for mode in result.modes] == ["replica:whole", "replica"]
    _, raw = show_entry(context(tmp_path), "1")
    assert set(raw) == {"replica:whole round 1", "replica round 1"}


async def test_without_probes_there_is_no_prediction_and_the_reason_stands(tmp_path: Path) -> None:
    async with fake_router(EVEN) as router:
        result = await run(tmp_path, router.url, "split", repeats=1)
    mode = compare_document(result)["modes"][0]
    assert mode["predicted"] is None
    assert "a was neither probed nor calibrated" in mode["predicted_why"]


async def test_calibrated_boxes_are_predicted_with_the_very_requests(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    for box in ("a", "b"):
        calibration_store.save(ctx.paths, calibration(box))
    async with fake_router(EVEN) as router:
        result = await compare(
            ctx, Target(url=router.url), ["colocated:whole", "split"], LOAD, seconds=2.0, repeats=1
        )
    for mode in compare_document(result)["modes"]:
        predicted = mode["predicted"]
        assert mode["predicted_why"] is None
        assert predicted["attainment"] == 1.0
        assert predicted["ttft_s"]["low"] <= predicted["ttft_s"]["p50"] < 0.1
        assert all("calibrated" in source for source in predicted["sources"])
    alone, split = (mode.predicted for mode in result.modes)
    assert alone and split and (split.ttft_s.p50 or 0) > 0 and alone != split


def calibration(box: str) -> Calibration:
    """A box that needs 1 ms a step and 0.1 ms a prompt token."""
    return Calibration(
        box=box,
        model="smollm2-135m",
        step_s=0.001,
        token_s=0.0001,
        pair_s=0.0,
        sequence_s=0.0,
        context_s=0.0,
        steps=100,
        error_p50=0.01,
        error_p90=0.05,
        kv_bytes_per_token=46_080,
        kv_tokens=10_000,
        fingerprint=box,
    )


async def test_a_foreign_server_has_no_modes_and_that_is_said(tmp_path: Path) -> None:
    async with fake_server() as server:
        with pytest.raises(EngineError, match="no modes to compare"):
            await run(tmp_path, server.url, "split")


async def test_a_word_that_is_no_mode_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async with fake_router(EVEN) as router:
        with pytest.raises(UsageError, match="no mode"):
            await run(tmp_path, router.url, "divided")
    assert router.server is not None and router.server.load_requests() == []


async def test_the_former_mode_is_back_even_when_the_comparison_breaks_off(tmp_path: Path) -> None:
    load = replace(LOAD, name="x")
    async with fake_router({"colocated": QUICK}) as router:
        before = router.setting
        # The fake knows no mode replica and answers with an error.
        with pytest.raises(EngineError):
            await compare(context(tmp_path), Target(url=router.url), ["replica"], load, seconds=0.2)
        assert router.setting == before


async def test_energy_and_its_cost_say_why_they_are_not_known(tmp_path: Path) -> None:
    async with fake_router(EVEN) as router:
        result = await run(tmp_path, router.url, "split", repeats=1, price_per_kwh=0.3)
    mode = compare_document(result)["modes"][0]
    assert mode["joules_per_1000_good_tokens"] is None
    assert mode["cost_per_1000_good_tokens"] is None
    assert mode["cost_why"] == mode["energy_why"] == "the server tells no power"
