"""Scheduler and runner without sockets, and tiny models with what transformers says of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from homesplit_engine.cache import KvPool
from homesplit_engine.model import LoadedModel, load_model
from homesplit_engine.pages import BlockPool
from homesplit_engine.request import Request
from homesplit_engine.runner import Runner
from homesplit_engine.scheduler import Limits, Refusal, Scheduler
from homesplit_engine.wire.messages import SamplingParams

from tests.engine.tiny import CONTEXT, continued, make_model, prompt_of

BLOCK = 8
CHUNK = 12
ANSWER = 6
BLOCKS = 160
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1, 45, CONTEXT - ANSWER)
"""Where a prompt could be cut wrongly, one in the middle, and one that fills the context."""


class Engine:
    """Scheduler and runner on one pool, stepped until nothing is left."""

    def __init__(
        self, loaded: LoadedModel, *, blocks: int = BLOCKS, prefix_cache: bool = True
    ) -> None:
        pool = BlockPool(blocks, BLOCK, prefix_cache=prefix_cache)
        self.scheduler = Scheduler(pool, Limits(max_context=loaded.max_context))
        kv = KvPool(loaded.kv_shape, blocks_total=blocks, block_tokens=BLOCK, device=loaded.device)
        self.runner = Runner(loaded, kv)
        self.loaded = loaded
        self.answers: dict[str, list[int]] = {}

    def request(
        self, name: str, prompt: list[int], *, chunk: int | None = CHUNK, **sampling: Any
    ) -> Request:
        """A greedy request of a short answer, unless said otherwise."""
        settings: dict[str, Any] = {"max_tokens": ANSWER} | sampling
        params = SamplingParams(**settings)
        return Request(
            request_id=name,
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            max_tokens=params.max_tokens,
            arrived_s=float(len(self.answers)),
            deadline_s=1e9,
            chunk_tokens=chunk,
            stop_ids=frozenset(self.loaded.eos_token_ids),
            sampling=params,
        )

    def add(
        self, name: str, prompt: list[int], *, chunk: int | None = CHUNK, **sampling: Any
    ) -> Request:
        """Takes in a request, which is there until it has ended."""
        request = self.request(name, prompt, chunk=chunk, **sampling)
        self.answers[name] = []
        assert self.scheduler.add(request, now_s=0.0) is None
        return request

    def refusal(self, prompt: list[int]) -> Refusal | None:
        """What is said to a prompt that can't be taken."""
        return self.scheduler.add(self.request("refused", prompt), now_s=0.0)

    def run(self) -> dict[str, list[int]]:
        """Every answer so far, once all have ended."""
        while (plan := self.scheduler.schedule(0.0)) is not None:
            result = self.runner.run(plan)
            assert not result.not_finite
            sampled = {name: choice.token_id for name, choice in result.choices.items()}
            for token in self.scheduler.finish_step(plan, sampled, now_s=0.0).tokens:
                self.answers[token.request_id].append(token.token_id)
        return self.answers


class Models:
    """Tiny models by kind, each made, loaded and asked once."""

    def __init__(self, root: Path, device: str = "cpu", **settings: Any) -> None:
        """`settings` of their configuration are for every kind other than usual."""
        self._root = root
        self._device = device
        self._settings = settings
        self.folder = cache(self._folder)
        self.loaded = cache(self._loaded)
        self.own = cache(self._own)
        self.answer = cache(self._answer)

    def _folder(self, kind: str) -> Path:
        return make_model(self._root / kind, kind, **self._settings)

    def _loaded(self, kind: str, dtype: str = "float32", device: str | None = None) -> LoadedModel:
        return load_model(self.folder(kind), device=device or self._device, dtype=dtype)

    def _own(self, kind: str) -> Any:
        """Transformers' own model, with its own attention."""
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(
            str(self.folder(kind)), dtype=torch.float32
        )
        return model.to(self._device).eval()

    def _answer(self, kind: str, length: int, tokens: int = ANSWER, seed: int = 0) -> list[int]:
        """Transformers' own greedy answer to `prompt_of(length, seed)`."""
        return continued(self.own(kind), prompt_of(length, seed), tokens)

    def logits(self, kind: str, prompt: list[int]) -> torch.Tensor:
        """Transformers' own logits behind every token of a prompt."""
        with torch.inference_mode():
            ids = torch.tensor([prompt], device=self._device)
            return self.own(kind)(ids, attention_mask=torch.ones_like(ids)).logits[0]
