"""A machine that is named by hand while somebody looks is tried at once and listed once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest

from homesplit.core.events import BoxFound, BoxGone, Event
from homesplit.errors import UsageError
from homesplit.stages import discover
from homesplit.stages.context import Context
from tests.engine.router_kit import until
from tests.io.far_end import Lab, far_end


@contextlib.asynccontextmanager
async def looking(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Looking]:
    def nothing() -> Sequence[str]:
        return ()

    monkeypatch.setattr(discover, "browsing_addresses", nothing)
    monkeypatch.setattr(discover, "_WATCH_EVERY_S", 3600.0)
    seen = Looking()
    work = discover.watch(Context(emit=seen.told.append, paths=lab.paths), seen.typed)
    task = asyncio.create_task(work)
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Looking:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.typed = discover.Typed()

    @property
    def listed(self) -> dict[str, tuple[bool, str | None]]:
        """Each machine on the list: whether it can be used, and why not."""
        boxes: dict[str, tuple[bool, str | None]] = {}
        for event in self.told:
            if isinstance(event, BoxFound) and not event.box.this_machine:
                boxes[event.box.name] = (event.box.usable, event.box.why)
            elif isinstance(event, BoxGone):
                boxes.pop(event.name, None)
        return boxes


async def test_one_that_answers_can_be_used_and_one_that_nobody_knows_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with far_end(tmp_path, monkeypatch) as lab:
        lab.config("")
        async with looking(lab, monkeypatch) as seen:
            await until(lambda: seen.told)
            box = seen.typed.add(f"owner@127.0.0.1:{lab.port}")
            assert (box.usable, box.why, box.user) == (False, discover.BEING_TRIED, "owner")
            seen.typed.add("nobody.invalid")
            await until(lambda: len(seen.listed) == 2)
            assert seen.listed["127.0.0.1"] == (True, None)
            usable, why = seen.listed["nobody.invalid"]
            assert not usable
            assert why == "the name nobody.invalid is known to nobody here"


async def test_an_address_of_a_machine_that_is_listed_adds_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with far_end(tmp_path, monkeypatch) as lab, looking(lab, monkeypatch) as seen:
        await until(lambda: "box" in seen.listed)
        seen.told.append(BoxFound(box=seen.typed.add(f"127.0.0.1:{lab.port}")))
        assert set(seen.listed) == {"box", "127.0.0.1"}
        await until(lambda: set(seen.listed) == {"box"})
        assert seen.listed["box"] == (True, None)


@pytest.mark.parametrize("target", ["", "owner@", "atlas:ssh", "atlas:70000"])
def test_what_is_no_machine_is_refused(target: str) -> None:
    typed = discover.Typed()
    with pytest.raises(UsageError, match="is not"):
        typed.add(target)
    assert typed.targets == ()
