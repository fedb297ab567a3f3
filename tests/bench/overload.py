"""Goodput as the offered load grows from half to ten times the capacity.

    python -m tests.bench.overload [--seconds 10] [--silent | --own 0.3]

Two stub workers with a fixed prefill rate, so that the capacity is known to the token; the
router, HTTP and the clients are real. Clients say how long they wait for a first token
(`x-first-token-deadline-s`), and the router refuses at once whom it could only disappoint; with
`--silent` they say nothing, and the deployment's TTFT target is what counts once a queue stands;
with `--own` they name a TTFT target of their own (`x-ttft-target-s`), and are judged by that one.
Prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from homesplit_engine.records import TTFT_TARGET_HEADER
from homesplit_engine.router.doors import PATIENCE_HEADER
from msgspec import Struct

from tests.bench.router import Running, start_all, until_usable

PREFILL_TOKENS_PER_S = 2000.0
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 10
STEP_S = 0.02
CAPACITY_REQUESTS_PER_S = 2 * PREFILL_TOKENS_PER_S / PROMPT_TOKENS
TTFT_TARGET_S = 1.0
TPOT_TARGET_S = 0.1
LOADS = (0.5, 1.0, 2.0, 5.0, 10.0)


class Wish(Struct, frozen=True):
    """What every client says of its waiting, and the TTFT target by which it is judged."""

    headers: dict[str, str]
    ttft_target_s: float = TTFT_TARGET_S


def wish_of(*, silent: bool, own_s: float | None) -> Wish:
    """What the options ask for."""
    if own_s is not None:
        return Wish({TTFT_TARGET_HEADER: str(own_s)}, own_s)
    return Wish({} if silent else {PATIENCE_HEADER: str(TTFT_TARGET_S)})


async def one(http: aiohttp.ClientSession, url: str, wish: Wish) -> dict[str, Any]:
    """One streamed request as its client saw it."""
    body = {"prompt": "a" * PROMPT_TOKENS, "max_tokens": OUTPUT_TOKENS, "stream": True}
    began_s, times = time.perf_counter(), list[float]()
    async with http.post(url + "/v1/completions", json=body, headers=wish.headers) as answer:
        if answer.status != 200:
            await answer.read()
            took_s = time.perf_counter() - began_s
            told = "Retry-After" in answer.headers
            return {"status": answer.status, "took_s": took_s, "told_when": told, "good": False}
        async for line in answer.content:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter() - began_s)
    tpot_s = (times[-1] - times[0]) / (len(times) - 1)
    in_time = times[0] <= wish.ttft_target_s and tpot_s <= TPOT_TARGET_S
    good = len(times) == OUTPUT_TOKENS and in_time
    return {"status": 200, "good": good, "ttft_s": times[0], "tpot_s": tpot_s}


async def offer(
    http: aiohttp.ClientSession,
    running: Running,
    times_capacity: float,
    seconds: float,
    wish: Wish,
) -> dict[str, Any]:
    """An open loop of evenly spaced requests."""
    rate = times_capacity * CAPACITY_REQUESTS_PER_S
    tasks: list[asyncio.Task[dict[str, Any]]] = []
    began_s = time.perf_counter()
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one(http, running.url, wish)))
    offered_s = time.perf_counter() - began_s
    seen = await asyncio.gather(*tasks)
    served = sorted(s["ttft_s"] for s in seen if s["status"] == 200)
    refused = sorted(s["took_s"] for s in seen if s["status"] != 200)
    good = sum(s["good"] for s in seen)
    return {
        "offered_times_capacity": times_capacity,
        "offered_requests_per_s": len(seen) / offered_s,
        "offered": len(seen),
        "served": len(served),
        "refused": len(refused),
        "refused_told_when": sum(s.get("told_when", False) for s in seen),
        "refused_took_s_p50": refused[len(refused) // 2] if refused else None,
        "good": good,
        "goodput_requests_per_s": good / offered_s,
        "ttft_s": {
            "p50": served[len(served) // 2] if served else None,
            "p99": served[int(0.99 * (len(served) - 1))] if served else None,
        },
        "router_rss_mib": psutil.Process(running.processes[-1].pid).memory_info().rss / 2**20,
    }


async def measure(seconds: float, wish: Wish) -> dict[str, Any]:
    """Every load in turn on one deployment."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        running = await start_all(
            Path(folder),
            STEP_S,
            PREFILL_TOKENS_PER_S,
            ttft_target_s=TTFT_TARGET_S,
            tpot_target_s=TPOT_TARGET_S,
            max_waiting=512,
        )
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=0)
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
                await until_usable(http, running.url)
                await offer(http, running, 0.5, 3.0, wish)
                for load in LOADS:
                    found.append(await offer(http, running, load, seconds, wish))
                    await asyncio.sleep(1.5)
        finally:
            for process in running.processes:
                process.terminate()
            for process in running.processes:
                process.wait(timeout=10)
    at_capacity = found[LOADS.index(1.0)]["goodput_requests_per_s"]
    return {
        "clients_say": wish.headers,
        "ttft_target_s": wish.ttft_target_s,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "capacity_requests_per_s": CAPACITY_REQUESTS_PER_S,
        "loads": found,
        "goodput_at_10_over_at_1": found[-1]["goodput_requests_per_s"] / at_capacity,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    said = parser.add_mutually_exclusive_group()
    said.add_argument("--silent", action="store_true")
    said.add_argument("--own", type=float, metavar="S", help="a TTFT target of the clients' own")
    args = parser.parse_args()
    wish = wish_of(silent=args.silent, own_s=args.own)
    print(json.dumps(asyncio.run(measure(args.seconds, wish)), indent=2))


if __name__ == "__main__":
    main()
