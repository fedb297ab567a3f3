"""What the load generator itself adds to TTFT and TPOT with 500 streams open at once.

A stub in a process of its own writes tokens at times fixed beforehand and notes when it
wrote each. Both processes read the same monotonic clock, so the truth of every stream is
known: first write less receipt for TTFT, and first to last write for TPOT. The ratios of the
generator's figures to these are printed; the machine's clock of tokens never enters. Once a
second the requests that ended go into a notebook, as they do in `homesplit bench`.

    python -m tests.bench.load [--streams 500] [--seconds 30] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from homesplit_engine.words import tpot_s, ttft_s

from homesplit.core.entry import About
from homesplit.core.load import plan_load
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.workload import Arrivals, LengthClass, Workload
from homesplit.io.endpoint import connect
from homesplit.io.load import new_session, run_load
from homesplit.io.paths import Paths
from homesplit.stages.context import Context
from homesplit.stages.load_watch import LoadCounter
from homesplit.stages.notebook import Course
from tests.io.fake_openai import FakeServer, Manners, fake_server

TTFT_S = 1.0
ITL_S = 0.25
TOKENS = 100
LIFE_S = TTFT_S + ITL_S * (TOKENS - 1)
MORE = 1.1
"""Requests come by chance: so many more than asked for, that seldom fewer are open."""


async def serve() -> None:
    """The stub: prints its two addresses and serves until its input ends."""
    manners = Manners(ttft_s=TTFT_S, itl_s=ITL_S)
    async with fake_server(manners) as server:
        app = web.Application()
        app.router.add_get("/truth", _truth(server))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        print(json.dumps([server.url, f"http://{host}:{port}/truth"]), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()


def _truth(server: FakeServer) -> Any:
    async def truth(_: web.Request) -> web.Response:
        seen = server.load_requests()
        return web.json_response(
            {str(s.request_id): [s.received_ns, s.writes_ns[0], s.writes_ns[-1]] for s in seen}
        )

    return truth


async def measure(streams: int, seconds: float) -> dict[str, Any]:
    """One run at a steady rate that keeps `streams` open and more; figures and truth."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.load",
        "--serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        url, truth_url = json.loads(await process.stdout.readline())
        async with new_session() as session:
            began_s, used_s = time.monotonic(), time.process_time()
            logs, lag_s = await _offer(session, url, streams, seconds)
            used_s = (time.process_time() - used_s) / (time.monotonic() - began_s)
            async with session.get(truth_url) as reply:
                truth: dict[str, list[int]] = await reply.json()
    finally:
        process.stdin.close()
        await process.wait()
    return {**_compared(logs, truth, lag_s), "core_share": used_s}


async def _offer(
    session: aiohttp.ClientSession, url: str, streams: int, seconds: float
) -> tuple[Sequence[RequestLog], float | None]:
    kind = LengthClass(
        name="stream",
        share=1.0,
        prompt_tokens_low=64,
        prompt_tokens_high=64,
        output_tokens_low=TOKENS,
        output_tokens_high=TOKENS,
    )
    arrivals = Arrivals(rate_requests_per_s=MORE * streams / LIFE_S)
    workload = Workload(name="streams", classes=(kind,), arrivals=arrivals)
    endpoint = await connect(session, url)
    plan = plan_load(workload, seed=1, seconds=seconds + LIFE_S)
    with tempfile.TemporaryDirectory() as name:
        ctx = Context(paths=Paths(config=Path(name), cache=Path(name), data=Path(name)))
        course = Course(ctx, "run")
        course.so_far("Begun.", {}, about=About())

        async def keep(told: str, fresh: Sequence[RequestLog]) -> None:
            await course.grow(told, "requests", fresh)

        counter = LoadCounter(ctx, plan, "bench", keep)
        async with counter.telling():
            result = await run_load(session, endpoint, plan, run_id="run", tell=counter.count)
    return result.logs, result.lag_p99_s


def _compared(
    logs: Sequence[RequestLog], truth: dict[str, list[int]], lag_s: float | None
) -> dict[str, Any]:
    # Only what was sent once the streams had filled up.
    counted = [log for log in logs if log.due_s >= LIFE_S]
    done = [log for log in counted if log.outcome == "completed"]
    fewest, middle, most = _open_at_sending(logs, counted)
    seen: dict[str, list[float]] = {"ttft": [], "tpot": []}
    true: dict[str, list[float]] = {"ttft": [], "tpot": []}
    for log in done:
        received, first, last = truth[log.request_id]
        seen["ttft"].append(ttft_s(timeline(log)) or 0.0)
        seen["tpot"].append(tpot_s(timeline(log)) or 0.0)
        true["ttft"].append((first - received) / 1e9)
        true["tpot"].append((last - first) / 1e9 / (TOKENS - 1))
    ratios = {
        f"{word} {name}": _at(seen[word], share) / _at(true[word], share)
        for word in ("ttft", "tpot")
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    return {
        "offered": len(counted),
        "completed": len(done),
        "open": {"fewest": fewest, "median": middle, "most": most},
        "ratios": ratios,
        "ttft_p50_s": _at(seen["ttft"], 0.5),
        "tpot_p50_s": _at(seen["tpot"], 0.5),
        "lag_p99_s": lag_s,
    }


def _open_at_sending(
    logs: Sequence[RequestLog], counted: Sequence[RequestLog]
) -> tuple[int, int, int]:
    """How many streams were open when a counted one was sent: fewest, median, most."""
    ends = sorted(log.ended_s or 0.0 for log in logs)
    begins = sorted(log.sent_s for log in logs)
    seen = sorted(
        bisect_right(begins, log.sent_s) - bisect_right(ends, log.sent_s) for log in counted
    )
    return seen[0], seen[len(seen) // 2], seen[-1]


def _at(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _report(found: dict[str, Any]) -> str:
    load = os.getloadavg()[0]
    rows = "\n".join(f"| {name} | {ratio:.4f} |" for name, ratio in found["ratios"].items())
    return f"""# What the load generator adds

`python -m tests.bench.load`: {found["completed"]} of {found["offered"]} counted streams were
completed, each sent while {found["open"]["fewest"]} to {found["open"]["most"]} were open (median
{found["open"]["median"]}) in one process; the stub writes a token each
{ITL_S * 1000:.0f} ms to every stream, after {TTFT_S:g} s. Measured TTFT p50
{found["ttft_p50_s"]:.4f} s, TPOT p50 {found["tpot_p50_s"]:.5f} s; the generator's event loop woke
{(found["lag_p99_s"] or 0) * 1000:.1f} ms late at p99, and it used {found["core_share"]:.0%} of a
core. {os.cpu_count()} cores ({platform.machine()}), load average {load:.1f} at the end: with
other work on all cores the loop wakes late, which is the machine's delay, not the generator's.

Ratio of the generator's figure to what the stub knows it did (1 is no distortion):

| figure | ratio |
| --- | --- |
{rows}
"""


def main() -> int:
    """0 when no figure is off by more than 1 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
        return 0
    found = asyncio.run(measure(args.streams, args.seconds))
    text = _report(found)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)
    return 1 if any(abs(ratio - 1) > 0.01 for ratio in found["ratios"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
