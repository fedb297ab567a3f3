"""Real workers in threads of this process behind a real router: all of the engine but processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
from homesplit_engine.config import RouterConfig, WorkerAddress, WorkerConfig
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.model import LoadedModel
from homesplit_engine.records import TTFT_TARGET_HEADER, ModeSetting, RequestRecord
from homesplit_engine.router.server import serving
from homesplit_engine.worker.worker import Worker

from homesplit.io.engine_client import EngineClient
from tests.engine.router_kit import until

BOXES = ("left", "right")
PATIENT = {TTFT_TARGET_HEADER: "3600"}
"""Nobody is refused because this computer is slow."""


class Live:
    """A running router with its workers, and a client."""

    def __init__(self, client: EngineClient, http: aiohttp.ClientSession) -> None:
        self.client = client
        self._http = http

    async def ask(self, prompt: list[int], tokens: int, name: str, **more: Any) -> Any:
        """The status and JSON of a greedy completion; `name` is the request's id."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}
        headers = PATIENT | {"x-request-id": name}
        url = self.client.url + "/v1/completions"
        async with self._http.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def records(self, names: set[str]) -> dict[str, RequestRecord]:
        """The records of requests, which are written when all of each has ended."""
        found: dict[str, RequestRecord] = {}

        async def told() -> bool:
            found.update({one.request_id: one for one in (await self.client.records())[0]})
            return names <= set(found)

        await until(told)
        return {name: found[name] for name in names}


@contextlib.asynccontextmanager
async def live(
    folder: Path,
    models: tuple[LoadedModel, LoadedModel],
    *,
    model_dir: Path,
    prefix_cache: bool,
    blocks: int = 160,
    block_tokens: int = 8,
) -> AsyncGenerator[Live]:
    """Two boxes, each with a copy of the model of its own, and the router before them."""
    keys = make_keys(BOXES)
    write_keys(folder / "router.keys", keys["router"])
    async with contextlib.AsyncExitStack() as stack:
        addresses: list[WorkerAddress] = []
        for box, loaded in zip(BOXES, models, strict=True):
            config = WorkerConfig(
                box=box,
                model_dir=str(model_dir),
                keys_file=str(folder / f"{box}.keys"),
                ready_file=str(folder / f"{box}.ready"),
                kv_blocks=blocks,
                block_tokens=block_tokens,
                prefix_cache=prefix_cache,
            )
            worker = Worker(config, keys[box], loaded, blocks)
            worker.start()
            thread = threading.Thread(target=worker.run, name=f"steps of {box}")
            thread.start()
            stack.callback(thread.join)
            stack.callback(worker.stop)
            addresses.append(worker.endpoints.address)
        router = RouterConfig(
            model_dir=str(model_dir),
            model_name="tiny",
            keys_file=str(folder / "router.keys"),
            ready_file=str(folder / "router.ready"),
            workers=tuple(addresses),
            setting=ModeSetting(),
            detection_s=60.0,
        )
        url = await stack.enter_async_context(serving(router))
        client = await stack.enter_async_context(EngineClient(url))
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def both() -> bool:
            return all(worker.usable for worker in (await client.status()).workers)

        await until(both)
        yield Live(client, http)
