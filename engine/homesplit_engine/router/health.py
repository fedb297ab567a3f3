"""`/health`: asks the engine for a short answer and compares it with its first one."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from homesplit_engine.router.answer import Reader
from homesplit_engine.router.body import Wish
from homesplit_engine.router.errors import ApiError
from homesplit_engine.wire.messages import SamplingParams

NAME = "health-"
"""How the router's own questions are called; no client's request is."""
PROMPT = "The days of the week are Monday, Tuesday,"
ANSWER_TOKENS = 4
FRESH_S = 5.0
"""A result younger than this is given again: asking often costs nothing."""
PATIENCE_S = 10.0
STALE_S = 60.0
"""Under load a check may be slow; a good one younger than this still counts."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One check: whether the known answer came, and what is wrong if not."""

    status: str
    why: str | None = None
    answer: str | None = None
    took_s: float | None = None
    age_s: float = 0.0

    @property
    def good(self) -> bool:
        """Whether the known answer came."""
        return self.status == "ok"


class Health:
    """Checks at most once in `FRESH_S`, whoever asks how often."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[str, str] = {}
        """The first answer of each fingerprint that was served."""
        self._last: tuple[float, Verdict] | None = None
        self._last_good_s: float | None = None
        self._running: asyncio.Task[Verdict] | None = None
        self._count = 0

    async def verdict(self) -> Verdict:
        """The newest check, made now unless there is a fresh one."""
        now_s = time.monotonic()
        if self._last is not None and now_s - self._last[0] < FRESH_S:
            checked_s, last = self._last
            return msgspec.structs.replace(last, age_s=now_s - checked_s)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._check(), name="health")
        try:
            return await asyncio.wait_for(asyncio.shield(self._running), PATIENCE_S)
        except TimeoutError:
            return self._busy()

    async def close(self) -> None:
        """End a running check."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _busy(self) -> Verdict:
        age_s = time.monotonic() - self._last_good_s if self._last_good_s is not None else None
        why = f"busy: the known answer did not come within {PATIENCE_S:.0f} s"
        if age_s is not None and age_s < STALE_S:
            return Verdict(status="ok", why=why, age_s=age_s)
        return Verdict(status="failed", why=why)

    async def _check(self) -> Verdict:
        verdict = await self._asked()
        self._last = (time.monotonic(), verdict)
        if verdict.good:
            self._last_good_s = self._last[0]
        return verdict

    async def _asked(self) -> Verdict:
        began_s = time.monotonic()
        fingerprint = self._reader.fleet.fingerprint
        try:
            text = await self._answer(began_s)
        except ApiError as error:
            return Verdict(status="failed", why=error.message)
        took_s = time.monotonic() - began_s
        if self._reader.fleet.fingerprint != fingerprint:
            why = "what is served changed while the known answer was asked for"
            return Verdict(status="failed", why=why, answer=text, took_s=took_s)
        known = self._known.setdefault(fingerprint or "", text)
        if text != known:
            why = f"the known answer was {known!r}, now it is {text!r}"
            return Verdict(status="failed", why=why, answer=text, took_s=took_s)
        return Verdict(status="ok", answer=text, took_s=took_s)

    async def _answer(self, began_s: float) -> str:
        self._count += 1
        wish = Wish(
            model=None,
            stream=False,
            include_usage=False,
            usage_in_each_chunk=False,
            stops=(),
            n=1,
            max_tokens=ANSWER_TOKENS,
            logprobs=None,
            sampling=SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True),
        )
        prompt = self._reader.encode(PROMPT, wish, add_special_tokens=True)
        name = f"{NAME}{self._count}"
        orders = self._reader.orders(name, [prompt], wish, began_s, internal=True)
        answering = self._reader.answering(wish, orders)
        async with contextlib.aclosing(answering.pieces()) as pieces:
            return "".join([piece.text async for piece in pieces])
