"""The search for capacity against a server that refuses what is too much for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from homesplit.core.load import with_load
from homesplit.core.workload import Targets
from homesplit.errors import UsageError
from homesplit.stages.bench import Target
from homesplit.stages.capacity import capacity_document, find_capacity
from homesplit.stages.notebook import list_entries
from tests.io.fake_openai import Manners, fake_server
from tests.stages.test_compare import LOAD, context


async def test_the_rate_at_which_a_server_begins_to_refuse_too_many_is_found(
    tmp_path: Path,
) -> None:
    ctx = context(tmp_path)
    # Eight at a time for 0.05 s each: above 160 requests/s it must refuse, however they come.
    manners = Manners(ttft_s=0.05, itl_s=0.0, most_open=8)
    async with fake_server(manners) as server:
        target = Target(url=server.url)
        load = with_load(LOAD, rate_requests_per_s=40.0, ttft_s=30.0, tpot_s=30.0)
        found = await find_capacity(ctx, target, load, seconds=0.5, seed=1)
    assert found.capacity_requests_per_s is not None and found.high is not None
    assert found.capacity_requests_per_s < found.high
    assert found.capacity_requests_per_s < 180.0
    trials = capacity_document(found)["trials"]
    assert all(t["low"] <= t["attainment"] <= t["high"] + 1e-9 for t in trials)
    assert list_entries(ctx)[0].sentence.startswith("Capacity ")


async def test_a_load_without_a_rate_or_without_targets_is_refused(tmp_path: Path) -> None:
    target = Target(url="http://127.0.0.1:9")
    careless = replace(LOAD, targets=Targets(ttft_s=None, tpot_s=None))
    for load, word in ((with_load(LOAD, users=3), "rate"), (careless, "target")):
        with pytest.raises(UsageError, match=word):
            await find_capacity(context(tmp_path), target, load, seconds=1.0, seed=1)
