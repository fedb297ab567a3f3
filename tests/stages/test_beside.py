"""Work in a thread beside a loop, and who waits for it."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from homesplit.stages.beside import beside


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("error", [None, OSError("the disk is full")], ids=["works", "fails"])
async def test_who_is_cancelled_goes_on_only_after_the_work_has_ended_and_hears_no_error_of_it(
    cancels: int, error: Exception | None
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        may_end.wait()
        ended.set()
        if error is not None:
            raise error

    waiting = asyncio.create_task(beside(work))
    await asyncio.to_thread(began.wait)
    for _ in range(cancels):
        waiting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    too_early = waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set() and not too_early
    del waiting
    gc.collect()
    await asyncio.sleep(0)
    assert told == []


async def test_what_the_work_gives_or_raises_is_given_or_raised() -> None:
    assert await beside(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await beside(divmod, 7, 0)
