"""The desk's side of a running router: status, mode, records and the stream of events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import aiohttp
import msgspec
from homesplit_engine.records import ModeSetting, ModeSwitch, RequestRecord
from homesplit_engine.status import RouterStatus

from homesplit.core.events import EngineEvent
from homesplit.errors import EngineError

ANSWER_S = 10.0
"""How long the router may take to answer a question."""
SILENCE_S = 20.0
"""The router sends a blank line every 5 s at least: a longer silence is a dead connection."""
MAX_LINE_BYTES = 4 * 2**20
_T = TypeVar("_T")
_event: msgspec.json.Decoder[EngineEvent] = msgspec.json.Decoder(EngineEvent)


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of `/homesplit/records`."""

    records: tuple[RequestRecord, ...]
    next: int
    dropped: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What `/health` found: whether the engine gives its known answer."""

    status: str
    why: str | None = None
    answer: str | None = None
    took_s: float | None = None
    age_s: float = 0.0


class EngineClient:
    """One router; use it as an async context manager. Every failure is an EngineError."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=ANSWER_S),
            read_bufsize=2**20,
        )

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def status(self) -> RouterStatus:
        """Everything the router knows now."""
        return _decoded(await self._ask("GET", "/homesplit/status"), RouterStatus, self.url)

    async def set_mode(self, setting: ModeSetting) -> ModeSwitch:
        """Switch the mode; requests in flight keep theirs."""
        raw = await self._ask("POST", "/homesplit/mode", msgspec.json.encode(setting))
        return _decoded(raw, ModeSwitch, self.url)

    async def records(self, since: int = 0) -> tuple[tuple[RequestRecord, ...], int]:
        """Request records from number `since` on, and the number to ask for next time."""
        found: list[RequestRecord] = []
        while True:
            raw = await self._ask("GET", f"/homesplit/records?since={since}")
            page = _decoded(raw, _Page, self.url)
            found.extend(page.records)
            since = page.next
            if not page.records:
                return tuple(found), since

    async def cancel(self, request_id: str) -> bool:
        """End one request; False when there is none of this id."""
        body = msgspec.json.encode({"request_id": request_id})
        raw = await self._ask("POST", "/homesplit/cancel", body)
        return _decoded(raw, dict[str, bool], self.url)["cancelled"]

    async def health(self) -> Health:
        """Whether the engine gives its known answer."""
        raw = await self._ask("GET", "/health", accept=(200, 503))
        return _decoded(raw, Health, self.url)

    async def events(self) -> AsyncGenerator[EngineEvent]:
        """Everything that happens from now on; ends with an EngineError when it breaks."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_S, sock_read=SILENCE_S)
        with _told(self.url):
            async with self._session.get(self.url + "/homesplit/events", timeout=timeout) as answer:
                if answer.status != 200:
                    raise _refused(self.url, answer.status, await answer.read())
                async with contextlib.aclosing(_lines(answer.content)) as lines:
                    async for line in lines:
                        yield _decoded_event(line, self.url)
        raise EngineError(
            "the router ended its stream of events",
            where=self.url,
            do_next="Look at `homesplit status`: the router may have been stopped.",
        )

    async def _ask(
        self, method: str, path: str, body: bytes | None = None, accept: tuple[int, ...] = (200,)
    ) -> bytes:
        with _told(self.url):
            async with self._session.request(method, self.url + path, data=body) as answer:
                raw = await answer.read()
                if answer.status not in accept:
                    raise _refused(self.url, answer.status, raw)
                return raw


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    """Lines that say something; raises EngineError when one has no end."""
    rest = b""
    async for chunk in content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
        if len(rest) > MAX_LINE_BYTES:
            raise EngineError(
                f"an event is over {MAX_LINE_BYTES} bytes; is this a router?",
                do_next="Check the address: it must be that of a homesplit router.",
            )


@contextlib.contextmanager
def _told(url: str) -> Any:
    """Failures of the connection as an EngineError with the next step."""
    try:
        yield
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise EngineError(
            f"the router does not answer: {error or type(error).__name__}",
            where=url,
            do_next="Look at `homesplit status`, or start one with `homesplit up`.",
        ) from error


def _refused(url: str, status: int, raw: bytes) -> EngineError:
    """The router's own sentence out of an error answer."""
    what = f"HTTP {status}"
    with contextlib.suppress(msgspec.MsgspecError, KeyError, TypeError):
        what = str(msgspec.json.decode(raw)["error"]["message"])
    do_next = "Give the deployment's API key." if status == 401 else None
    return EngineError(what, where=url, do_next=do_next)


def _decoded(raw: bytes, kind: type[_T], url: str) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise EngineError(
            f"answers, but not as a homesplit router of this version does: {error}",
            where=url,
            do_next="Deploy this version: run `homesplit up` again.",
        ) from error


def _decoded_event(line: bytes, url: str) -> EngineEvent:
    try:
        return _event.decode(line)
    except msgspec.MsgspecError as error:
        raise EngineError(
            f"tells an event that this version does not know: {error}",
            where=url,
            do_next="Deploy this version: run `homesplit up` again.",
        ) from error
