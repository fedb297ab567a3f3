"""An entry done again: the same requests, held against what they did then."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from homesplit_engine.records import ModeSetting
from msgspec.structs import replace

from homesplit.core.again import Change, change
from homesplit.core.demo_result import DemoMode, DemoResult, demo_document, demo_settings
from homesplit.core.entry import LOOPBACK_LABEL, About
from homesplit.core.former_self import address_of
from homesplit.core.link import LinkProfile
from homesplit.core.load import with_load
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading, measured
from homesplit.core.remeasured import Figure, box_again, link_again
from homesplit.core.replay import Trace, TraceRow, replay
from homesplit.core.window import Window
from homesplit.errors import UsageError
from homesplit.stages.bench import Target, bench
from homesplit.stages.capacity import find_capacity
from homesplit.stages.compare import compare
from homesplit.stages.context import Context
from homesplit.stages.notebook import list_entries, notes_on, record, show_entry
from homesplit.stages.plan import PlanQuestion, make_plan
from homesplit.stages.plan_entry import keep_plan, keep_with_curves_if_possible
from homesplit.stages.repeat import needs_server, repeat, repeatable
from tests.io.fake_openai import Manners, fake_server
from tests.io.fake_router import fake_router
from tests.stages.test_compare import EVEN, LOAD, SLOW, context


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake router tells no events: don't wait for them."""
    monkeypatch.setattr("homesplit.stages.load_watch.FIRST_EVENT_S", 0.02)
    monkeypatch.setattr("homesplit.stages.load_watch.LAST_RECORDS_S", 0.02)


async def test_a_run_is_repeated_on_its_own_server_and_a_slower_one_is_called_worse(
    tmp_path: Path,
) -> None:
    ctx = context(tmp_path)
    # A target that an answer without delay keeps, also while this computer has no core for it.
    load = with_load(LOAD, rate_requests_per_s=30.0, ttft_s=4.0, tpot_s=30.0)
    async with fake_server() as server:
        await bench(ctx, Target(url=server.url), load, seconds=1.0, seed=4)
        entry, raw = show_entry(ctx, "1")
        assert address_of(entry) == server.url
        same = await repeat(ctx, entry, raw, Target(url=server.url))
        server.manners = Manners(ttft_s=4.5)
        worse = await repeat(ctx, entry, raw, Target(url=server.url))
        assert not same.others and "former self" not in same.sentence
        async with fake_server(Manners(model="another")) as second:
            elsewhere = await repeat(ctx, entry, raw, Target(url=second.url, named=True))
    assert [each.what for each in elsewhere.others] == ["address", "model"]
    told = f"It is not its former self: address {second.url}, before {server.url}; model another, "
    assert told in elsewhere.sentence
    unchanged, changed = same.changes[0], worse.changes[0]
    assert isinstance(unchanged, Change) and isinstance(changed, Change)
    assert unchanged.low is not None and unchanged.high is not None
    # Nothing differs, and so few requests don't show that nothing would.
    assert unchanged.low < 0.0 < unchanged.high
    assert "no difference" in same.sentence
    assert changed.attainment_now == 0.0 and "fewer inside than before" in worse.sentence
    then, now = (show_entry(ctx, key)[1]["requests"] for key in (entry.id, same.entry))
    assert [r["due_s"] for r in then] == [r["due_s"] for r in now]
    assert [note.sentence for note in notes_on(ctx, same.entry)] == [same.sentence]


async def test_a_stopped_run_is_counted_by_its_own_length_when_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path)
    windows: list[tuple[Window, Window]] = []

    def seen(*told: Any, seen_then: Window, seen_now: Window) -> Change:
        windows.append((seen_then, seen_now))
        return change(*told, seen_then=seen_then, seen_now=seen_now)

    monkeypatch.setattr("homesplit.stages.repeat.change", seen)
    async with fake_server() as server:
        target = Target(url=server.url)
        await bench(ctx, target, LOAD, seconds=1.0, seed=4)
        entry, raw = show_entry(ctx, "1")
        # As if it had been stopped after half of its time.
        body = {**entry.body, "offered_s": 0.5, "warm_up_s": 0.05, "drain_s": 0.05}
        await repeat(ctx, replace(entry, body=body), raw, target)
    ((then, now),) = windows
    assert then == Window(warm_up_s=0.05, drain_s=0.05, offered_s=0.5)
    assert now == Window(warm_up_s=0.05, drain_s=0.05, offered_s=1.0)


async def test_a_run_is_repeated_in_its_own_mode_and_the_present_one_is_back_after_it(
    tmp_path: Path,
) -> None:
    ctx = context(tmp_path)
    async with fake_router(EVEN) as router:
        await bench(ctx, Target(url=router.url), LOAD, seconds=0.5, seed=4)
        first = router.setting
        entry, raw = show_entry(ctx, "1")
        router.choose(ModeSetting(mode="split", prefill_box="a", decode_box="b"))
        present = router.setting
        await repeat(ctx, entry, raw, Target(url=router.url))
        assert router.switches[-2:] == [first, present]
    assert address_of(entry) is None


