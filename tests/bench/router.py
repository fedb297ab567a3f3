"""What the router itself costs: added TTFT, 500 open streams from two stub workers, mode switches.

    python -m tests.bench.router

Stubs run as processes of their own and answer at once. Added TTFT is paired: the same prompt
goes in turn straight to a stub over its own encrypted socket, to a server that only speaks HTTP,
and through the router. What the router takes beside the first is told, with what of it is HTTP and
the client's own reading, which any server has. The router's
processor time per token tells how many tokens a second one core carries, which a busy machine
does not change. Modes are switched while 40 clients keep asking; every answer must be whole.
Prints one JSON document.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import zmq.asyncio
from homesplit_engine.config import (
    RouterConfig,
    RouterEndpoints,
    WorkerAddress,
    WorkerConfig,
    WorkerEndpoints,
)
from homesplit_engine.keys import make_keys, read_keys, write_keys
from homesplit_engine.records import ModeSetting
from homesplit_engine.wire.messages import (
    MAX_MESSAGE_BYTES,
    SamplingParams,
    StepReport,
    Submit,
    decode_to_router,
    encode,
)
from homesplit_engine.wire.sockets import CONTROL_HWM, connecting_socket

from tests.engine.router_kit import LETTERS, make_tokenizer

BOXES = ("left", "right")
DIRECT = "direct"
"""A stub that the router does not know, for the way without it."""
PROMPT = "the quick brown fox " * 10
START_S = 30.0


def start(arguments: list[str], config: msgspec.Struct, path: Path) -> subprocess.Popen[bytes]:
    """One process with its settings file."""
    path.write_bytes(msgspec.json.encode(config))
    return subprocess.Popen([sys.executable, "-m", *arguments, "--config", str(path)])


def plain_server(file: Path) -> subprocess.Popen[bytes]:
    """A process that only speaks HTTP; its URL comes to lie in the file."""
    return subprocess.Popen([sys.executable, "-m", "tests.bench.plain_http", str(file)])


async def ready(path: Path) -> bytes:
    """The process's ready file once it is there."""
    async with asyncio.timeout(START_S):
        while not (content := _content(path)):  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
    return content


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@dataclass(slots=True, kw_only=True)
class Running:
    """Where everything listens; the router is the last process."""

    url: str
    plain_url: str
    """Of a server that only speaks HTTP."""
    direct: WorkerAddress
    tokens: list[int]
    processes: list[subprocess.Popen[bytes]]


