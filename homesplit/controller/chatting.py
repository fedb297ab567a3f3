"""Chat with the served model, with one's own time to first token."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from homesplit.controller.base import Base, io_module


@dataclass(slots=True)
class Said:
    """One question to the model and its answer so far."""

    question: str
    answer: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens: int = 0
    trouble: str | None = None
    whole: bool = False
    """The answer came to its end: only then do later questions build on it."""


class Chatting(Base):
    """One's own questions among the load's."""

    async def chat(self, said: list[Said]) -> AsyncIterator[Said]:
        """Send the last question with what was said before; yields as the answer grows."""
        served = self.served
        if served is None:
            raise self.no_engine()
        client = io_module("chat_client")
        messages = [
            message
            for one in said[:-1]
            if one.whole
            for message in (("user", one.question), ("assistant", one.answer))
        ]
        messages.append(("user", said[-1].question))
        model = self.state.deployment.model if self.state.deployment else "default"
        now, began_s, first_s = said[-1], time.monotonic(), None
        async for piece in client.stream(served.url, served.api_key, model, messages):
            moment = time.monotonic()
            if first_s is None:
                first_s = moment
                now.ttft_s = moment - began_s
            now.answer += piece
            now.tokens += 1
            if now.tokens > 1:
                now.tpot_s = (moment - first_s) / (now.tokens - 1)
            yield now
        now.whole = True