async def test_a_comparison_is_repeated_mode_by_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One text of the slow mode each: how much is compared is tried elsewhere.
    monkeypatch.setattr("homesplit.stages.compare_texts.CHECK_S", 6.0)
    ctx = context(tmp_path)
    async with fake_router({"colocated": EVEN["colocated"], "split": SLOW}) as router:
        target = Target(url=router.url)
        await compare(ctx, target, ["colocated:whole", "split"], LOAD, seconds=1.0, repeats=1)
        entry, raw = show_entry(ctx, "1")
        found = await repeat(ctx, entry, raw, target)
    changes = [change for change in found.changes if isinstance(change, Change)]
    assert [change.name for change in changes] == ["colocated:whole", "split"]
    assert [entry.kind for entry in list_entries(ctx)] == ["comparison", "comparison", "note"]
    assert changes[1].attainment_then == 0.0


async def test_a_run_of_other_boxes_than_those_that_serve_now_is_refused(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    async with fake_router(EVEN) as router:
        await bench(ctx, Target(url=router.url), LOAD, seconds=0.3, seed=4)
        entry, raw = show_entry(ctx, "1")
        moved = replace(entry, about=replace(entry.about, boxes=("a", {"name": "borea"})))
        with pytest.raises(UsageError, match="measured a and borea; what serves now is a and b"):
            await repeat(ctx, moved, raw, Target(url=router.url))
    async with fake_server() as server:
        with pytest.raises(UsageError, match=r"measured a and b; .* is no router of homesplit"):
            await repeat(ctx, entry, raw, Target(url=server.url))
    assert [entry.kind for entry in list_entries(ctx)] == ["run"]


async def test_a_demo_is_repeated_mode_by_mode_under_its_own_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path)
    first = demo_settings()[0]
    async with fake_router(EVEN) as router:
        target = Target(url=router.url)

        async def outcome() -> DemoResult:
            run = await bench(ctx, target, LOAD, seconds=1.0, seed=4, warm_up=0.0, drain=0.0)
            mode = DemoMode(setting=first, result=run, different=())
            made = DemoResult(modes=(mode,), compared_prompts=9, kv_bytes_per_token=8, kv_dtype="f")
            about = About(model="tiny", loopback=True)
            record(ctx, "comparison", "All agreed.", demo_document(made), about=about)
            return made

        asked: list[dict[str, Any]] = []

        async def run_demo(_: Context, **options: Any) -> DemoResult:
            asked.append(options)
            return await outcome()

        await outcome()
        entry, raw = show_entry(ctx, "2")
        assert repeatable(entry, raw) and not needs_server(entry)
        # The demo itself needs the model and minutes; what is done with its outcome does not.
        monkeypatch.setattr("homesplit.stages.repeat_demo.run_demo", run_demo)
        found = await repeat(ctx, entry, raw, None)
    assert asked == [{"seconds": 1.0, "model": "tiny", "kv_wire": "same"}]
    (changed,) = found.changes
    assert isinstance(changed, Change) and changed.name == "colocated-whole"
    assert changed.attainment_then is not None and changed.low is not None
    assert found.entry == list_entries(ctx, "comparison")[-1].id != entry.id
    assert notes_on(ctx, found.entry)[0].sentence.endswith(f"({LOOPBACK_LABEL}).")


