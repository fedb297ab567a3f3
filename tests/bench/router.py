"""What the router itself costs: added TTFT, and 500 open streams from two stub workers.

    python -m tests.bench.router

Stubs run as processes of their own and answer at once, so the whole time from request to
first byte is the router's and the client's. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import msgspec
from homesplit_engine.config import (
    RouterConfig,
    RouterEndpoints,
    WorkerAddress,
    WorkerConfig,
    WorkerEndpoints,
)
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.records import ModeSetting

from tests.engine.router_kit import LETTERS, make_tokenizer

BOXES = ("left", "right")
START_S = 30.0


def start(arguments: list[str], config: msgspec.Struct, path: Path) -> subprocess.Popen[bytes]:
    """One process with its settings file."""
    path.write_bytes(msgspec.json.encode(config))
    return subprocess.Popen([sys.executable, "-m", *arguments, "--config", str(path)])


async def ready(path: Path) -> bytes:
    """The process's ready file once it is there."""
    async with asyncio.timeout(START_S):
        while not (content := _content(path)):  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
    return content


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


async def start_all(folder: Path, step_s: float) -> tuple[str, list[subprocess.Popen[bytes]]]:
    """Two stubs and a router; its URL."""
    make_tokenizer(folder)
    for name, keys in make_keys(BOXES).items():
        write_keys(folder / f"{name}.keys", keys)
    processes: list[subprocess.Popen[bytes]] = []
    addresses: list[WorkerAddress] = []
    for box in BOXES:
        config = WorkerConfig(
            box=box,
            model_dir=str(folder),
            keys_file=str(folder / f"{box}.keys"),
            ready_file=str(folder / f"{box}.ready"),
        )
        stub = ["tests.engine.stub_worker", "--step-s", str(step_s)]
        stub += ["--low", str(LETTERS[0]), "--high", str(LETTERS[1])]
        processes.append(start(stub, config, folder / f"{box}.json"))
        end = msgspec.json.decode(await ready(folder / f"{box}.ready"), type=WorkerEndpoints)
        addresses.append(
            WorkerAddress(
                box=box,
                control_endpoint=end.control_endpoint,
                kv_endpoint=end.kv_endpoint,
                public_key=end.public_key,
            )
        )
    router = RouterConfig(
        model_dir=str(folder),
        model_name="tiny",
        keys_file=str(folder / "router.keys"),
        ready_file=str(folder / "router.ready"),
        workers=tuple(addresses),
        setting=ModeSetting(mode="replica"),
        max_waiting=2000,
    )
    processes.append(start(["homesplit_engine", "router"], router, folder / "router.json"))
    url = msgspec.json.decode(await ready(folder / "router.ready"), type=RouterEndpoints).url
    return url, processes


async def until_usable(http: aiohttp.ClientSession, url: str) -> None:
    """Wait until both stubs are taken in."""
    async with asyncio.timeout(START_S):
        while True:
            async with http.get(url + "/homesplit/status") as answer:
                if all(worker["usable"] for worker in (await answer.json())["workers"]):
                    return
            await asyncio.sleep(0.05)


async def one_stream(http: aiohttp.ClientSession, url: str, tokens: int) -> list[float]:
    """Seconds from sending to each token of one streamed answer."""
    body = {"prompt": "the quick brown fox " * 10, "max_tokens": tokens, "stream": True}
    began_s, times = time.perf_counter(), list[float]()
    async with http.post(url + "/v1/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter() - began_s)
    return times


async def added_ttft_s(http: aiohttp.ClientSession, url: str, count: int) -> list[float]:
    """TTFT of single requests, one at a time."""
    return [(await one_stream(http, url, 1))[0] for _ in range(count)]


async def many(
    http: aiohttp.ClientSession, url: str, streams: int, tokens: int, step_s: float
) -> dict[str, object]:
    """So many streams open at once, each paced by the stubs' steps."""
    began_s = time.perf_counter()
    all_times = await asyncio.gather(*(one_stream(http, url, tokens) for _ in range(streams)))
    took_s = time.perf_counter() - began_s
    gaps = [b - a for times in all_times for a, b in itertools.pairwise(times)]
    return {
        "streams": streams,
        "tokens": sum(map(len, all_times)),
        "complete": sum(len(times) == tokens for times in all_times),
        "took_s": took_s,
        "ideal_s": tokens * step_s,
        "tokens_per_s": sum(map(len, all_times)) / took_s,
        "itl_s": {"p50": statistics.median(gaps), "p99": statistics.quantiles(gaps, n=100)[98]},
    }


async def measure(count: int, streams: int, tokens: int) -> dict[str, object]:
    """Both figures, each against stubs of its own pace."""
    result: dict[str, object] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    for name, step_s in (("ttft", 0.0), ("streams", 0.25)):
        with tempfile.TemporaryDirectory() as folder:
            url, processes = await start_all(Path(folder), step_s)
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=300)
            try:
                async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
                    await until_usable(http, url)
                    if name == "ttft":
                        await added_ttft_s(http, url, 20)
                        seen = await added_ttft_s(http, url, count)
                        result["ttft_s"] = {
                            "p50": statistics.median(seen),
                            "p99": statistics.quantiles(seen, n=100)[98],
                            "count": count,
                        }
                    else:
                        result["open"] = await many(http, url, streams, tokens, step_s)
            finally:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait(timeout=10)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.router", description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=20)
    args = parser.parse_args()
    result = asyncio.run(measure(args.requests, args.streams, args.tokens))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
