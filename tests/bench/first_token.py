"""What a split's first token takes beside queue and reading, while the decode box writes answers.

    python -m tests.bench.first_token [--share 0.5] [--users 4] [--seconds 30]

Two boxes of this machine, the one that writes on a share of a core (Linux, cgroup v1, root). Prints
one line; to compare two versions run it in a checkout of each, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from homesplit_engine.records import TTFT_TARGET_HEADER, ModeSetting, RequestRecord

from homesplit.io.engine_client import EngineClient
from homesplit.io.local_engine import LocalEngine, local_engine
from tests.engine.router_kit import until

MODEL = Path.home() / ".cache/homesplit/models/smollm2-135m"
GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 5000
SETTING = ModeSetting(mode="split", prefill="whole", prefill_box="left", decode_box="right")


def limit(pid: int, share: float) -> None:
    """Let a process have this share of a core."""
    group = GROUPS / f"homesplit-{pid}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
    (group / "cgroup.procs").write_text(str(pid))


async def offer(engine: LocalEngine, users: int, seconds: float) -> Sequence[RequestRecord]:
    """Users who ask as soon as they were answered; their records."""
    draw = random.Random(11)
    headers = {TTFT_TARGET_HEADER: "3600"}

    async def ask(http: aiohttp.ClientSession) -> None:
        prompt = [draw.randrange(100, 30000) for _ in range(draw.randint(40, 90))]
        body = {"prompt": prompt, "max_tokens": draw.randint(24, 40), "ignore_eos": True}
        async with http.post(engine.url + "/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    async with EngineClient(engine.url) as client, aiohttp.ClientSession() as http:

        async def both() -> bool:
            return all(worker.usable for worker in (await client.status()).workers)

        await until(both)
        await ask(http)
        _, before = await client.records()
        end_s = time.monotonic() + seconds

        async def user() -> None:
            while time.monotonic() < end_s:
                await ask(http)

        await asyncio.gather(*(user() for _ in range(users)))
        await asyncio.sleep(1.0)  # the sender's accounts of the last hand-offs
        records, _ = await client.records(before)
        return records


def line(records: Sequence[RequestRecord]) -> str:
    """The figures of all that were handed over."""
    split = [record for record in records if record.served == "split"]
    ttft = [record.token_s[0] - record.received_s for record in split]
    known = [(r.tokenise_s or 0.0) + (r.queue_s or 0.0) + (r.prefill_s or 0.0) for r in split]
    figures = {
        "TTFT": ttft,
        "of it neither queue nor reading": [a - b for a, b in zip(ttft, known, strict=True)],
        "second token": [record.token_s[1] - record.received_s for record in split],
        "exposed": [record.handoff_exposed_s or 0.0 for record in split],
    }
    told = (
        f"{name} {_at(found, 0.5):.1f} / {_at(found, 0.9):.1f}" for name, found in figures.items()
    )
    return f"{len(split)} of {len(records)} handed over; ms at p50 / p90: " + ", ".join(told)


def _at(found: Sequence[float], share: float) -> float:
    return sorted(found)[int(share * (len(found) - 1))] * 1e3


async def measure(args: argparse.Namespace) -> str:
    """Both boxes up, the load, and the line."""
    async with local_engine(model_dir=MODEL, model_name="m", setting=SETTING) as engine:
        if args.share < 1:
            limit(engine.pids["right"], args.share)
        return line(await offer(engine, args.users, args.seconds))


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.first_token", description=__doc__)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0)
    print(asyncio.run(measure(parser.parse_args())), f"(load {os.getloadavg()[0]:.0f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
