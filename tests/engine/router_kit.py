"""A live router over stub workers, for tests: real HTTP, real CURVE sockets, a real tokenizer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from homesplit_engine.config import RouterConfig
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.records import ModeSetting, RequestRecord
from homesplit_engine.router.server import serving
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.engine.stub_worker import StubSettings, StubWorker, answer_token

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
LETTERS = (97 - 33 + len(SPECIAL), 122 - 33 + len(SPECIAL))
"""Token ids of the letters a to y: bytes come after the special tokens, in byte-level order."""
SILENCE_S = 1.0
"""Detection time where silence is to be noticed; elsewhere no busy stub is to be taken for lost."""
PATIENCE_S = 90.0
"""Nothing takes so long but what never comes: a busy machine only makes a test slower."""


def make_tokenizer(folder: Path, *, template: bool = True) -> Tokenizer:
    """A byte-level tokenizer: one token a byte, so that characters split over tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(SPECIAL),
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["a b"], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "bos_token": "<s>"}
    if template:
        settings["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def letters(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The token ids of a text."""
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


@dataclass(slots=True, kw_only=True)
class Rig:
    """A running router, its stubs and a client."""

    url: str
    tokenizer: Tokenizer
    stubs: dict[str, StubWorker]
    http: aiohttp.ClientSession
    config: RouterConfig

    def expected(self, prompt: str, tokens: int) -> str:
        """The text that any stub gives for a completion of `prompt`."""
        ids = letters(self.tokenizer, prompt)
        low, high = LETTERS
        return self.tokenizer.decode([answer_token(ids, i, low, high) for i in range(tokens)])

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and JSON of a POST."""
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> Any:
        """The JSON of a GET."""
        async with self.http.get(self.url + path) as answer:
            return await answer.json()

    async def complete(self, prompt: str, tokens: int, **more: Any) -> str:
        """The text of a completion."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        status, answer = await self.post("/v1/completions", body)
        assert status == 200, answer
        return answer["choices"][0]["text"]

    async def stream(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """The JSON of each server-sent event, up to [DONE]."""
        async with self.http.post(self.url + path, json=body | {"stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            async for raw in answer.content:
                line = raw.decode().strip()
                if line == "data: [DONE]":
                    return
                if line:
                    assert line.startswith("data: ")
                    yield json.loads(line.removeprefix("data: "))

    async def set_mode(self, setting: ModeSetting) -> None:
        """Switch the mode."""
        status, answer = await self.post("/homesplit/mode", msgspec.to_builtins(setting))
        assert status == 200, answer

    async def records(self, count: int) -> list[RequestRecord]:
        """The records, once there are so many."""
        found: list[RequestRecord] = []

        async def enough() -> bool:
            page = await self.get("/homesplit/records?since=0")
            found[:] = msgspec.convert(page["records"], list[RequestRecord])
            return len(found) >= count

        await until(enough)
        return found

    def go_on(self) -> None:
        """Let every stub go on that stands at its `pause_at`."""
        for stub in self.stubs.values():
            stub.settings.pause_at = None

    async def until_usable(self, *boxes: str) -> None:
        """Wait until exactly these boxes are used."""

        async def so() -> bool:
            status = await self.get("/homesplit/status")
            return {w["box"] for w in status["workers"] if w["usable"]} == set(boxes)

        await until(so)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition; fails after a generous while."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            await asyncio.sleep(0.01)


def stub_settings(**changes: Any) -> StubSettings:
    """A stub that answers in letters."""
    return StubSettings(low=LETTERS[0], high=LETTERS[1], **changes)


@contextlib.asynccontextmanager
async def rig(
    folder: Path,
    *,
    boxes: tuple[str, ...] = ("left", "right"),
    setting: ModeSetting | None = None,
    settings: dict[str, StubSettings] | None = None,
    template: bool = True,
    wait: bool = True,
    detection_s: float = 10.0,
    **config: Any,
) -> AsyncGenerator[Rig]:
    """A router over one stub per box."""
    tokenizer = make_tokenizer(folder, template=template)
    keys = make_keys(boxes)
    write_keys(folder / "router.keys", keys["router"])
    stubs = {
        box: StubWorker(box, keys[box], (settings or {}).get(box) or stub_settings())
        for box in boxes
    }
    async with contextlib.AsyncExitStack() as stack:
        for stub in stubs.values():
            stub.start()
            stack.callback(stub.stop)
        router = RouterConfig(
            model_dir=str(folder),
            model_name="tiny",
            keys_file=str(folder / "router.keys"),
            ready_file=str(folder / "router.ready"),
            workers=tuple(stub.address for stub in stubs.values()),
            setting=setting or ModeSetting(),
            detection_s=detection_s,
            **config,
        )
        url = await stack.enter_async_context(serving(router))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        running = Rig(url=url, tokenizer=tokenizer, stubs=stubs, http=http, config=router)
        if wait:
            await running.until_usable(*boxes)
        yield running


SPLIT = ModeSetting(mode="split", prefill_box="left", decode_box="right", prefill="whole")
REPLICA = ModeSetting(mode="replica")
