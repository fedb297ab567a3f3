"""An entry done again: the same requests, held against what they did then."""

from __future__ import annotations

from pathlib import Path

import pytest
from homesplit_engine.records import ModeSetting

from homesplit.errors import UsageError
from homesplit.stages.bench import Target, bench
from homesplit.stages.compare import compare
from homesplit.stages.notebook import list_entries, notes_on, record, show_entry
from homesplit.stages.repeat import repeat, url_of
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
    async with fake_server() as server:
        await bench(ctx, Target(url=server.url), LOAD, seconds=1.0, seed=4)
        entry, raw = show_entry(ctx, "1")
        assert url_of(entry) == server.url
        same = await repeat(ctx, entry, raw, Target(url=server.url))
        server.manners = Manners(ttft_s=1.5)
        worse = await repeat(ctx, entry, raw, Target(url=server.url))
    assert (same.changes[0].low, same.changes[0].high) == (0.0, 0.0)
    assert "no difference" in same.sentence
    assert worse.changes[0].attainment_now == 0.0 and "worse than then" in worse.sentence
    then, now = (show_entry(ctx, key)[1]["requests"] for key in (entry.id, same.entry))
    assert [r["due_s"] for r in then] == [r["due_s"] for r in now]
    assert [note.sentence for note in notes_on(ctx, same.entry)] == [same.sentence]


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
    assert url_of(entry) is None


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
    assert [change.name for change in found.changes] == ["colocated:whole", "split"]
    assert [entry.kind for entry in list_entries(ctx)] == ["comparison", "comparison", "note"]
    assert found.changes[1].attainment_then == 0.0


async def test_an_entry_that_holds_no_requests_is_refused(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    record(ctx, "plan", "Take split.")
    entry, raw = show_entry(ctx, "1")
    with pytest.raises(UsageError, match="without raw records"):
        await repeat(ctx, entry, raw, Target(url="http://127.0.0.1:9"))