async def start_all(
    folder: Path, step_s: float, prefill_tokens_per_s: float = 1e6, **settings: Any
) -> Running:
    """Two stubs with a router before them, and a third stub without."""
    tokenizer = make_tokenizer(folder)
    for name, keys in make_keys((*BOXES, DIRECT)).items():
        write_keys(folder / f"{name}.keys", keys)
    plain = folder / "plain.url"
    processes = [plain_server(plain)]
    addresses: list[WorkerAddress] = []
    for box in (*BOXES, DIRECT):
        config = WorkerConfig(
            box=box,
            model_dir=str(folder),
            keys_file=str(folder / f"{box}.keys"),
            ready_file=str(folder / f"{box}.ready"),
        )
        stub = ["tests.engine.stub_worker", "--step-s", str(step_s)]
        stub += ["--prefill-tokens-per-s", str(prefill_tokens_per_s)]
        stub += ["--low", str(LETTERS[0]), "--high", str(LETTERS[1])]
        processes.append(start(stub, config, folder / f"{box}.json"))
        end = msgspec.json.decode(await ready(folder / f"{box}.ready"), type=WorkerEndpoints)
        addresses.append(end.address)
    router = RouterConfig(
        model_dir=str(folder),
        model_name="tiny",
        keys_file=str(folder / "router.keys"),
        ready_file=str(folder / "router.ready"),
        workers=tuple(addresses[:2]),
        setting=ModeSetting(mode="replica"),
        max_waiting=2000,
    )
    router = msgspec.structs.replace(router, **settings)
    processes.append(start(["homesplit_engine", "router"], router, folder / "router.json"))
    url = msgspec.json.decode(await ready(folder / "router.ready"), type=RouterEndpoints).url
    return Running(
        url=url,
        plain_url=(await ready(plain)).decode(),
        direct=addresses[2],
        tokens=tokenizer.encode(PROMPT, add_special_tokens=False).ids,
        processes=processes,
    )


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
    body = {"prompt": PROMPT, "max_tokens": tokens, "stream": True}
    began_s, times = time.perf_counter(), list[float]()
    async with http.post(url + "/v1/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter() - began_s)
    return times


class Direct:
    """A client that speaks to one stub as the router does."""

    def __init__(self, folder: Path, address: WorkerAddress, tokens: list[int]) -> None:
        self._context = zmq.asyncio.Context()
        self._socket: Any = connecting_socket(
            self._context,
            keys=read_keys(folder / "router.keys"),
            server_key=address.public_key,
            max_bytes=MAX_MESSAGE_BYTES,
            hwm=CONTROL_HWM,
        )
        self._socket.connect(address.control_endpoint)
        self._tokens = tokens

    async def ttft_s(self, number: int) -> float:
        """Seconds from sending to the first token."""
        began_s = time.perf_counter()
        submit = Submit(
            request_id=f"d{number}",
            token_ids=self._tokens,
            prompt_tokens=len(self._tokens),
            sampling=SamplingParams(max_tokens=1),
            chunk_tokens=None,
            deadline_s=60.0,
        )
        async with asyncio.timeout(START_S):
            await self._socket.send(encode(submit))
            while True:
                message = decode_to_router(await self._socket.recv())
                if isinstance(message, StepReport) and message.tokens:
                    return time.perf_counter() - began_s

    def close(self) -> None:
        """End it."""
        self._context.destroy(linger=0)


async def added_ttft(
    http: aiohttp.ClientSession, running: Running, folder: Path, count: int
) -> dict[str, object]:
    """TTFT of single requests: straight to a stub, over HTTP alone, through the router."""
    direct = Direct(folder, running.direct, running.tokens)
    straight, plain, through = list[float](), list[float](), list[float]()
    try:
        for number in range(count + 20):
            straight.append(await direct.ttft_s(number))
            plain.append((await one_stream(http, running.plain_url, 1))[0])
            through.append((await one_stream(http, running.url, 1))[0])
    finally:
        direct.close()
    legs = list(zip(straight, plain, through, strict=True))[20:]
    return {
        "requests": count,
        "straight_s": _spread([one[0] for one in legs]),
        "plain_http_s": _spread([one[1] for one in legs]),
        "through_router_s": _spread([one[2] for one in legs]),
        "added_s": _spread([through - straight for straight, _, through in legs]),
        "added_beside_http_s": _spread(
            [through - straight - http for straight, http, through in legs]
        ),
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(seconds, n=10)
    return {"p10": tenths[0], "p50": statistics.median(seconds), "p90": tenths[8]}


async def many(
    http: aiohttp.ClientSession, running: Running, streams: int, tokens: int, step_s: float
) -> dict[str, object]:
    """So many streams open at once, each paced by the stubs' steps."""
    router = psutil.Process(running.processes[-1].pid)
    before_s = sum(router.cpu_times()[:2])
    began_s = time.perf_counter()
    all_times = await asyncio.gather(
        *(one_stream(http, running.url, tokens) for _ in range(streams))
    )
    took_s = time.perf_counter() - began_s
    cpu_s = sum(router.cpu_times()[:2]) - before_s
    gaps = [b - a for times in all_times for a, b in itertools.pairwise(times)]
    return {
        "streams": streams,
        "tokens": sum(map(len, all_times)),
        "complete": sum(len(times) == tokens for times in all_times),
        "took_s": took_s,
        "ideal_s": tokens * step_s,
        "tokens_per_s": sum(map(len, all_times)) / took_s,
        "router_cpu_s_per_token": cpu_s / sum(map(len, all_times)),
        "router_cpu_share": cpu_s / took_s,
        "tokens_per_s_of_one_core": sum(map(len, all_times)) / cpu_s,
        "itl_s": {"p50": statistics.median(gaps), "p99": statistics.quantiles(gaps, n=100)[98]},
    }


async def switching(
    http: aiohttp.ClientSession, running: Running, clients: int = 40, tokens: int = 20
) -> dict[str, object]:
    """Modes switched one after the other under load: how long each took, what became of answers."""
    over = asyncio.Event()
    answers: list[int] = []

    async def client() -> None:
        while not over.is_set():
            answers.append(len(await one_stream(http, running.url, tokens)))

    asking = [asyncio.create_task(client()) for _ in range(clients)]
    took_s: list[float] = []
    for mode in ("colocated", "replica", "split", "auto") * 6:
        await asyncio.sleep(0.25)
        began_s = time.perf_counter()
        async with http.post(running.url + "/homesplit/mode", json={"mode": mode}) as answer:
            assert answer.status == 200, await answer.text()
        took_s.append(time.perf_counter() - began_s)
    over.set()
    await asyncio.gather(*asking)
    return {
        "clients": clients,
        "switches": len(took_s),
        "took_s": {"p50": statistics.median(took_s), "max": max(took_s)},
        "answers": len(answers),
        "whole": sum(count == tokens for count in answers),
    }


async def measure(count: int, streams: int, tokens: int) -> dict[str, object]:
    """Both figures, each against stubs of its own pace."""
    result: dict[str, object] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    for name, step_s in (("ttft", 0.0), ("streams", 0.25), ("switch", 0.02)):
        with tempfile.TemporaryDirectory() as folder:
            running = await start_all(Path(folder), step_s)
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=300)
            try:
                async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
                    await until_usable(http, running.url)
                    if name == "ttft":
                        result["ttft"] = await added_ttft(http, running, Path(folder), count)
                    elif name == "switch":
                        result["switch"] = await switching(http, running)
                    else:
                        result["open"] = await many(http, running, streams, tokens, step_s)
            finally:
                for process in running.processes:
                    process.terminate()
                for process in running.processes:
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
