"""A fake router: the fake server with modes, each as quick as it is told, and an event stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

import msgspec
from aiohttp import web
from homesplit_engine.events import RequestDone, StatusSeen
from homesplit_engine.records import ModeSetting, ModeSwitch, RequestRecord, WorkerStatus
from homesplit_engine.status import RequestCounts, RouterStatus, Targets, WorkerSeen

from tests.io.fake_openai import FakeServer, Manners, fake_server


@dataclass(slots=True)
class FakeRouter:
    """The running router: its server, the mode in force and every switch it was asked for."""

    manners: Mapping[str, Manners]
    model: str
    server: FakeServer | None = None
    setting: ModeSetting = field(default_factory=lambda: ModeSetting(decode_box="a"))
    switches: list[ModeSetting] = field(default_factory=list[ModeSetting])
    statuses: list[WorkerStatus] = field(default_factory=list[WorkerStatus])
    """What its stream of events tells of the boxes."""
    refuses: int | None = None
    """Its stream tells of every request it saw; so many, the first ones, as refused."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.server.url if self.server else ""

    def choose(self, setting: ModeSetting) -> None:
        """Take a mode and its manners."""
        self.setting = setting
        self.switches.append(setting)
        names = (f"{setting.mode}:{setting.prefill}", f"{setting.mode}:{setting.kv_wire}")
        if self.server is not None:
            found = [self.manners[name] for name in names if name in self.manners]
            self.server.manners = found[0] if found else self.manners[setting.mode]

    def records(self) -> list[RequestRecord]:
        """What it tells of the requests so far."""
        seen = self.server.load_requests() if self.server and self.refuses is not None else []
        return [
            RequestRecord(
                request_id=each.request_id or "",
                mode="colocated",
                served="none" if place < (self.refuses or 0) else "colocated",
                prefill="whole",
                prefill_box="a",
                decode_box="a",
                why="",
                outcome="rejected" if place < (self.refuses or 0) else "completed",
                prompt_tokens=10,
                output_tokens=3,
                received_s=0.0,
                token_s=(0.1, 0.2, 0.3),
            )
            for place, each in enumerate(seen)
        ]


@contextlib.asynccontextmanager
async def fake_router(
    manners: Mapping[str, Manners], *, model: str = "smollm2-135m"
) -> AsyncGenerator[FakeRouter, None]:
    """Two boxes `a` and `b` over loopback; `manners` by mode, `mode:prefill` or `mode:kv_wire`."""
    router = FakeRouter(manners, model)

    async def status(_: web.Request) -> web.Response:
        told = RouterStatus(
            model=model,
            model_name=model,
            fingerprint="f",
            setting=router.setting,
            loopback=True,
            targets=Targets(ttft_s=None, tpot_s=None),
            workers=tuple(WorkerSeen(box=box, alive=True, usable=True) for box in ("a", "b")),
            requests=RequestCounts(running=0, waiting=0),
            clock_s=0.0,
        )
        return web.Response(body=msgspec.json.encode(told))

    async def mode(request: web.Request) -> web.Response:
        router.choose(msgspec.json.decode(await request.read(), type=ModeSetting))
        switch = ModeSwitch(at_s=0.0, setting=router.setting, took_s=0.0)
        return web.Response(body=msgspec.json.encode(switch))

    async def events(request: web.Request) -> web.StreamResponse:
        """A stream that tells of the boxes, or nothing but that it lives."""
        response = web.StreamResponse()
        await response.prepare(request)
        told = 0
        while True:
            fresh = router.records()[told:]
            told += len(fresh)
            seen = [
                *(StatusSeen(status=each) for each in router.statuses),
                *(RequestDone(record=each) for each in fresh),
            ]
            lines = [msgspec.json.encode(each) for each in seen]
            await response.write(b"".join(line + b"\n" for line in lines) or b"\n")
            await asyncio.sleep(1.0 if router.refuses is None else 0.05)

    doors = [
        web.get("/homesplit/status", status),
        web.post("/homesplit/mode", mode),
        web.get("/homesplit/events", events),
    ]
    async with fake_server(Manners(model=model), more=doors) as server:
        router.server = server
        yield router
