"""What the engine's benchmark measures: the engine, peers beside it, and the machine's limits."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from homesplit_engine.model import LoadedModel

BLOCK_TOKENS = 16
CONTEXT = 64
"""Prompt length of the decoding requests, tokens."""
WARM_STEPS = 2
DECODE_STEPS = 9
PEER_START_S = 400.0
_GEMM = 1024

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"cpu": time.process_time, "wall": time.perf_counter}
"""`cpu`: seconds the pinned core spent here, which others on a shared machine do not add to."""


class Subject(Protocol):
    """Whatever reads prompts and writes answers."""

    name: str

    def prefill_s(self, tokens: int) -> float:
        """Seconds to read one prompt and choose its first token."""
        ...

    def decode_s(self, batch: int) -> float:
        """Seconds of a step that gives `batch` requests one token each."""
        ...


def prompt(number: int, tokens: int, vocab_size: int) -> list[int]:
    """A prompt of random tokens."""
    draw = random.Random(number)
    return [draw.randrange(vocab_size) for _ in range(tokens)]


class Ours:
    """This engine: scheduler and runner on one pool, without prefix cache."""

    def __init__(self, name: str, loaded: LoadedModel, clock: Clock) -> None:
        self.name = name
        self._loaded = loaded
        self._clock = clock

    def prefill_s(self, tokens: int) -> float:
        """See Subject."""
        steps = _Steps(self._loaded, tokens + 1)
        steps.add(0, tokens, 1)
        return steps.step_s(self._clock)

    def decode_s(self, batch: int) -> float:
        """See Subject."""
        answer = batch + WARM_STEPS + DECODE_STEPS + 1
        steps = _Steps(self._loaded, batch * (CONTEXT + answer + BLOCK_TOKENS))
        for number in range(batch):
            steps.add(number, CONTEXT, answer)
        while len(steps.scheduler.decoding_requests()) < batch:
            steps.step_s(self._clock)
        times = [steps.step_s(self._clock) for _ in range(WARM_STEPS + DECODE_STEPS)]
        return statistics.median(times[WARM_STEPS:])


class _Steps:
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
        from homesplit_engine.request import Request

        request = Request(
            request_id=str(number),
            tokens=prompt(number, prompt_tokens, self._vocab_size),
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            arrived_s=float(number),
            deadline_s=1e12,
            chunk_tokens=None,
        )
        refusal = self.scheduler.add(request, now_s=0.0)
        if refusal is not None:
            raise SystemExit(f"{prompt_tokens} tokens: {refusal.what}")

    def step_s(self, clock: Clock) -> float:
        start_s = clock()
        plan = self.scheduler.schedule(0.0)
        if plan is None:
            raise RuntimeError("nothing to compute")
        choices = self._runner.run(plan).choices
        sampled = {name: choice.token_id for name, choice in choices.items()}
        self.scheduler.finish_step(plan, sampled, now_s=0.0)
        return clock() - start_s


class Transformers:
    """The library's own model, its own attention and cache, in this process."""

    name = "transformers fp32"

    def __init__(self, folder: Path, clock: Clock) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        self._model.eval()
        self._vocab_size = int(self._model.config.vocab_size)
        self._clock = clock

    def prefill_s(self, tokens: int) -> float:
        """See Subject."""
        start_s = self._clock()
        self._read(1, tokens)
        return self._clock() - start_s

    def decode_s(self, batch: int) -> float:
        """See Subject."""
        import torch

        output = self._read(batch, CONTEXT)
        times: list[float] = []
        with torch.inference_mode():
            for _ in range(WARM_STEPS + DECODE_STEPS):
                start_s = self._clock()
                tokens = output.logits[:, -1:].argmax(-1)
                output = self._model(tokens, past_key_values=output.past_key_values, use_cache=True)
                times.append(self._clock() - start_s)
        return statistics.median(times[WARM_STEPS:])

    def _read(self, batch: int, tokens: int) -> Any:
        import torch

        ids = torch.tensor([prompt(n, tokens, self._vocab_size) for n in range(batch)])
        with torch.inference_mode():
            return self._model(ids, use_cache=True, logits_to_keep=1)


class Limits:
    """What the machine could do at most: reading the weights once, and matrix products."""

    def __init__(self, linear_parameters: int, bytes_each: int, clock: Clock) -> None:
        import torch

        self._parameters = linear_parameters
        # Written, so that every page is really there.
        self._weights = torch.ones(linear_parameters * bytes_each // 4)
        self._left = torch.randn(_GEMM, _GEMM)
        self._right = torch.randn(_GEMM, _GEMM)
        self._clock = clock

    def read_s(self) -> float:
        """Seconds to read as many bytes as all linear layers' weights have."""
        start_s = self._clock()
        self._weights.sum()
        return self._clock() - start_s

    def gemm_s(self, tokens: int) -> float:
        """Seconds of the linear layers' arithmetic for `tokens` tokens at fp32 GEMM speed."""
        import torch

        start_s = self._clock()
        for _ in range(4):
            torch.mm(self._left, self._right)
        flops_per_s = 4 * 2 * _GEMM**3 / (self._clock() - start_s)
        return 2 * self._parameters * tokens / flops_per_s


class Remote:
    """A peer in a virtual environment of its own, asked over pipes; see peer.py."""

    def __init__(self, name: str, python: Path, kind: str, model: Path, clock: str) -> None:
        self.name = name
        script = Path(__file__).with_name("peer.py")
        self._process = subprocess.Popen(
            [str(python), str(script), kind, str(model), clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._answer().get("ready") is not True:
            raise SystemExit(f"{name} did not start")

    def prefill_s(self, tokens: int) -> float:
        """See Subject."""
        return self._ask("prefill", tokens)

    def decode_s(self, batch: int) -> float:
        """See Subject."""
        return self._ask("decode", batch)

    def stop(self) -> None:
        """Ends the peer."""
        self._process.terminate()
        self._process.wait(timeout=20)

    def _ask(self, what: str, number: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, number]) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Peers print whatever they like beside it.
            if line.startswith("PEER "):
                return json.loads(line[5:])
        raise SystemExit(f"{self.name} ended: exit code {self._process.wait()}")
