"""Prefill and decode rates of the engine in this process, on one pinned core.

    python -m tests.bench.engine [--model DIR] [--core N] [--json]

Each figure is the median of several steps. Timings on a shared machine wander: compare only
what was measured in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from homesplit_engine.model import LoadedModel

PROMPTS = (128, 512, 2048)
BATCHES = (1, 4, 8)
BLOCK_TOKENS = 16
CONTEXT = 64
"""Prompt length of the decoding requests, tokens."""
WARM_STEPS = 3
DECODE_STEPS = 25


class Engine:
    """Scheduler and runner on one pool, without prefix cache: every prompt is read."""

    def __init__(self, loaded: LoadedModel, tokens: int) -> None:
        from homesplit_engine.cache import KvPool
        from homesplit_engine.pages import BlockPool, blocks_for
        from homesplit_engine.runner import Runner
        from homesplit_engine.scheduler import Limits, Scheduler

        blocks = blocks_for(tokens, BLOCK_TOKENS)
        pool = BlockPool(blocks, BLOCK_TOKENS, prefix_cache=False)
        kv = KvPool(
            loaded.kv_shape, blocks_total=blocks, block_tokens=BLOCK_TOKENS, device=loaded.device
        )
        self._vocab_size = loaded.vocab_size
        self.scheduler = Scheduler(pool, Limits(max_context=loaded.max_context))
        self._runner = Runner(loaded, kv)

    def add(self, number: int, prompt_tokens: int, max_tokens: int) -> None:
        """Queues a prompt of random tokens, read whole."""
        from homesplit_engine.request import Request

        draw = random.Random(number)
        request = Request(
            request_id=str(number),
            tokens=[draw.randrange(self._vocab_size) for _ in range(prompt_tokens)],
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            arrived_s=float(number),
            deadline_s=1e12,
            chunk_tokens=None,
        )
        refusal = self.scheduler.add(request, now_s=0.0)
        if refusal is not None:
            raise SystemExit(f"{prompt_tokens} tokens: {refusal.what}")

    def step_s(self) -> float:
        """Computes one step; its seconds."""
        start_s = time.perf_counter()
        plan = self.scheduler.schedule(0.0)
        if plan is None:
            raise RuntimeError("nothing to compute")
        choices = self._runner.run(plan).choices
        sampled = {name: choice.token_id for name, choice in choices.items()}
        self.scheduler.finish_step(plan, sampled, now_s=0.0)
        return time.perf_counter() - start_s


def prefill_tokens_per_s(loaded: LoadedModel, tokens: int) -> float:
    """Prompt tokens read a second, one prompt alone."""
    times: list[float] = []
    for number in range(1 if tokens > 1024 else 4):
        engine = Engine(loaded, tokens + 1)
        engine.add(number, tokens, 1)
        times.append(engine.step_s())
    return tokens / statistics.median(times)


def decode_tokens_per_s(loaded: LoadedModel, batch: int) -> float:
    """Tokens written a second by `batch` requests together."""
    answer = batch + WARM_STEPS + DECODE_STEPS + 1
    engine = Engine(loaded, batch * (CONTEXT + answer + BLOCK_TOKENS))
    for number in range(batch):
        engine.add(number, CONTEXT, answer)
    while len(engine.scheduler.decoding_requests()) < batch:
        engine.step_s()
    times = [engine.step_s() for _ in range(WARM_STEPS + DECODE_STEPS)][WARM_STEPS:]
    return batch / statistics.median(times)


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path.home() / ".cache/homesplit/models/smollm2-135m"
    parser.add_argument("--model", type=Path, default=default, metavar="DIR")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    # Before torch is imported: its threads inherit the core.
    os.sched_setaffinity(0, {chosen.core})
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from homesplit_engine.model import load_model

    torch.set_num_threads(1)
    loaded = load_model(chosen.model, device="cpu", dtype="float32")
    prefill = {str(n): prefill_tokens_per_s(loaded, n) for n in PROMPTS if n < loaded.max_context}
    decode = {str(batch): decode_tokens_per_s(loaded, batch) for batch in BATCHES}
    if chosen.json:
        print(json.dumps({"prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode}))
        return 0
    for tokens, rate in prefill.items():
        print(f"prefill of {tokens:>4} tokens  {rate:7.1f} tokens/s")
    for batch, rate in decode.items():
        print(f"decode, batch of {batch:>2}    {rate:7.1f} tokens/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
