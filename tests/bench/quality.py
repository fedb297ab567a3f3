"""What int8 weights and a smaller KV on the wire cost in quality, on a text of our own.

    python -m tests.bench.quality [--model DIR] [--prompts N] [--answer N] [--json]

Perplexity: the text read in one piece, fp32 against int8 weights. Divergence: greedy answers
after a hand-off by `same`, `fp16` and `int8`, each compared with `same`, token by token, and how
long both go on alike. Everything runs through the engine's own scheduler, layout and runner.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homesplit_engine.model import LoadedModel
    from homesplit_engine.records import KvWire

TEXT = Path(__file__).with_name("quality.txt")
BLOCK_TOKENS = 16


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path.home() / ".cache/homesplit/models/smollm2-135m"
    parser.add_argument("--model", type=Path, default=default, metavar="DIR")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--answer", type=int, default=48)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure(args)
    print(json.dumps(result) if args.json else "\n".join(_lines(result)))
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Perplexities and divergences."""
    from homesplit_engine.model import load_model
    from homesplit_engine.records import KV_WIRES
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(args.model))
    token_ids: list[int] = tokenizer(TEXT.read_text())["input_ids"]
    perplexity: dict[str, float] = {}
    answers: dict[str, list[list[int]]] = {}
    for weights in ("same", "int8"):
        loaded = load_model(args.model, device="cpu", dtype="float32", weights=weights)
        perplexity[weights] = perplexity_of(loaded, token_ids)
        if weights == "same":
            for one in _prompts(token_ids, args.prompts, args.prompt_tokens):
                for wire, answer in split_answers(loaded, one, args.answer).items():
                    answers.setdefault(wire, []).append(answer)
                print(f"{len(answers['same'])} prompts answered", file=sys.stderr, flush=True)
    return {
        "text_tokens": len(token_ids),
        "perplexity": perplexity,
        "divergence": {wire: _compared(answers["same"], answers[wire]) for wire in KV_WIRES},
    }


def perplexity_of(loaded: LoadedModel, token_ids: list[int]) -> float:
    """exp of the mean negative log-probability of each token after the first."""
    import torch
    from homesplit_engine.attention import Span, Step
    from homesplit_engine.cache import KvPool

    count = len(token_ids)
    blocks = list(range(-(-count // BLOCK_TOKENS)))
    pool = KvPool(
        loaded.kv_shape,
        blocks_total=len(blocks),
        block_tokens=BLOCK_TOKENS,
        device=loaded.device,
    )
    place = pool.place(blocks)
    span = Span(row=0, start=0, count=count, place=place)
    loaded.plug.step = Step(pool=pool, spans=[span], slots=torch.tensor(place.slots(0, count)))
    ids = torch.tensor([token_ids])
    try:
        with torch.inference_mode():
            logits = loaded.model(
                ids, position_ids=torch.arange(count)[None], use_cache=False
            ).logits[0]
    finally:
        loaded.plug.step = None
    loss = torch.nn.functional.cross_entropy(logits[:-1].float(), ids[0, 1:])
    return math.exp(float(loss))


def split_answers(loaded: LoadedModel, prompt: list[int], answer: int) -> dict[str, list[int]]:
    """The greedy answers when one engine reads the prompt and others write from its KV, by wire."""
    from homesplit_engine.records import KV_WIRES

    reader = _Side(loaded, prompt, answer)
    reader.request.hand_over = True
    reader.scheduler.add(reader.request, now_s=0.0)
    first = reader.step()[0]
    return {wire: _answer(reader, first, prompt, answer, wire) for wire in KV_WIRES}


def _answer(reader: _Side, first: int, prompt: list[int], answer: int, wire: KvWire) -> list[int]:
    from homesplit_engine.handoff.layout import Piece, pack, unpack

    writer = _Side(reader.loaded, prompt, answer)
    writer.scheduler.reserve(writer.request, now_s=0.0)
    piece = Piece(layer=0, layers=reader.loaded.kv_shape.layers, start=0, end=len(prompt))
    frame = pack(reader.pool, reader.runner.place(reader.request), piece, wire)
    unpack(writer.pool, writer.runner.place(writer.request), piece, frame, wire)
    writer.scheduler.commit("r", first)
    found = [first]
    while len(found) < answer:
        found += writer.step()
    return found


class _Side:
    def __init__(self, loaded: LoadedModel, prompt: list[int], answer: int) -> None:
        from homesplit_engine.cache import KvPool
        from homesplit_engine.pages import BlockPool, blocks_for
        from homesplit_engine.request import Request
        from homesplit_engine.runner import Runner
        from homesplit_engine.scheduler import Limits, Scheduler

        self.loaded = loaded
        blocks = blocks_for(len(prompt) + answer, BLOCK_TOKENS) + 1
        self.pool = KvPool(
            loaded.kv_shape, blocks_total=blocks, block_tokens=BLOCK_TOKENS, device=loaded.device
        )
        self.runner = Runner(loaded, self.pool)
        self.scheduler = Scheduler(
            BlockPool(blocks, BLOCK_TOKENS), Limits(max_context=loaded.max_context)
        )
        self.request = Request(
            request_id="r",
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            max_tokens=answer,
            arrived_s=0.0,
            deadline_s=1e12,
            chunk_tokens=None,
        )

    def step(self) -> list[int]:
        plan = self.scheduler.schedule(0.0)
        if plan is None:
            raise RuntimeError("nothing to compute")
        choices = self.runner.run(plan).choices
        sampled = {name: choice.token_id for name, choice in choices.items()}
        outcome = self.scheduler.finish_step(plan, sampled, now_s=0.0)
        return [token.token_id for token in outcome.tokens]


def _prompts(token_ids: list[int], count: int, length: int) -> list[list[int]]:
    last = max(1, len(token_ids) - length)
    return [token_ids[at : at + length] for at in range(0, last, max(1, last // count))][:count]


def _compared(exact: list[list[int]], other: list[list[int]]) -> dict[str, float]:
    alike = [_alike(a, b) for a, b in zip(exact, other, strict=True)]
    whole = sum(a == b for a, b in zip(exact, other, strict=True))
    return {
        "prompts": len(exact),
        "identical": whole,
        "median_tokens_alike": statistics.median(alike),
        "fewest_tokens_alike": min(alike),
    }


def _alike(one: list[int], other: list[int]) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            return at
    return len(one)


def _lines(result: dict[str, Any]) -> list[str]:
    exact, int8 = result["perplexity"]["same"], result["perplexity"]["int8"]
    lines = [
        f"perplexity over {result['text_tokens']} tokens: fp32 {exact:.3f}, "
        f"int8 weights {int8:.3f} ({int8 / exact - 1:+.2%})",
        "",
        "| KV on the wire | answers identical to `same` | tokens alike: median | fewest |",
        "|---|---|---|---|",
    ]
    for wire, one in result["divergence"].items():
        lines.append(
            f"| {wire} | {one['identical']} of {one['prompts']} "
            f"| {one['median_tokens_alike']:.0f} | {one['fewest_tokens_alike']} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
