"""Early refusal: who could only be disappointed is told so at once, and when to come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from homesplit_engine.records import ModeSetting

from tests.engine.router_kit import rig, stub_settings, until

PLAIN = "/v1/completions"
PROMPT = "a" * 100


async def test_who_would_wait_past_the_limit_is_refused_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    settings = {"left": stub_settings(prefill_tokens_per_s=500.0)}
    async with rig(tmp_path, settings=settings, setting=ModeSetting(decode_box="left")) as running:
        await running.get("/health")  # the router's own question is not to be among the waiting
        # Measures: 0.2 s a prompt, more where this computer is busy.
        await asyncio.gather(*(running.complete(PROMPT, 2) for _ in range(8)))
        left = running.stubs["left"]
        left.settings.pause_at = 0  # so that those who are let in stay ahead of the others
        body = {"prompt": PROMPT, "max_tokens": 2}
        headers = {"x-first-token-deadline-s": "1"}

        async def ask() -> tuple[int, str | None]:
            async with running.http.post(running.url + PLAIN, json=body, headers=headers) as answer:
                await answer.read()
                return answer.status, answer.headers.get("Retry-After")

        asked = [asyncio.create_task(ask()) for _ in range(40)]
        await until(lambda: left.paused + sum(task.done() for task in asked) == 40)
        # What is queued on one box holds nobody up whom the policy would send to the other.
        await running.set_mode(ModeSetting(mode="replica"))
        assert await ask() == (200, None)
        running.go_on()
        seen = await asyncio.gather(*asked)
        served = [status for status, _ in seen if status == 200]
        refused = [after for status, after in seen if status == 429]
        assert served and len(served) + len(refused) == 40
        assert len(served) <= 5
        assert all(after is not None and int(after) >= 1 for after in refused)
        outcomes = [record.outcome for record in await running.records(49)]
        assert outcomes.count("rejected") == len(refused)
        await until(lambda: left.held == 0)


async def test_with_nobody_ahead_a_slow_box_refuses_nobody(tmp_path: Path) -> None:
    settings = {"left": stub_settings(prefill_tokens_per_s=200.0)}
    async with rig(
        tmp_path, boxes=("left",), settings=settings, first_token_deadline_s=0.01
    ) as running:
        for _ in range(2):
            assert await running.complete(PROMPT, 2) == running.expected(PROMPT, 2)


async def test_without_a_limit_the_queue_just_grows_to_its_bound(tmp_path: Path) -> None:
    settings = {"left": stub_settings(prefill_tokens_per_s=5000.0)}
    async with rig(
        tmp_path, boxes=("left",), settings=settings, first_token_deadline_s=None
    ) as running:
        await running.complete(PROMPT, 2)
        texts = await asyncio.gather(*(running.complete(PROMPT, 2) for _ in range(30)))
        assert set(texts) == {running.expected(PROMPT, 2)}


@pytest.mark.parametrize("header", ["x-first-token-deadline-s", "x-ttft-target-s"])
@pytest.mark.parametrize("given", ["soon", "-1", "0", "nan", "inf", "1e99"])
async def test_a_limit_that_is_no_time_is_a_400(tmp_path: Path, given: str, header: str) -> None:
    async with rig(tmp_path, boxes=("left",)) as running:
        status, answer = await running.post(PLAIN, {"prompt": "a"}, **{header: given})
        assert status == 400
        assert answer["error"]["param"] == header
