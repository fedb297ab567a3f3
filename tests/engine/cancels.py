"""Cancelling against real workers: what the short tests and the long soak both run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from homesplit_engine.records import TTFT_TARGET_HEADER, ModeSetting

from homesplit.io.engine_client import EngineClient
from homesplit.io.local_engine import LocalEngine, local_engine
from tests.engine.router_kit import make_tokenizer, until
from tests.engine.tiny import make_model

MODES = {
    "colocated": ModeSetting(mode="colocated", chunk_tokens=32),
    "replica": ModeSetting(mode="replica", chunk_tokens=32),
    "split": ModeSetting(mode="split", prefill_box="left", decode_box="right", chunk_tokens=32),
    "auto": ModeSetting(mode="auto", chunk_tokens=32),
}
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath")
OPEN_AT_ONCE = 12
ANSWER_TOKENS = 24
CONTEXT = 1024
PATIENT_S = 3600
"""Nobody is refused because this computer is slow."""
FIRST_WHOLE_S = 0.1
"""What an answer takes, as long as none has been whole."""
BLOCKS, FEW_BLOCKS = 512, 96
"""So many hold every request at once; so few that a box which is to write often refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """When a client goes away: at a share of the time that answers take, or of the answer."""

    after_share: float | None = None
    after_pieces: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A router over two real workers with a tiny random model."""

    engine: LocalEngine
    client: EngineClient
    http: aiohttp.ClientSession

    async def held(self) -> dict[str, int]:
        """KV blocks, and requests of any kind, that each box holds now."""
        status = await self.client.status()
        return {
            worker.box: -1
            if worker.status is None
            else (worker.status.blocks_total - worker.status.blocks_free)
            + worker.status.running
            + worker.status.waiting
            + worker.status.reserved
            for worker in status.workers
        }

    async def until_nothing_is_held(self) -> None:
        """Fails when blocks or requests stay with a box."""

        async def empty() -> bool:
            counts = (await self.client.status()).requests
            held = await self.held()
            return not any(held.values()) and counts.running + counts.waiting == 0

        await until(empty)

    async def complete(self, prompt: str, tokens: int) -> str:
        """The whole text of one greedy answer."""
        text = await self._ask(prompt, tokens, None)
        assert text is not None
        return text

    async def left(self, prompt: str, tokens: int, when: Leave, whole_s: float) -> str | None:
        """The text of a client that goes away; None when it was gone before the end.

        `whole_s` is what an answer takes now.
        """
        return await self._ask(prompt, tokens, when, whole_s)

    async def _ask(
        self, prompt: str, tokens: int, when: Leave | None, whole_s: float = 0.0
    ) -> str | None:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body["stream"] = True
        headers = {TTFT_TARGET_HEADER: str(PATIENT_S)}
        text, pieces = "", 0
        when = when or Leave()
        after_s = None if when.after_share is None else when.after_share * whole_s
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(after_s),
                self.http.post(
                    self.engine.url + "/v1/completions", json=body, headers=headers
                ) as answer,
            ):
                assert answer.status == 200, await answer.text()
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        text += json.loads(line[6:])["choices"][0]["text"]
                        pieces += 1
                        if pieces == when.after_pieces:
                            return None
                    elif line.startswith(b"data: [DONE]"):
                        return text
        return None


@contextlib.asynccontextmanager
async def live(folder: Path, kv_blocks: int = BLOCKS) -> AsyncGenerator[Live]:
    """Both workers and the router, as processes."""
    make_model(folder, "llama", vocab_size=262, max_position_embeddings=CONTEXT)
    make_tokenizer(folder)
    async with (
        local_engine(model_dir=folder, model_name="tiny", kv_blocks=kv_blocks) as engine,
        EngineClient(engine.url) as client,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):

        async def both() -> bool:
            return all(worker.usable for worker in (await client.status()).workers)

        await until(both)
        yield Live(engine=engine, client=client, http=http)


def prompt_of(number: int) -> str:
    """One of a few prompts, 60 to 300 tokens long: the tokenizer has one token a byte."""
    word = WORDS[number % len(WORDS)]
    return f"{word} {number % 24} " * (8 + 2 * (number % 16))


async def cancel_a_third(
    running: Live, setting: ModeSetting, count: int, seed: int
) -> dict[str, int]:
    """Ask `count` times, leave a third at a random moment, compare every other text.

    Returns how many were left, completed and differed, and how many that were to be handed over
    were not: no room where they were to be written.
    """
    await running.client.set_mode(setting)
    numbers = [number % 48 for number in range(count)]
    alone = {n: await running.complete(prompt_of(n), ANSWER_TOKENS) for n in set(numbers)}
    await running.until_nothing_is_held()
    plans = list(zip(numbers, _leaving(count, random.Random(seed)), strict=True))
    gate = asyncio.Semaphore(OPEN_AT_ONCE)
    _, before = await running.client.records()
    took_s = [FIRST_WHOLE_S]

    async def one(number: int, when: Leave | None) -> str | None:
        async with gate:
            if when is None:
                began_s = time.monotonic()
                text = await running.complete(prompt_of(number), ANSWER_TOKENS)
                took_s.append(time.monotonic() - began_s)
                return text
            whole_s = statistics.median(took_s[-OPEN_AT_ONCE:])
            return await running.left(prompt_of(number), ANSWER_TOKENS, when, whole_s)

    texts = await asyncio.gather(*(one(number, when) for number, when in plans))
    await running.until_nothing_is_held()
    records, _ = await running.client.records(before)
    return {
        "offered": count,
        "left": sum(text is None for text in texts),
        "completed": sum(text is not None for text in texts),
        "different": _different(texts, numbers, alone),
        "without_handoff": sum(
            record.mode == "split" and record.served == "colocated" for record in records
        ),
    }


def _leaving(count: int, moments: random.Random) -> list[Leave | None]:
    """Every third leaves: by the clock, so that any moment may be hit, or within its answer.

    By the clock means within the time that the answers before it took, however fast the boxes are.
    """
    plans: list[Leave | None] = [None] * count
    for place, number in enumerate(range(0, count, 3)):
        if place % 2:
            plans[number] = Leave(after_share=moments.uniform(0, 1))
        else:
            plans[number] = Leave(after_pieces=moments.randint(1, ANSWER_TOKENS // 4))
    return plans


def _different(texts: Sequence[str | None], numbers: Sequence[int], alone: dict[int, str]) -> int:
    return sum(
        text is not None and text != alone[number]
        for text, number in zip(texts, numbers, strict=True)
    )


async def cancel_in_flight(running: Live, count: int) -> dict[str, int]:
    """Cancel `count` requests while their KV is on its way, another one running beside them.

    Every other one by its id, the rest by a client that goes away.

    "On its way": the prefill box has told of a chunk that was not the last, so that frames
    are out and others are still to come.
    """
    setting = msgspec.structs.replace(MODES["split"], chunk_tokens=16)
    await running.client.set_mode(setting)
    beside_prompt = "the quick brown fox jumps over the lazy dog"
    alone = await running.complete(beside_prompt, 40)
    cancelled = different = too_late = 0
    async with running.http.get(
        running.engine.url + "/homesplit/events", timeout=aiohttp.ClientTimeout(total=None)
    ) as feed:
        for number in itertools.count():
            if cancelled >= count or too_late > count:
                break
            beside = asyncio.create_task(running.complete(beside_prompt, 40))
            name = f"doomed-{number}"
            # Fresh from the first token on, so that no prefix is cached.
            prompt = f"{number:05d} " + "abcdefgh " * 80
            doomed = asyncio.create_task(_doomed(running, name, prompt))
            if not await _until_half_sent(feed, name):
                too_late += 1
            elif number % 2:
                doomed.cancel()  # its client goes away
                cancelled += 1
            else:
                cancelled += await _cancelled_by_id(running, name)
            await asyncio.gather(doomed, return_exceptions=True)
            different += await beside != alone
    await running.until_nothing_is_held()
    return {"cancelled_in_flight": cancelled, "too_late": too_late, "different": different}


async def _cancelled_by_id(running: Live, name: str) -> bool:
    url = running.engine.url + "/homesplit/cancel"
    async with running.http.post(url, json={"request_id": name}) as answer:
        return bool((await answer.json())["cancelled"])


async def _doomed(running: Live, name: str, prompt: str) -> None:
    body = {"prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    headers = {"x-request-id": name}
    url = running.engine.url + "/v1/completions"
    async with running.http.post(url, json=body, headers=headers) as answer:
        await answer.read()


async def _until_half_sent(feed: aiohttp.ClientResponse, name: str) -> bool:
    """True once some, False once all of a prompt has been read."""
    async with asyncio.timeout(120):
        async for line in feed.content:
            if name.encode() not in line:
                continue
            event = json.loads(line)
            if event["type"] == "StepSeen":
                pieces = [p for p in event["event"]["prefill"] if p["request_id"] == name]
                if pieces:
                    return not pieces[-1]["last"]
            if event["type"] in ("RequestDone", "TransferSeen"):
                return False
    return False
