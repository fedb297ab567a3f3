"""What a worker's memory does over thousands of requests of all lengths, and what grows in it.

    python -m tests.bench.memory [--requests 3000] [--kernels N,...] [--json]

The worker's own scheduler and runner in a process for each setting, without sockets: prompts and
answers of random lengths, several at a time, so that hardly a step has the rows of another. The KV
pool is touched whole beforehand. After each quarter: resident bytes by kind, objects that Python
keeps, and how long the quarter's steps took. `--kernels` sets how many kernels oneDNN
and torch's layer above it keep (0 means their own default, 1,024).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homesplit_engine.request import Request
    from homesplit_engine.runner import Runner
    from homesplit_engine.scheduler import Scheduler

QUARTERS = 4
OPEN_AT_ONCE = 6
BLOCKS, BLOCK_TOKENS = 320, 16
CHUNK_TOKENS = 64
SEED = 8
KEPT = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--kernels", default="0,128", metavar="N,…")
    parser.add_argument("--inside", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(_quarters(Path(args.inside), args.requests)))
        return 0
    result = measure(args.requests, [int(word) for word in args.kernels.split(",")])
    print(json.dumps(result) if args.json else "\n".join(_lines(result)))
    return 0


def measure(requests: int, kernels: list[int]) -> dict[str, Any]:
    """Every setting in a process of its own."""
    from tests.engine.router_kit import make_tokenizer
    from tests.engine.tiny import make_model
    from tests.lab.matrix.stand import MODEL

    found: dict[str, Any] = {"requests": requests, "load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(model, "llama", **MODEL)
        make_tokenizer(model)
        for kept in kernels:
            words = [sys.executable, "-m", "tests.bench.memory"]
            words += ["--inside", str(model), "--requests", str(requests)]
            own = dict.fromkeys(KEPT, str(kept)) if kept else {}
            done = subprocess.run(words, env={**os.environ, **own}, stdout=subprocess.PIPE)
            if done.returncode:
                raise RuntimeError(f"the process with {kept} kernels ended with {done.returncode}")
            found[str(kept)] = json.loads(done.stdout)
    return found


def _quarters(model: Path, requests: int) -> list[dict[str, Any]]:
    import torch
    from homesplit_engine.cache import KvPool
    from homesplit_engine.heap import keep_freed_memory
    from homesplit_engine.model import load_model
    from homesplit_engine.pages import BlockPool
    from homesplit_engine.runner import Runner
    from homesplit_engine.scheduler import Limits, Scheduler

    torch.set_num_threads(1)
    loaded = load_model(model, device="cpu", dtype="float32")
    keep_freed_memory()  # as a worker does
    pool = KvPool(
        loaded.kv_shape, blocks_total=BLOCKS, block_tokens=BLOCK_TOKENS, device=loaded.device
    )
    for layer in pool.layers:
        layer.zero_()
    scheduler = Scheduler(BlockPool(BLOCKS, BLOCK_TOKENS), Limits(max_context=loaded.max_context))
    runner = Runner(loaded, pool)
    chance = random.Random(SEED)
    rows: set[int] = set()
    found = [_now(0, 0.0, rows)]
    for quarter in range(QUARTERS):
        began_s = time.process_time()
        for number in range(quarter * requests // QUARTERS, (quarter + 1) * requests // QUARTERS):
            _take_in(scheduler, chance, number)
            while scheduler.running + scheduler.waiting >= OPEN_AT_ONCE:
                _step(scheduler, runner, rows)
        while scheduler.request_ids():
            _step(scheduler, runner, rows)
        found.append(_now((quarter + 1) * requests // QUARTERS, began_s, rows))
    return found


def _take_in(scheduler: Scheduler, chance: random.Random, number: int) -> None:
    refusal = scheduler.add(_request(chance, number), now_s=0.0)
    if refusal is not None:
        raise RuntimeError(refusal.what)


def _step(scheduler: Scheduler, runner: Runner, rows: set[int]) -> None:
    plan = scheduler.schedule(0.0)
    if plan is None:
        raise RuntimeError("requests wait and there is no step")
    rows.add(sum(work.tokens for work in plan.prefill) + len(plan.decode))
    choices = runner.run(plan).choices
    sampled = {name: choice.token_id for name, choice in choices.items()}
    scheduler.finish_step(plan, sampled, now_s=0.0)


def _request(chance: random.Random, number: int) -> Request:
    from homesplit_engine.request import Request
    from homesplit_engine.wire.messages import SamplingParams

    length, answer = chance.randrange(1, 400), chance.randrange(1, 24)
    return Request(
        request_id=str(number),
        tokens=[chance.randrange(6, 260) for _ in range(length)],
        prompt_tokens=length,
        max_tokens=answer,
        arrived_s=float(number),
        deadline_s=1e12,
        chunk_tokens=chance.choice((CHUNK_TOKENS, CHUNK_TOKENS, None)),
        sampling=SamplingParams(max_tokens=answer, ignore_eos=True),
    )


def _now(requests: int, began_s: float, rows: set[int]) -> dict[str, Any]:
    from tests.lab.resident import resident

    gc.collect()
    seen = resident(os.getpid())
    return {
        "requests": requests,
        "rows_met": len(rows),
        "made_code_bytes": seen.made_code,
        "data_bytes": seen.data,
        "files_bytes": seen.files,
        "python_objects": len(gc.get_objects()),
        "cpu_s": time.process_time() - began_s if began_s else None,
    }


def _lines(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['requests']} requests, load average {result['load_average']:.1f}", ""]
    lines += ["| kernels kept | requests | row counts met | made code | data | objects | CPU |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for kept, rows in result.items():
        for row in rows if isinstance(rows, list) else ():
            code, data = row["made_code_bytes"] / 2**20, row["data_bytes"] / 2**20
            cpu = "–" if row["cpu_s"] is None else f"{row['cpu_s']:.0f} s"
            lines.append(
                f"| {kept if kept != '0' else '1,024'} | {row['requests']} | {row['rows_met']} "
                f"| {code:.1f} MiB | {data:.1f} MiB | {row['python_objects']} | {cpu} |"
            )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
