"""What the desk asks of a router: status, mode, events, records, cancel, health, metrics."""

from __future__ import annotations

import time
from typing import TypeVar

import msgspec
from aiohttp import web

from homesplit_engine.records import ModeSetting
from homesplit_engine.router.doors import body_of
from homesplit_engine.router.errors import bad_request, busy
from homesplit_engine.router.fleet import Fleet
from homesplit_engine.router.health import Health
from homesplit_engine.router.metrics import CONTENT_TYPE
from homesplit_engine.router.status_page import snapshot, status_of

IDLE_LINE_S = 5.0
"""A blank line after so long without an event shows that the connection lives."""
MOST_RECORDS = 2_000


class CancelBody(msgspec.Struct, frozen=True):
    """`POST /homesplit/cancel`."""

    request_id: str


class Desk:
    """The handlers, with what they need."""

    def __init__(self, fleet: Fleet, health: Health) -> None:
        self._fleet = fleet
        self._health = health

    def routes(self) -> list[web.RouteDef]:
        """What is served."""
        return [
            web.get("/health", self.health),
            web.get("/metrics", self.metrics),
            web.get("/homesplit/status", self.status),
            web.post("/homesplit/mode", self.mode),
            web.get("/homesplit/events", self.events),
            web.get("/homesplit/records", self.records),
            web.post("/homesplit/cancel", self.cancel),
        ]

    async def health(self, request: web.Request) -> web.Response:
        """200 when the known answer came, else 503 with the reason."""
        verdict = await self._health.verdict()
        return web.Response(
            status=200 if verdict.good else 503,
            body=msgspec.json.encode(verdict),
            content_type="application/json",
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        links = self._fleet.links.values()
        workers = [(link.box, self._fleet.why_not(link) is None, link.status) for link in links]
        page = self._fleet.metrics.page(workers)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    async def status(self, request: web.Request) -> web.Response:
        """Everything that is known now."""
        return _json(status_of(self._fleet))

    async def mode(self, request: web.Request) -> web.Response:
        """Put another policy in force for the requests to come."""
        raw = await body_of(request)
        began_s = time.monotonic()
        return _json(self._fleet.switch(_setting(raw), began_s))

    async def cancel(self, request: web.Request) -> web.Response:
        """End one request, wherever it is."""
        body = _decoded(await body_of(request), CancelBody)
        return _json({"cancelled": self._fleet.cancel_request(body.request_id)})

    async def records(self, request: web.Request) -> web.Response:
        """Request records from number `since` on, oldest first."""
        since = _number(request.query.get("since", "0"))
        book = self._fleet.book
        page = book.page(since, MOST_RECORDS)
        return _json(
            {
                "records": page,
                "next": max(since, book.oldest) + len(page),
                "dropped": max(0, book.oldest - since),
            }
        )

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Everything that happens, one JSON object a line, until the reader leaves."""
        watcher = self._fleet.feed.watch(snapshot(self._fleet))
        if watcher is None:
            raise busy("Too many readers watch the events already.", retry_after_s=5.0)
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-cache"}
        )
        try:
            await response.prepare(request)
            while True:
                await response.write(await watcher.take(IDLE_LINE_S))
        finally:
            self._fleet.feed.leave(watcher)


_T = TypeVar("_T")


def _decoded(raw: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"The body is not as expected: {error}") from error


def _setting(raw: bytes) -> ModeSetting:
    """A mode as told; a name that is no field would otherwise switch to the default in silence."""
    setting = _decoded(raw, ModeSetting)
    names = _decoded(raw, dict[str, object])
    unknown = sorted(set(names) - set(ModeSetting.__struct_fields__))
    if unknown:
        raise bad_request(f"A mode has no field {unknown[0][:40]!r}.", param=unknown[0][:40])
    if "mode" not in names:
        raise bad_request("`mode` is missing.", param="mode")
    return setting


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise bad_request("`since` must be a whole number.", param="since")
    return int(text)


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