async def test_an_entry_that_is_no_measurement_is_refused(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    record(ctx, "deployment", "It runs.")
    entry, raw = show_entry(ctx, "1")
    assert not repeatable(entry, raw)
    with pytest.raises(UsageError, match="without raw records"):
        await repeat(ctx, entry, raw, Target(url="http://127.0.0.1:9"))


async def test_a_replayed_trace_is_repeated_from_what_the_entry_holds(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    rows = tuple(
        TraceRow(at_s=0.05 * n, prompt_tokens=20, output_tokens=2, hash_ids=(7, n))
        for n in range(4)
    )
    plan = replay(Trace(name="small trace", rows=rows, block_tokens=8), seed=3)
    async with fake_server() as server:
        target = Target(url=server.url)
        await bench(ctx, target, LOAD, seconds=1.0, seed=3, plan=plan, warm_up=0.0, drain=0.0)
        entry, raw = show_entry(ctx, "1")
        found = await repeat(ctx, entry, raw, target)
        bodies = [str(seen.body["prompt"]).split()[:8] for seen in server.load_requests()]
    now, after = show_entry(ctx, found.entry)
    assert now.body["trace"] == "small trace" and after["offered"] == raw["offered"]
    assert "no difference" in found.sentence or "no request in common" in found.sentence
    # The shared first block is the same text within a run, and other text in the next one.
    first, second = bodies[:4], bodies[4:]
    assert all(words == first[0] for words in first)
    assert all(words == second[0] for words in second) and first[0] != second[0]


async def test_a_search_for_capacity_is_repeated_in_its_own_mode_and_held_against_the_former(
    tmp_path: Path,
) -> None:
    ctx = context(tmp_path)
    load = with_load(LOAD, rate_requests_per_s=200.0, ttft_s=30.0, tpot_s=30.0)
    # It refuses everything, so that the search ends at once.
    busy = Manners(model="smollm2-135m", refuse_with=503)
    async with fake_router({"colocated": busy, "split": busy}) as router:
        target = Target(url=router.url)
        router.choose(router.setting)
        await find_capacity(ctx, target, load, seconds=0.3, seed=1)
        before = router.setting
        entry, raw = show_entry(ctx, "1")
        # As searches were before they had a limit.
        settings = {k: v for k, v in entry.about.settings.items() if k != "within_s"}
        entry = replace(entry, about=replace(entry.about, settings=settings))
        router.choose(ModeSetting(mode="split", prefill_box="a", decode_box="b"))
        found = await repeat(ctx, entry, raw, target)
    assert repeatable(entry, raw) and needs_server(entry)
    assert before in router.switches and router.setting.mode == "split"
    (figure,) = found.changes
    assert isinstance(figure, Figure) and figure.name == "capacity" and figure.differs is None
    again = next(one for one in list_entries(ctx) if one.id == found.entry)
    assert again.about.settings["within_s"] is None
    assert LOOPBACK_LABEL in found.sentence


async def test_a_plan_is_asked_again_beside_the_loop_and_says_whether_the_advice_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path)
    question = PlanQuestion(boxes=("rtx-4090", "rtx-3090"), link="1Gbit/s", flips=False)
    question = replace(question, prompt_tokens=100, output_tokens=10, users=1)
    keep_plan(ctx, question, make_plan(ctx, question))
    threads: list[threading.Thread] = []

    def note_thread(*_: Any) -> None:
        threads.append(threading.current_thread())

    def keep(*given: Any) -> str:
        note_thread()
        return keep_plan(*given)

    monkeypatch.setattr("homesplit.stages.repeat_boxes.curves_of", note_thread)
    monkeypatch.setattr("homesplit.stages.repeat_boxes.keep_plan", keep)
    entry, raw = show_entry(ctx, "1")
    assert not needs_server(entry)
    found = await repeat(ctx, entry, raw, None)
    assert "as then" in found.sentence
    assert [e.kind for e in list_entries(ctx)] == ["plan", "plan", "note"]
    assert len(threads) == 2 and threading.main_thread() not in threads


def test_curves_are_worked_out_only_for_a_notebook_that_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path)
    question = PlanQuestion(boxes=("rtx-4090", "rtx-3090"), link="1Gbit/s", flips=False)
    question = replace(question, prompt_tokens=100, output_tokens=10, users=1)
    plan, asked = make_plan(ctx, question), list[PlanQuestion]()

    def curves_of(_ctx: Context, question: PlanQuestion) -> None:
        asked.append(question)

    monkeypatch.setattr("homesplit.stages.plan_entry.curves_of", curves_of)
    path = ctx.paths.notebook
    path.mkdir(parents=True)
    assert keep_with_curves_if_possible(ctx, question, plan) is None and asked == []
    path.rmdir()
    assert keep_with_curves_if_possible(ctx, question, plan) is not None and asked == [question]


def test_boxes_and_links_measured_again_are_judged_by_their_repetitions() -> None:
    then = BoxProfile(name="a", source="probe", memory_bytes_per_s=reading(9.0, 10.0, 11.0))
    same = BoxProfile(name="a", source="probe", memory_bytes_per_s=reading(10.5, 12.0))
    slower = BoxProfile(name="a", source="probe", memory_bytes_per_s=reading(5.0, 6.0))
    lost = BoxProfile(name="a", source="probe")
    told = [box_again(then, now)[0] for now in (same, slower, lost)]
    assert [figure.differs for figure in told] == [False, True, None]
    assert "no difference" in told[0].words and "less than before" in told[1].words
    assert "not to be compared" in told[2].words
    link = LinkProfile(a="a", b="b", source="probe", a_to_b=reading(1e9 / 8))
    faster = LinkProfile(a="a", b="b", source="probe", a_to_b=reading(2.5e9 / 8))
    words = link_again(link, faster)[0].words
    assert words == "a to b: more than before; 2.5 Gbit/s, before 1 Gbit/s."


def reading(*samples: float) -> Reading:
    return measured(samples, unit="x/s", method="m")
