"""What each request must be answered with: the engine alone, in this process, undisturbed.

The text that a deployment gives is compared with one that no router, wire, hand-off, fault or
earlier request has had a part in. Prompts may so be new for every cell: nothing is cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from homesplit_engine.cache import KvPool
from homesplit_engine.model import load_model
from homesplit_engine.pages import BlockPool
from homesplit_engine.request import Request
from homesplit_engine.router.text import AnswerText, load_tokenizer
from homesplit_engine.runner import Runner
from homesplit_engine.scheduler import Limits, Scheduler
from homesplit_engine.wire.messages import SamplingParams

BLOCKS, BLOCK_TOKENS = 512, 16
CHUNK_TOKENS = 64
TOKENS = 120
CHOICES = 2
SEED = 7
REPETITION, PRESENCE = 1.1, 0.5
SAMPLED: dict[str, Any] = {
    "temperature": 1.0,
    "seed": SEED,
    "n": CHOICES,
    "logprobs": 1,
    "repetition_penalty": REPETITION,
    "presence_penalty": PRESENCE,
}
"""A sampled request: what is drawn hangs on seed and place alone, so its text is known as well."""


class Answers:
    """Answers of one model, each computed once."""

    def __init__(self, model: Path) -> None:
        torch.set_num_threads(1)
        self._loaded = load_model(model, device="cpu", dtype="float32")
        self._tokenizer = load_tokenizer(model)
        self._known: dict[tuple[str, SamplingParams], str] = {}

    def greedy(self, *prompts: str, tokens: int = TOKENS) -> list[str]:
        """The greedy text of each prompt."""
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        return self._texts([(prompt, params) for prompt in prompts])

    def sampled(self, prompt: str) -> list[str]:
        """The text of each choice of a sampled request."""
        params = [
            SamplingParams(
                max_tokens=TOKENS,
                temperature=1.0,
                seed=SEED + choice,
                ignore_eos=True,
                repetition_penalty=REPETITION,
                presence_penalty=PRESENCE,
            )
            for choice in range(CHOICES)
        ]
        return self._texts([(prompt, one) for one in params])

    def _texts(self, wanted: list[tuple[str, SamplingParams]]) -> list[str]:
        new = [one for one in wanted if one not in self._known]
        if new:
            self._known |= dict(zip(new, self._computed(new), strict=True))
        return [self._known[one] for one in wanted]

    def _computed(self, wanted: list[tuple[str, SamplingParams]]) -> list[str]:
        pool = BlockPool(BLOCKS, BLOCK_TOKENS, prefix_cache=False)
        scheduler = Scheduler(pool, Limits(max_context=self._loaded.max_context))
        kv = KvPool(
            self._loaded.kv_shape,
            blocks_total=BLOCKS,
            block_tokens=BLOCK_TOKENS,
            device=self._loaded.device,
        )
        runner = Runner(self._loaded, kv)
        prompts = [self._tokenizer.encode(prompt).ids for prompt, _ in wanted]
        for number, (ids, (_, params)) in enumerate(zip(prompts, wanted, strict=True)):
            refusal = scheduler.add(_request(str(number), ids, params), now_s=0.0)
            if refusal is not None:
                raise AssertionError(refusal.what)
        tokens: dict[str, list[int]] = {str(number): [] for number in range(len(wanted))}
        while (plan := scheduler.schedule(0.0)) is not None:
            choices = runner.run(plan).choices
            sampled = {name: choice.token_id for name, choice in choices.items()}
            for token in scheduler.finish_step(plan, sampled, now_s=0.0).tokens:
                tokens[token.request_id].append(token.token_id)
        return [self._text(ids, tokens[str(n)]) for n, ids in enumerate(prompts)]

    def _text(self, prompt: list[int], tokens: list[int]) -> str:
        text = AnswerText(self._tokenizer, prompt, ())
        return "".join(map(text.push, tokens)) + text.finish()


def _request(name: str, ids: list[int], params: SamplingParams) -> Request:
    return Request(
        request_id=name,
        tokens=list(ids),
        prompt_tokens=len(ids),
        max_tokens=params.max_tokens,
        arrived_s=0.0,
        deadline_s=1e9,
        chunk_tokens=CHUNK_TOKENS,
        sampling=params,
    )
