"""What the router's memory does over many requests: its records are kept up to a bound.

    python -m tests.bench.router_memory [--requests 12000] [--json]

Two stub workers, the real router and HTTP; streamed answers of 110 tokens to prompts that are new
each time, a few at a time. After each part: the router's resident bytes that no file stands behind.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
from homesplit_engine.records import ModeSetting

from tests.bench.router import start_all, until_usable
from tests.lab.resident import resident

PARTS = 12
CLIENTS = 12
OUTPUT_TOKENS = 110
STEP_S = 0.001


async def _client(http: aiohttp.ClientSession, url: str, numbers: Any, upto: int) -> None:
    """Ask again and again until so many were asked."""
    while (number := next(numbers)) < upto:
        body = {"prompt": f"{number:08d} " * 40, "max_tokens": OUTPUT_TOKENS, "stream": True}
        async with http.post(url + "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for _ in answer.content:
                pass


async def measure(requests: int) -> dict[str, Any]:
    """Part after part on one deployment."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        running = await start_all(Path(folder), STEP_S, setting=ModeSetting(mode="auto"))
        pid = running.processes[-1].pid
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
                await until_usable(http, running.url)
                for part in range(PARTS + 1):
                    upto = part * requests // PARTS
                    first = (part - 1) * requests // PARTS if part else 0
                    numbers = itertools.count(first)
                    clients = [_client(http, running.url, numbers, upto) for _ in range(CLIENTS)]
                    await asyncio.gather(*clients)
                    found.append({"requests": upto, "data_bytes": resident(pid).data})
        finally:
            for process in running.processes:
                process.terminate()
            for process in running.processes:
                process.wait(timeout=10)
    return {"load_average": os.getloadavg()[0], "output_tokens": OUTPUT_TOKENS, "parts": found}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.router_memory", description=__doc__
    )
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = asyncio.run(measure(args.requests))
    if args.json:
        print(json.dumps(result))
        return 0
    print(f"load average {result['load_average']:.1f}\n\n| requests | resident |\n|---|---|")
    for part in result["parts"]:
        print(f"| {part['requests']:,} | {part['data_bytes'] / 2**20:.1f} MiB |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
