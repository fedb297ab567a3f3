"""One step: a plan becomes tensors, the model runs, logits become tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec import Struct

from homesplit_engine.attention import Span, Step
from homesplit_engine.cache import KvPool, Place
from homesplit_engine.model import LoadedModel
from homesplit_engine.request import Request
from homesplit_engine.sampling import Choice, Row, choose
from homesplit_engine.scheduler import StepPlan
from homesplit_engine.wire.messages import SamplingParams


class StepResult(Struct, frozen=True, kw_only=True):
    """What a step computed."""

    choices: dict[str, Choice]
    """Request id to its new token."""
    not_finite: tuple[str, ...] = ()
    """Requests whose logits were not numbers; they have no token."""


class Runner:
    """Computes the steps of one model on one pool."""

    def __init__(self, loaded: LoadedModel, pool: KvPool) -> None:
        self.loaded = loaded
        self.pool = pool

    def run(self, plan: StepPlan, layer_done: Callable[[int], None] | None = None) -> StepResult:
        """Computes a plan. `layer_done` is told each layer whose KV is in the pool."""
        parts = [(work.request, work.start, work.tokens, work.last) for work in plan.prefill]
        parts += [(request, request.computed, 1, True) for request in plan.decode]
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        sampled: list[Request] = []
        rows: list[int] = []
        for request, start, count, last in parts:
            place = self.place(request)
            spans.append(Span(row=len(token_ids), start=start, count=count, place=place))
            token_ids += request.tokens[start : start + count]
            positions += range(start, start + count)
            slots += place.slots(start, start + count)
            if last:
                sampled.append(request)
                rows.append(len(token_ids) - 1)
        logits = self._logits(token_ids, positions, slots, spans, rows, layer_done)
        return _chosen(logits, sampled)

    def place(self, request: Request) -> Place:
        """Where a request's tokens lie; follows its growing list of blocks."""
        place = request.place
        if not isinstance(place, Place):
            place = request.place = Place(self.pool.block_tokens, self.pool.device)
        if place.follow(request.blocks):
            self.pool.in_use(request.blocks)
        return place

    def _logits(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        spans: list[Span],
        rows: Sequence[int],
        layer_done: Callable[[int], None] | None,
    ) -> torch.Tensor:
        device = self.loaded.device
        plug = self.loaded.plug
        plug.step = Step(
            pool=self.pool,
            spans=spans,
            slots=torch.tensor(slots, device=device),
            layer_done=layer_done,
        )
        model: Any = self.loaded.model
        try:
            with torch.inference_mode():
                output = model(
                    torch.tensor([token_ids], device=device),
                    position_ids=torch.tensor([positions], device=device),
                    use_cache=False,
                    logits_to_keep=torch.tensor(rows, dtype=torch.int64, device=device),
                )
        finally:
            plug.step = None
        logits: torch.Tensor = output.logits[0]
        return logits.float()


def _chosen(logits: torch.Tensor, requests: Sequence[Request]) -> StepResult:
    if not requests:
        return StepResult(choices={})
    rows = [
        Row(
            params=request.sampling or SamplingParams(max_tokens=request.max_tokens),
            token_ids=request.tokens,
            prompt_tokens=request.prompt_tokens,
        )
        for request in requests
    ]
    with torch.inference_mode():
        chosen = choose(logits, rows)
    ids = [request.request_id for request in requests]
    return StepResult(
        choices={i: one for i, one in zip(ids, chosen, strict=True) if one is not None},
        not_finite=tuple(i for i, one in zip(ids, chosen, strict=True) if one is None),
    )
