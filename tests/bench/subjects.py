"""What the engine's benchmark measures: the engine, peers beside it, and the machine's limits."""

from __future__ import annotations

import json
import random
import re
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
_GEMM_ROWS = 512
_JOINT = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gu", "up_proj": "gu"}
_JOINED = re.compile("|".join(_JOINT))

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


class OurProducts:
    """The matrix products of this engine's steps and nothing else: what is left is overhead."""

    def __init__(self, name: str, loaded: LoadedModel, clock: Clock) -> None:
        self.name = name
        self._model: Any = loaded.model
        self._clock = clock

    def prefill_s(self, tokens: int) -> float:
        """See Subject."""
        return self._run_s(tokens, 1)

    def decode_s(self, batch: int) -> float:
        """See Subject."""
        return min(self._run_s(batch, batch) for _ in range(DECODE_STEPS))

    def _run_s(self, rows: int, last_rows: int) -> float:
        import torch

        model = self._model
        hidden = torch.randn(rows, len(model.norm.weight))
        attended = torch.randn(rows, model.layers[0].o.in_features)
        last = len(model.layers) - 1
        with torch.inference_mode():
            start_s = self._clock()
            for at, layer in enumerate(model.layers):
                kept = slice(last_rows if at == last else rows)
                layer.qkv(hidden)
                layer.o(attended[kept])
                layer.down(layer.gate_up(hidden[kept]))
            model.head(hidden[:last_rows])
            return self._clock() - start_s


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
        for layer in kv.layers:
            layer.zero_()  # a worker's pool is laid once, a server's at its start
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


class Products:
    """The matrix products of a model: how often each shape is computed, of which rows."""

    def __init__(self, folder: Path) -> None:
        import torch
        from torch import nn
        from transformers import AutoConfig, AutoModelForCausalLM

        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(folder)))
        found: dict[str, tuple[int, int]] = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                joined = _JOINED.sub(lambda match: _JOINT[match[0]], name)
                outputs = found.get(joined, (0, 0))[0] + module.out_features
                found[joined] = (outputs, module.in_features)
        last = f".{int(model.config.num_hidden_layers) - 1}."
        self.of_every_row: dict[tuple[int, int], int] = {}
        self.of_last_row: dict[tuple[int, int], int] = {}
        for name, shape in found.items():
            # Behind the last layer's attention only the row that is sampled from is needed.
            late = "layers." not in name or (last in name and not name.endswith("qkv"))
            counts = self.of_last_row if late else self.of_every_row
            counts[shape] = counts.get(shape, 0) + 1
        self.parameters = sum(outputs * inputs for outputs, inputs in found.values())


class Limits:
    """What this core could do at most: reading the fp32 weights once, and the products alone."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        import torch

        self._products = Products(folder)
        # Written, so that every page is really there.
        self._weights = torch.ones(self._products.parameters)
        self._clock = clock
        self._flops_per_s = 0.0

    def decode_s(self, batch: int) -> float:
        """Seconds to read all weights once, or to compute with them where that is longer."""
        flops = 2 * self._products.parameters * batch
        if not self._flops_per_s:
            self.prefill_s(_GEMM_ROWS)
        return max(self._read_s(), flops / self._flops_per_s)

    def prefill_s(self, tokens: int) -> float:
        """Seconds of the products of a prompt, each shape by the quicker of oneDNN and MKL."""
        took_s = flops = 0.0
        for counts, rows in (
            (self._products.of_every_row, tokens),
            (self._products.of_last_row, 1),
        ):
            for (outputs, inputs), count in counts.items():
                took_s += count * self._product_s(rows, outputs, inputs)
                flops += 2.0 * count * rows * outputs * inputs
        self._flops_per_s = max(self._flops_per_s, flops / took_s)
        return took_s

    def _read_s(self) -> float:
        import torch

        # Typed by hand: torch's stubs leave parts of its functions' types open.
        torch_: Any = torch
        readers: tuple[Any, ...] = (torch_.sum, torch_.amax, torch_.linalg.vector_norm)
        return min(self._timed(read, self._weights) for read in readers * 3)

    def _product_s(self, rows: int, outputs: int, inputs: int) -> float:
        import torch

        left, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        ops: Any = torch.ops.mkldnn
        packed = ops._reorder_linear_weight(weight, 8)
        transposed = weight.t().contiguous()
        ways: tuple[Callable[[], Any], ...] = (
            lambda: ops._linear_pointwise(left, packed, None, "none", [], ""),
            lambda: torch.mm(left, transposed),
        )
        with torch.inference_mode():
            return min(self._timed(way) for way in ways * 3)

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> float:
        start_s = self._clock()
        work(*arguments)
        return self._clock() - start_s


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
