"""Runs one peer engine in its own virtual environment; answers on stdout what is asked on stdin.

    PYTHON peer.py llama.cpp MODEL.gguf cpu|wall
    PYTHON peer.py vllm      MODEL_FOLDER cpu|wall

A question is a line `["prefill", tokens]` or `["decode", batch]`, an answer a line
`PEER {"seconds": …}`. Needs nothing of this repository.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from typing import Any

CONTEXT = 64
STEPS = 9
CONTEXT_MOST = 2560
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def tokens_of(number: int, count: int) -> list[int]:
    """Random tokens of SmolLM2's vocabulary."""
    draw = random.Random(number)
    return [draw.randrange(17, 49152) for _ in range(count)]


class LlamaCpp:
    """llama-cpp-python, one sequence of the low-level batch each request."""

    def __init__(self, model: str, clock: Any) -> None:
        import llama_cpp  # pyright: ignore[reportMissingImports]

        self._api: Any = llama_cpp
        self._clock = clock
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"{model} can't be loaded")

    def _context(self, sequences: int) -> Any:
        settings = self._api.llama_context_default_params()
        settings.n_ctx = CONTEXT_MOST
        settings.n_batch = settings.n_ubatch = 512
        settings.n_seq_max = sequences
        settings.n_threads = settings.n_threads_batch = 1
        return self._api.llama_init_from_model(self._model, settings)

    def _decode(self, context: Any, rows: list[tuple[int, int, int, bool]]) -> None:
        """`rows`: token, position, sequence, whether logits are wanted."""
        batch = self._api.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at] = token
            batch.pos[at] = position
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = sequence
            batch.logits[at] = int(wanted)
        if self._api.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        self._api.llama_synchronize(context)
        self._api.llama_batch_free(batch)

    def prefill(self, count: int) -> float:
        context = self._context(1)
        ids = tokens_of(0, count)
        start_s = self._clock()
        for first in range(0, count, 512):
            part = ids[first : first + 512]
            rows = [(t, first + n, 0, first + n == count - 1) for n, t in enumerate(part)]
            self._decode(context, rows)
        took_s = self._clock() - start_s
        self._api.llama_free(context)
        return float(took_s)

    def decode(self, batch: int) -> float:
        context = self._context(batch)
        for sequence in range(batch):
            ids = tokens_of(sequence, CONTEXT)
            self._decode(context, [(t, n, sequence, n == CONTEXT - 1) for n, t in enumerate(ids)])
        times: list[float] = []
        for step in range(STEPS + 2):
            start_s = self._clock()
            self._decode(context, [(1000 + step, CONTEXT + step, s, True) for s in range(batch)])
            times.append(self._clock() - start_s)
        self._api.llama_free(context)
        return statistics.median(times[2:])


class Vllm:
    """vLLM's engine in this process; a decode step is the slope between two answer lengths."""

    def __init__(self, model: str, clock: Any) -> None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        core = min(os.sched_getaffinity(0))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(core))
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

        self._params: Any = SamplingParams
        self._clock = clock
        self._engine: Any = LLM(
            model=model,
            dtype="float32",
            max_model_len=CONTEXT_MOST,
            max_num_seqs=8,
            max_num_batched_tokens=CONTEXT_MOST,
            enable_prefix_caching=False,
        )

    def _generate(self, prompts: list[list[int]], answer: int) -> float:
        params = self._params(max_tokens=answer, temperature=0.0, ignore_eos=True)
        start_s = self._clock()
        self._engine.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return float(self._clock() - start_s)

    def prefill(self, count: int) -> float:
        return self._generate([tokens_of(0, count)], 1)

    def decode(self, batch: int) -> float:
        prompts = [tokens_of(n, CONTEXT) for n in range(batch)]
        short = self._generate(prompts, 2)
        return (self._generate(prompts, 2 + STEPS) - short) / STEPS


def say(answer: dict[str, Any]) -> None:
    """One answer."""
    sys.stdout.write("PEER " + json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answers until stdin ends."""
    kind, model, clock = sys.argv[1:4]
    peer: Any = {"llama.cpp": LlamaCpp, "vllm": Vllm}[kind](model, CLOCKS[clock])
    say({"ready": True})
    for line in sys.stdin:
        what, number = json.loads(line)
        say({"seconds": peer.prefill(number) if what == "prefill" else peer.decode(number)})


if __name__ == "__main__":
    main()
