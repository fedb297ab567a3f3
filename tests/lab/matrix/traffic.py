"""Requests and the router's events, from a thread that lives in the desk's network."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
import msgspec
from homesplit_engine.events import EngineEvent
from homesplit_engine.records import ModeSetting
from homesplit_engine.status import RouterStatus

from tests.lab.errors import LabError
from tests.lab.kernel import NEWNET, enter
from tests.lab.matrix.answers import CHOICES, SAMPLED

ANSWER_S = 150.0
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class Stream:
    """One streamed answer as its client saw it."""

    name: str
    prompt: str
    tokens: int
    sampled: bool = False
    texts: list[str] = field(default_factory=lambda: [""] * CHOICES)
    """Of each choice; a greedy answer has one."""
    asked_s: float = field(default_factory=time.monotonic)
    times: list[float] = field(default_factory=list[float])
    logprobs: int = 0
    """How many tokens came with their log-probability."""
    finish: str | None = None
    counted: int | None = None
    error: str | None = None
    broken: bool = False
    """The connection ended before the answer did."""
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.texts[0]

    def longest_gap(self, since_s: float) -> tuple[float, float]:
        """Begin and end of the longest time without a token from `since_s` on."""
        seen = [moment for moment in self.times if moment >= since_s]
        before = [moment for moment in self.times if moment < since_s]
        marks = [before[-1] if before else max(since_s, self.asked_s), *seen]
        gaps = list(itertools.pairwise(marks))
        return max(gaps, key=lambda gap: gap[1] - gap[0], default=(since_s, since_s))


class Traffic:
    """The client side; every method may be called from any thread."""

    def __init__(self, netns: str, url: str, api_key: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {api_key}"}
        self.events: list[tuple[float, EngineEvent]] = []
        """With the time at which each was heard."""
        self._netns = netns
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: aiohttp.ClientSession
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def start(self) -> None:
        """Begin to listen to the router's events, whenever there is a router."""
        self._thread.start()
        if not self._started.wait(10):
            raise LabError("the client's thread did not start")

    def stop(self) -> None:
        """End every request and the thread."""
        with contextlib.suppress(TimeoutError):
            self._do(self._close()).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def ask(self, name: str, prompt: str, tokens: int, *, sampled: bool = False) -> Stream:
        """Begin a request."""
        stream = Stream(name, prompt, tokens, sampled)
        self._do(self._track(self._ask(stream)))
        return stream

    def status(self) -> RouterStatus | None:
        """The router's status; None when it does not answer."""
        raw = self._do(self._get("/homesplit/status")).result(20)
        return None if raw is None else msgspec.json.decode(raw, type=RouterStatus)

    def healthy(self) -> bool:
        """Whether the router's own question has been answered; asks it where it was not."""
        return self._do(self._get("/health")).result(20) is not None

    def set_mode(self, setting: ModeSetting) -> None:
        """Switch the mode; raises LabError when the router refuses."""
        code = self._do(self._post("/homesplit/mode", msgspec.to_builtins(setting))).result(20)
        if code != 200:
            raise LabError(f"the mode was refused with {code}")

    def cancel(self, name: str) -> None:
        """End a request from outside."""
        self._do(self._post("/homesplit/cancel", {"request_id": name})).result(20)

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        enter(self._netns, NEWNET)
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        self._started.set()
        self._loop.run_forever()

    def _do(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _track(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=5),
            read_bufsize=2**20,
        )
        await self._track(self._follow())

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    async def _follow(self) -> None:
        """Read the events, again and again: the router may die meanwhile."""
        decoder = msgspec.json.Decoder(EngineEvent)
        patience = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=20)
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self._http.get(self.url + "/homesplit/events", timeout=patience) as feed:
                    async for line in feed.content:
                        if line.strip():
                            self.events.append((time.monotonic(), decoder.decode(line)))
            await asyncio.sleep(0.2)

    async def _get(self, path: str) -> bytes | None:
        try:
            patience = aiohttp.ClientTimeout(total=5)
            async with self._http.get(self.url + path, timeout=patience) as answer:
                return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _post(self, path: str, body: Any) -> int | None:
        try:
            patience = aiohttp.ClientTimeout(total=5)
            async with self._http.post(self.url + path, json=body, timeout=patience) as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def _ask(self, stream: Stream) -> None:
        body: dict[str, Any] = {"prompt": stream.prompt, "max_tokens": stream.tokens}
        body |= SAMPLED if stream.sampled else {"temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self._http.post(
                self.url + "/v1/completions", json=body, headers={"x-request-id": stream.name}
            ) as answer:
                if answer.status != 200:
                    told = json.loads(await answer.read())["error"]
                    stream.error = f"{answer.status} {told['code']}: {told['message']}"
                    return
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        _take(stream, json.loads(line[6:]))
                    elif line.startswith(b"data: [DONE]"):
                        return
                stream.broken = True
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            stream.broken = True
            stream.error = f"{type(error).__name__}: {error}"
        finally:
            stream.done.set()


def _take(stream: Stream, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        stream.error = f"{chunk['error']['code']}: {chunk['error']['message']}"
        return
    for choice in chunk["choices"]:
        stream.times.append(time.monotonic())
        stream.texts[choice["index"]] += choice["text"]
        if choice["logprobs"]:
            stream.logprobs += len(choice["logprobs"]["token_logprobs"])
        stream.finish = choice["finish_reason"] or stream.finish
    if chunk.get("usage"):
        stream.counted = chunk["usage"]["completion_tokens"]


def wait_all(streams: Sequence[Stream], timeout_s: float) -> bool:
    """Whether every answer ended in time."""
    end_s = time.monotonic() + timeout_s
    return all(stream.done.wait(max(0.0, end_s - time.monotonic())) for stream in streams)


def wait_until(condition: Callable[[], bool], timeout_s: float, pause_s: float = 0.002) -> bool:
    """Whether the condition came true in time."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(pause_s)
    return True
