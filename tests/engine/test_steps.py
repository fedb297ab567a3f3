"""The step loop of a worker with a far end of its own: what computes is a table of layers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from homesplit_engine.config import Keys, WorkerConfig
from homesplit_engine.model import LoadedModel
from homesplit_engine.request import Request
from homesplit_engine.runner import StepResult
from homesplit_engine.sampling import Choice
from homesplit_engine.scheduler import StepPlan
from homesplit_engine.wire.messages import StepReport, ToRouter
from homesplit_engine.worker.process import end_with_any_thread
from homesplit_engine.worker.state import State
from homesplit_engine.worker.steps import Steps

LAYERS = 3


def state() -> State:
    config = WorkerConfig(box="A", model_dir="", keys_file="", ready_file="", block_tokens=8)
    keys = Keys(name="A", public="", secret="", allowed={})
    loaded = SimpleNamespace(max_context=128, kv_shape=SimpleNamespace(layers=LAYERS))
    return State(config, keys, cast(LoadedModel, loaded), 16)


def a_request(name: str, tokens: int = 20) -> Request:
    return Request(
        request_id=name,
        tokens=list(range(tokens)),
        prompt_tokens=tokens,
        max_tokens=1,
        arrived_s=0.0,
        deadline_s=float("inf"),
        chunk_tokens=None,
    )


class Computer:
    """Runs each layer of a plan, after asking `at_layer` (which may stop the worker)."""

    def __init__(self, at_layer: Callable[[int], None], layers: int | None = LAYERS) -> None:
        self._at_layer = at_layer
        self._layers = layers
        self.layers_run = 0

    def run(self, plan: StepPlan, layer_done: Callable[[int], None] | None = None) -> StepResult:
        assert layer_done is not None
        while self._layers is None or self.layers_run < self._layers:
            self._at_layer(self.layers_run)
            layer_done(self.layers_run)
            self.layers_run += 1
        choice = Choice(token_id=7)
        return StepResult(choices={work.request.request_id: choice for work in plan.prefill})

    def place(self, request: Any) -> Any:
        return None


def _unheard(request_id: str, kind: str, what: str) -> None:
    raise AssertionError(f"{request_id}: {kind}: {what}")


def steps_of(state: State, computer: Computer, told: list[ToRouter]) -> Steps:
    return Steps(
        state,
        runner=computer,
        tell=told.append,
        failed=_unheard,
    )


@pytest.mark.timeout(60)
def test_a_step_that_never_ends_is_given_up_at_its_next_layer_when_the_worker_stops() -> None:
    shared, told = state(), list[ToRouter]()
    assert shared.scheduler.add(a_request("long"), now_s=0.0) is None

    def stop_at_the_fifth(layer: int) -> None:
        if layer == 5:
            shared.stop_soon()

    computer = Computer(stop_at_the_fifth, layers=None)
    steps_of(shared, computer, told).run()
    assert (computer.layers_run, told) == (5, [])


@pytest.mark.timeout(60)
def test_a_step_that_ends_before_the_stop_is_told() -> None:
    shared, told = state(), list[ToRouter]()
    assert shared.scheduler.add(a_request("short"), now_s=0.0) is None
    computer = Computer(lambda _: None)

    def tell(message: ToRouter) -> None:
        told.append(message)
        shared.stop_soon()

    steps = Steps(
        shared,
        runner=computer,
        tell=tell,
        failed=_unheard,
    )
    steps.run()
    assert [m.finished[0].request_id for m in told if isinstance(m, StepReport)] == ["short"]


@pytest.mark.timeout(60)
def test_a_thread_that_dies_ends_the_step_loop_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, told = state(), list[ToRouter]()
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    dead = end_with_any_thread(shared.stop_soon)

    def dies() -> None:
        raise KeyError("nobody expected this")

    thread = threading.Thread(target=dies, name="kv-sender")
    thread.start()
    steps_of(shared, Computer(lambda _: None), told).run()
    thread.join()
    assert dead == ["kv-sender"]
