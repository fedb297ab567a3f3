"""Runs one peer engine in its own virtual environment; answers on stdout what is asked on stdin.

    PYTHON peer.py llama.cpp MODEL.gguf cpu|wall   (xllamacpp: llama.cpp's own server as a wheel)
    PYTHON peer.py vllm      MODEL_FOLDER cpu|wall

A question is a line `["prefill", tokens]` or `["decode", batch]`, an answer a line
`PEER {"seconds": …}`. Needs nothing of this repository.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
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
    """llama.cpp's own server in this process; a decode step is a slope, as with vLLM."""

    def __init__(self, model: str, clock: Any) -> None:
        import xllamacpp  # pyright: ignore[reportMissingImports]

        self._api: Any = xllamacpp
        self._model, self._clock = model, clock
        self._server: Any = None
        self._slots = 0

    def _serve(self, slots: int) -> None:
        if slots == self._slots:
            return
        params = self._api.CommonParams()
        params.model.path = self._model
        params.n_ctx = CONTEXT_MOST if slots == 1 else 256 * slots
        params.n_parallel = self._slots = slots
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.n_batch = params.n_ubatch = 512
        self._server = None
        self._server = self._api.Server(params)

    def _complete(self, tokens: list[int], answer: int) -> None:
        ask = {"prompt": tokens, "n_predict": answer, "cache_prompt": False, "ignore_eos": True}
        self._server.handle_completions(ask | {"temperature": 0.0})

    def _all(self, batch: int, answer: int) -> float:
        threads = [
            threading.Thread(target=self._complete, args=(tokens_of(n, CONTEXT), answer))
            for n in range(batch)
        ]
        start_s = self._clock()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return float(self._clock() - start_s)

    def prefill(self, count: int) -> float:
        self._serve(1)
        start_s = self._clock()
        self._complete(tokens_of(0, count), 1)
        return float(self._clock() - start_s)

    def decode(self, batch: int) -> float:
        self._serve(batch)
        self._all(batch, 2)
        short = self._all(batch, 2)
        return (self._all(batch, 2 + 4 * STEPS) - short) / (4 * STEPS)


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
    kinds: dict[str, Any] = {"llama.cpp": LlamaCpp, "vllm": Vllm}
    peer: Any = kinds[kind](model, CLOCKS[clock])
    say({"ready": True})
    for line in sys.stdin:
        what, number = json.loads(line)
        say({"seconds": peer.prefill(number) if what == "prefill" else peer.decode(number)})


if __name__ == "__main__":
    main()
