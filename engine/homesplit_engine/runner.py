"""One step: a plan becomes tensors, the model runs, logits become tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec import Struct

from homesplit_engine.attention import Span, Step
from homesplit_engine.cache import KvPool, Place
from homesplit_engine.devices import check_alive, finish
from homesplit_engine.graphs import Graphs
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


Part = tuple[Request, int, int, bool]


class Runner:
    """Computes the steps of one model on one pool."""

    def __init__(self, loaded: LoadedModel, pool: KvPool, *, graphs: bool = False) -> None:
        """With `graphs` decode steps are recorded (CUDA, and a pool with a spare slot)."""
        self.loaded = loaded
        self.pool = pool
        self.graphs = Graphs(loaded, pool, eager=self.decoded) if graphs else None
        self._gpu = loaded.device.type != "cpu"

    def run(self, plan: StepPlan, layer_done: Callable[[int], None] | None = None) -> StepResult:
        """Computes a plan. `layer_done` is told each layer whose KV is in the pool.

        On a GPU "in the pool" means that it is queued to be (`Threads.mark`); when this returns,
        everything is computed. Raises DeviceLost when it computes nothing any more.
        """
        if not self._gpu:
            return self._run(plan, layer_done)
        try:
            with self.pool.threads.computing():
                return self._run(plan, layer_done)
        except RuntimeError as error:
            check_alive(self.loaded.device, error)
            raise

    def _run(self, plan: StepPlan, layer_done: Callable[[int], None] | None) -> StepResult:
        if self.graphs is not None and plan.decode and not plan.prefill:
            return self._replayed(self.graphs, plan.decode, layer_done)
        parts = [(work.request, work.start, work.tokens, work.last) for work in plan.prefill]
        parts += [(request, request.computed, 1, True) for request in plan.decode]
        logits, sampled = self.logits(parts, layer_done)
        if self._gpu and not sampled:
            # Nobody asks for a value, which would be waiting; the step's time is to be its own.
            finish(self.loaded.device)
        return _chosen(logits, sampled)

    def _replayed(
        self,
        graphs: Graphs,
        requests: Sequence[Request],
        layer_done: Callable[[int], None] | None,
    ) -> StepResult:
        logits = graphs.logits(requests, [self.place(request) for request in requests])
        if layer_done is not None:
            for layer in range(self.pool.shape.layers):
                layer_done(layer)
        return _chosen(logits, requests)

    def decoded(self, requests: Sequence[Request]) -> torch.Tensor:
        """The logits after each request's newest token, computed without graphs."""
        return self.logits([(request, request.computed, 1, True) for request in requests])[0]

    def logits(
        self, parts: Sequence[Part], layer_done: Callable[[int], None] | None = None
    ) -> tuple[torch.Tensor, list[Request]]:
        """Computes parts of requests: the logits after each that is a last one, and whose.

        A part is a request, its first token, how many, and whether its next one is wanted.
        """
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
        return self._logits(token_ids, positions, slots, spans, rows, layer_done), sampled

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
