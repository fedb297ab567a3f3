"""What a step costs as work grows: more requests in the batch, longer contexts.

    python -m tests.bench.growth [--weights same|int8] [--rounds N] [--core N] [--json]

One pinned core, one thread. The steps are the runner's own, on a pool whose KV is random: what a
step costs does not depend on the values. CPU seconds of the core, lowest of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homesplit_engine.model import LoadedModel
    from homesplit_engine.request import Request

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
SHORT = 128
CHUNK = 128
BLOCK_TOKENS = 16
REPEATS = 3
BAR = 40


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path.home() / ".cache/homesplit/models/smollm2-135m"
    parser.add_argument("--model", type=Path, default=default, metavar="DIR")
    parser.add_argument("--weights", default="same", choices=("same", "int8"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # Before torch is imported: its threads inherit the core.
    os.sched_setaffinity(0, {args.core})
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from homesplit_engine.heap import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()  # as a worker does
    result = measure(args)
    print(json.dumps(result) if args.json else "\n".join(_lines(result)))
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, by batch size and by context, in every kind of step."""
    from homesplit_engine.model import load_model

    loaded = load_model(args.model, device="cpu", dtype="float32", weights=args.weights)
    longest = loaded.max_context
    steps = _Steps(loaded, max(max(BATCHES) * (SHORT + BLOCK_TOKENS), longest))
    contexts = [context for context in CONTEXTS if context <= longest]
    work: dict[str, dict[int, Callable[[], None]]] = {
        "decode_by_batch": {n: steps.decode(n, SHORT) for n in BATCHES},
        "decode_by_context": {n: steps.decode(1, n) for n in contexts},
        "chunk_by_context": {n: steps.chunk(n) for n in contexts},
    }
    result: dict[str, Any] = {"load_average": [], "weights": args.weights}
    for _ in range(args.rounds):
        result["load_average"].append(os.getloadavg()[0])
        for kind, cases in work.items():
            for size, step in cases.items():
                found = result.setdefault(kind, {})
                found[size] = min(found.get(size, float("inf")), _least_s(step))
        print("a round is done", file=sys.stderr, flush=True)
    return result


def _least_s(step: Callable[[], None]) -> float:
    times: list[float] = []
    for _ in range(REPEATS):
        start_s = time.process_time()
        step()
        times.append(time.process_time() - start_s)
    return min(times)


class _Steps:
    """Steps of the engine's runner over requests that are already in the pool."""

    def __init__(self, loaded: LoadedModel, tokens: int) -> None:
        from homesplit_engine.cache import KvPool
        from homesplit_engine.runner import Runner

        pool = KvPool(
            loaded.kv_shape,
            blocks_total=-(-tokens // BLOCK_TOKENS),
            block_tokens=BLOCK_TOKENS,
            device=loaded.device,
        )
        for layer in pool.layers:
            layer.normal_()
        self._runner = Runner(loaded, pool)

    def decode(self, batch: int, context: int) -> Callable[[], None]:
        """A step that gives `batch` requests of `context` tokens one more each."""
        from homesplit_engine.scheduler import StepPlan

        requests = tuple(_request(number, context) for number in range(batch))
        plan = StepPlan(step=0, decode=requests)
        return lambda: self._run(plan)

    def chunk(self, context: int) -> Callable[[], None]:
        """A step that reads the last `CHUNK` tokens of a prompt of `context` tokens."""
        from homesplit_engine.scheduler import PrefillWork, StepPlan

        work = PrefillWork(
            request=_request(0, context), start=context - CHUNK, tokens=CHUNK, last=True
        )
        plan = StepPlan(step=0, prefill=(work,))
        return lambda: self._run(plan)

    def _run(self, plan: Any) -> None:
        if not self._runner.run(plan).choices:
            raise RuntimeError("a step chose no token")


def _request(number: int, context: int) -> Request:
    from homesplit_engine.request import Request

    blocks = -(-context // BLOCK_TOKENS)
    return Request(
        request_id=str(number),
        tokens=[17 + (7 * at + number) % 40000 for at in range(context)],
        prompt_tokens=context,
        max_tokens=1,
        arrived_s=0.0,
        deadline_s=1e12,
        blocks=list(range(number * blocks, (number + 1) * blocks)),
        computed=context - 1,
    )


def _lines(result: dict[str, Any]) -> list[str]:
    loads = result["load_average"]
    return [
        f"weights {result['weights']}, load average {min(loads):.1f} to {max(loads):.1f}",
        "",
        *_plot(
            f"Decode step, requests of {SHORT} tokens, by batch size (tokens/s in all)",
            result["decode_by_batch"],
            lambda batch, step_s: f"{batch / step_s:.0f} tokens/s",
        ),
        *_plot(
            "Decode step of one request, by context",
            result["decode_by_context"],
            lambda context, step_s: "",
        ),
        *_plot(
            f"Prefill of {CHUNK} tokens that end at a context",
            result["chunk_by_context"],
            lambda context, step_s: f"{CHUNK / step_s:.0f} tokens/s",
        ),
    ]


def _plot(title: str, cases: dict[int, float], more: Callable[[int, float], str]) -> list[str]:
    most = max(cases.values())
    rows = [
        f"{size:>6} {'█' * max(1, round(BAR * step_s / most)):<{BAR}} "
        f"{step_s * 1e3:>7.1f} ms  {more(size, step_s)}".rstrip()
        for size, step_s in cases.items()
    ]
    return [title, "", "```", *rows, "```", ""]


if __name__ == "__main__":
    sys.exit(main())
