"""The engine behind HTTP beside the engine alone. Needs SmolLM2-135M and two cores.

    python -m tests.bench.http_streams [--model DIR] [--clients N] [--tokens N] [--rounds N]
        [--cpus 0,1]

By turns: eight requests stepped in one process by scheduler and runner, with nothing around
them, and eight streaming clients before a router and a worker. The engine has one core to itself
each time, router and clients share the other. Counted are the tokens from the moment all have
their first to the moment one has its last: all decode together meanwhile. Each turn takes some
ten seconds of that, as two turns of four seconds differ by a tenth without any cause here. What
happens once in a worker's life is done before: the memory of its KV pool is laid.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import platformdirs
from homesplit_engine.config import RouterConfig, WorkerConfig, WorkerEndpoints
from homesplit_engine.keys import make_keys, write_keys

from tests.bench.router import ready, start, until_usable

PROMPT_TOKENS = 64
KV_BLOCKS = 256
"""Of 16 tokens: not many more than the streams use, so that a first turn lays them all."""
WAIT_S = 120.0


def main() -> int:
    """Measure and print; returns the exit code."""
    args = _arguments()
    if args.alone:
        print(json.dumps(_alone(args)))
        return 0
    engine, rest = (int(cpu) for cpu in args.cpus.split(","))
    os.sched_setaffinity(0, {rest})
    alone: list[float] = []
    served: list[float] = []
    for _ in range(args.rounds):
        alone.append(_alone_in_a_process(args, engine))
        served.append(asyncio.run(_served(args, engine)))
        print(json.dumps({"alone": alone[-1], "http": served[-1]}), file=sys.stderr, flush=True)
    ratios = [b / a for a, b in zip(alone, served, strict=True)]
    result = {
        "clients": args.clients,
        "alone_tokens_per_s": statistics.median(alone),
        "http_tokens_per_s": statistics.median(served),
        "ratio": statistics.median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(result, indent=2))
    return 0


def _arguments() -> argparse.Namespace:
    models = Path(platformdirs.user_cache_dir("homesplit")) / "models"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=models / "smollm2-135m")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", default="1,0", help="the engine's core, and the rest's")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# ------------------------------------------------------------------ the engine alone


def _alone_in_a_process(args: argparse.Namespace, cpu: int) -> float:
    words = [sys.executable, "-m", "tests.bench.http_streams", "--alone"]
    words += ["--model", str(args.model), "--clients", str(args.clients)]
    words += ["--tokens", str(args.tokens), "--cpus", f"{cpu},{cpu}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=True)
    return float(json.loads(done.stdout))


def _alone(args: argparse.Namespace) -> float:
    os.sched_setaffinity(0, {int(args.cpus.split(",")[0])})
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from homesplit_engine.cache import KvPool
    from homesplit_engine.model import load_model
    from homesplit_engine.pages import BlockPool
    from homesplit_engine.request import Request
    from homesplit_engine.runner import Runner
    from homesplit_engine.scheduler import Limits, Scheduler

    torch.set_num_threads(1)
    loaded = load_model(args.model, device="cpu", dtype="float32", weights="same")
    scheduler = Scheduler(BlockPool(KV_BLOCKS, 16, prefix_cache=True), Limits())
    pool = KvPool(loaded.kv_shape, blocks_total=KV_BLOCKS, block_tokens=16, device=loaded.device)
    for layer in pool.layers:
        layer.zero_()
    runner = Runner(loaded, pool)
    for number in range(args.clients):
        request = Request(
            request_id=str(number),
            tokens=[1000 + number, *range(200, 200 + PROMPT_TOKENS - 1)],
            prompt_tokens=PROMPT_TOKENS,
            max_tokens=args.tokens,
            arrived_s=0.0,
            deadline_s=float("inf"),
            chunk_tokens=None,
        )
        assert scheduler.add(request, now_s=0.0) is None
    times: list[list[float]] = [[] for _ in range(args.clients)]
    while (plan := scheduler.schedule(0.0)) is not None:
        result = runner.run(plan)
        sampled = {name: choice.token_id for name, choice in result.choices.items()}
        for token in scheduler.finish_step(plan, sampled, now_s=0.0).tokens:
            times[int(token.request_id)].append(time.perf_counter())
    return _rate(times)


def _rate(times: list[list[float]]) -> float:
    """Tokens per second while all are decoding."""
    start_s = max(one[0] for one in times)
    end_s = min(one[-1] for one in times)
    tokens = sum(start_s < at_s <= end_s for one in times for at_s in one)
    return tokens / (end_s - start_s)


# ------------------------------------------------------------------ behind HTTP


async def _served(args: argparse.Namespace, cpu: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            url = await _start(args, folder, cpu, processes)
            async with aiohttp.ClientSession() as http:
                await until_usable(http, url)
                await _streams(http, url, "first", args)
                return _rate(await _streams(http, url, "client", args))
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=20)


async def _start(
    args: argparse.Namespace, folder: Path, cpu: int, processes: list[subprocess.Popen[bytes]]
) -> str:
    for name, keys in make_keys(["box"]).items():
        write_keys(folder / f"{name}.keys", keys)
    worker = WorkerConfig(
        box="box",
        model_dir=str(args.model),
        keys_file=str(folder / "box.keys"),
        ready_file=str(folder / "box.ready"),
        threads=1,
        cpus=(cpu,),
        kv_blocks=KV_BLOCKS,
    )
    processes.append(start(["homesplit_engine", "worker"], worker, folder / "box.json"))
    end = msgspec.json.decode(await ready(folder / "box.ready"), type=WorkerEndpoints)
    router = RouterConfig(
        model_dir=str(args.model),
        model_name="model",
        keys_file=str(folder / "router.keys"),
        ready_file=str(folder / "router.ready"),
        workers=(end.address,),
    )
    processes.append(start(["homesplit_engine", "router"], router, folder / "router.json"))
    told: dict[str, Any] = json.loads(await ready(folder / "router.ready"))
    return str(told["url"])


async def _streams(
    http: aiohttp.ClientSession, url: str, who: str, args: argparse.Namespace
) -> list[list[float]]:
    asking = [_stream(http, url, f"{who} {n}", args.tokens) for n in range(args.clients)]
    return await asyncio.gather(*asking)


async def _stream(http: aiohttp.ClientSession, url: str, who: str, tokens: int) -> list[float]:
    """When each token of one streamed answer came."""
    body = {
        "prompt": f"{who}: " + "the quick brown fox " * (PROMPT_TOKENS // 4),
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
    }
    times: list[float] = []
    async with http.post(url + "/v1/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    return times


if __name__ == "__main__":
    sys.exit(main())
