"""The worker: one whole model, no role. Reads, writes, or hands over, as each request says.

Threads: `control` (router's messages, answered at once), this main thread (steps),
`kv-sender` (one a peer), `kv-receiver`, `gatekeeper`. The scheduler is guarded by one lock that
is never held while anything computes or waits.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import psutil

from homesplit_engine.busy import OthersMeter
from homesplit_engine.config import (
    ConfigError,
    Keys,
    WorkerConfig,
    WorkerEndpoints,
    living_with,
    load,
)
from homesplit_engine.keys import ROUTER, read_keys
from homesplit_engine.pages import BlockPool
from homesplit_engine.power import PowerMeter
from homesplit_engine.records import PrefillSlice, StepEvent, WorkerStatus
from homesplit_engine.request import Phase, Request
from homesplit_engine.scheduler import Limits, Refusal, Scheduler, StepOutcome, StepPlan
from homesplit_engine.wire import sockets
from homesplit_engine.wire.messages import (
    WIRE_VERSION,
    Cancel,
    Committed,
    Failed,
    Finished,
    HandoffReport,
    Hello,
    Ping,
    Pong,
    PrefillDone,
    Ready,
    Refused,
    Reserve,
    Reserved,
    SamplingParams,
    StepReport,
    Stop,
    Submit,
    Token,
    ToRouter,
    ToWorker,
)

if TYPE_CHECKING:
    from homesplit_engine.handoff.receiver import Arrived
    from homesplit_engine.handoff.sender import HandoffResult, Outgoing
    from homesplit_engine.model import LoadedModel
    from homesplit_engine.runner import Runner, StepResult

log = logging.getLogger(__name__)

FailureKind = Literal["handoff", "deadline", "engine", "numeric", "out_of_blocks"]
RESUME_CHUNK_TOKENS = 256
"""Chunk in which a handed-over request is read again here, should it lose its blocks."""
IDLE_WAIT_S = 0.25


class Worker:
    """One worker's requests, and what each message and each step does to them."""

    def __init__(
        self, config: WorkerConfig, keys: Keys, loaded: LoadedModel, blocks_total: int
    ) -> None:
        # Heavy imports wait until the process is pinned and its threads are set.
        import zmq

        from homesplit_engine.cache import KvPool
        from homesplit_engine.control import ControlDoor
        from homesplit_engine.handoff.receiver import Receiver
        from homesplit_engine.handoff.senders import Senders
        from homesplit_engine.runner import Runner

        self.config = config
        self.loaded = loaded
        self.keys = keys
        block_pool = BlockPool(blocks_total, config.block_tokens, prefix_cache=config.prefix_cache)
        self.scheduler = Scheduler(
            block_pool,
            Limits(
                max_batch_requests=config.max_batch_requests,
                max_step_tokens=config.max_step_tokens,
                max_waiting=config.max_waiting,
                max_context=loaded.max_context,
            ),
        )
        self.pool = KvPool(
            loaded.kv_shape,
            blocks_total=blocks_total,
            block_tokens=config.block_tokens,
            device=loaded.device,
        )
        self.runner: Runner = Runner(loaded, self.pool)
        self.stopping = threading.Event()
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._outgoing: dict[str, Outgoing] = {}
        self._power = PowerMeter(config.device)
        self._others = OthersMeter()
        self._process = psutil.Process()
        self._parent = _parent(config.parent_pid)
        fingerprint = loaded.fingerprint
        peers = {name: key for name, key in keys.allowed.items() if name != ROUTER}
        router = {ROUTER: keys.allowed[ROUTER]} if ROUTER in keys.allowed else {}
        self._context = zmq.Context()
        self._gate = sockets.Gatekeeper(
            self._context, {sockets.CONTROL_DOMAIN: router, sockets.KV_DOMAIN: peers}
        )
        self.receiver = Receiver(
            self._context,
            keys=keys,
            host=config.kv_bind_host or config.bind_host,
            port=config.kv_port,
            fingerprint=fingerprint,
            pool=self.pool,
            arrived=self._arrived,
            failed=self._handoff_in_failed,
        )
        self.sender = Senders(
            self._context,
            keys=keys,
            box=config.box,
            fingerprint=fingerprint,
            pool=self.pool,
            ended=self._handoff_out_ended,
        )
        self.control = ControlDoor(
            self._context,
            keys=keys,
            host=config.bind_host,
            port=config.control_port,
            heard=self._hear,
            router_lost=lambda: self._cancel_all(),
            tick=self._look_after_time,
        )

    @property
    def endpoints(self) -> WorkerEndpoints:
        """What the ready file says."""
        return WorkerEndpoints(
            box=self.config.box,
            pid=os.getpid(),
            control_endpoint=self.control.endpoint,
            kv_endpoint=self.receiver.endpoint,
            public_key=self.keys.public,
            fingerprint=self.loaded.fingerprint,
        )

    def start(self) -> None:
        """Starts every thread but the steps'."""
        self.receiver.start()
        self.control.start()

    def run(self) -> None:
        """Computes steps until told to stop."""
        while not self.stopping.is_set():
            with self._work:
                plan = self.scheduler.schedule(time.monotonic())
                if plan is None:
                    self._work.wait(IDLE_WAIT_S)
                    continue
            self._step(plan)

    def stop(self) -> None:
        """Ends all threads and sockets."""
        self.stopping.set()
        self.sender.stop()
        self.receiver.stop()
        self.control.stop()
        self._gate.stop()
        self._context.destroy(linger=500)

    # ------------------------------------------------------------------ messages

    def _hear(self, message: ToWorker) -> Sequence[ToRouter]:
        match message:
            case Ping():
                return [Pong(ping_id=message.ping_id, status=self._status())]
            case Hello():
                # Whoever greets has lost, or never had, what was asked before.
                self._cancel_all()
                return [self._ready()]
            case Submit():
                return self._submit(message)
            case Reserve():
                return self._reserve(message)
            case Cancel():
                self._cancel(message.request_id)
                return []
            case Stop():
                self.request_stop()
                return []

    def request_stop(self) -> None:
        """Asks the step loop to end; callable from any thread and from a signal handler."""
        self.stopping.set()

    def _submit(self, message: Submit) -> Sequence[ToRouter]:
        now_s = time.monotonic()
        request = self._request_of(message, now_s, message.chunk_tokens)
        request.hand_over = message.handoff is not None
        refusal = self._bad(message)
        target = message.handoff
        if refusal is None and target is not None and target.fingerprint != self.loaded.fingerprint:
            return [
                Refused(
                    request_id=message.request_id,
                    kind="fingerprint",
                    what=f"{target.box} holds another model or settings than {self.config.box}",
                )
            ]
        with self._work:
            if refusal is None:
                refusal = self.scheduler.add(request, now_s=now_s)
            if refusal is None and target is not None:
                self._outgoing[request.request_id] = self._handoff_of(request, message)
            self._work.notify()
        return [] if refusal is None else [_refused(message.request_id, refusal)]

    def _reserve(self, message: Reserve) -> Sequence[ToRouter]:
        from homesplit_engine.handoff.receiver import Incoming

        now_s = time.monotonic()
        request = self._request_of(message, now_s, RESUME_CHUNK_TOKENS)
        if message.kv_wire != "same":
            request.kv_salt = message.kv_wire.encode()
        refusal = self._bad(message)
        if refusal is None and message.from_box not in self.keys.allowed:
            refusal = Refusal(kind="bad_request", what=f"{message.from_box} is no peer of this box")
        with self._lock:
            if refusal is None:
                refusal = self.scheduler.reserve(request, now_s=now_s)
            if refusal is not None:
                return [_refused(message.request_id, refusal)]
            incoming = Incoming(
                reservation_id=uuid.uuid4().hex,
                request_id=message.request_id,
                from_box=message.from_box,
                place=self.runner.place(request),
                cached_tokens=request.cached_tokens,
                prompt_tokens=len(request.tokens),
                wire=message.kv_wire,
            )
        self.receiver.expect(incoming)
        return [
            Reserved(
                request_id=message.request_id,
                reservation_id=incoming.reservation_id,
                cached_tokens=request.cached_tokens,
            )
        ]

    def _request_of(
        self, message: Submit | Reserve, now_s: float, chunk_tokens: int | None
    ) -> Request:
        sampling = message.sampling
        stops = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stops |= set(self.loaded.eos_token_ids)
        return Request(
            request_id=message.request_id,
            tokens=message.token_ids,
            prompt_tokens=message.prompt_tokens,
            max_tokens=sampling.max_tokens,
            arrived_s=now_s,
            deadline_s=now_s + message.deadline_s,
            chunk_tokens=chunk_tokens,
            stop_ids=frozenset(stops),
            sampling=sampling,
        )

    def _bad(self, message: Submit | Reserve) -> Refusal | None:
        what = _wrong_with(message, self.loaded.vocab_size)
        return None if what is None else Refusal(kind="bad_request", what=what)

    def _handoff_of(self, request: Request, message: Submit) -> Outgoing:
        from homesplit_engine.handoff.sender import Outgoing

        assert message.handoff is not None
        return Outgoing(
            request_id=request.request_id,
            target=message.handoff,
            prompt_tokens=len(request.tokens),
            deadline_s=request.deadline_s,
        )

    def _cancel(self, request_id: str) -> None:
        # The receiver lets go first: blocks must not be freed under its writing hand.
        self.receiver.drop(request_id)
        with self._work:
            request = self.scheduler.cancel(request_id)
            self._after_cancel(request, "cancelled")

    def _cancel_all(self) -> None:
        with self._lock:
            ids = self.scheduler.request_ids()
        for request_id in ids:
            self._cancel(request_id)

    def _after_cancel(self, request: Request | None, why: str) -> None:
        if request is None:
            return
        outgoing = self._outgoing.get(request.request_id)
        if outgoing is None:
            return
        if request.phase is Phase.HANDING_OVER:
            self.sender.give_up(outgoing, why)
        else:
            del self._outgoing[request.request_id]

    def _look_after_time(self) -> None:
        """Deadlines, and whether the process this one belongs to is still there."""
        with self._lock:
            late = self.scheduler.overdue(time.monotonic())
        for request in late:
            self._cancel(request.request_id)
            self._tell_failed(request.request_id, "deadline", "its deadline passed")
        if self._parent is not None and not self._parent.is_running():
            self.request_stop()

    # ------------------------------------------------------------------ steps

    def _step(self, plan: StepPlan) -> None:
        handoffs = self._handoffs_of(plan)
        start_s = time.monotonic()
        try:
            result = self.runner.run(
                plan, _layer_notes(self.sender, handoffs) if handoffs else None
            )
        except (RuntimeError, MemoryError) as error:
            self._step_failed(plan, error)
            return
        with self._work:
            for request_id in result.not_finite:
                self._after_cancel(self.scheduler.spoil(request_id), "its logits are no numbers")
            sampled = {name: choice.token_id for name, choice in result.choices.items()}
            end_s = time.monotonic()
            outcome = self.scheduler.finish_step(plan, sampled, now_s=end_s)
            report = self._report(plan, result, outcome, start_s, end_s)
            # First the token, then what becomes of its hand-off: the router hears them in order.
            self.control.tell(report)
            self._pass_on(outcome, report, end_s)
        for request_id in result.not_finite:
            self._tell_failed(
                request_id, "numeric", "the model's output is not a number; its weights or dtype?"
            )

    def _step_failed(self, plan: StepPlan, error: Exception) -> None:
        """A step that could not be computed costs its own requests, not the worker."""
        log.exception("step %d failed", plan.step, exc_info=error)
        ids = [work.request.request_id for work in plan.prefill]
        ids += [request.request_id for request in plan.decode]
        with self._work:
            for request_id in ids:
                self._after_cancel(self.scheduler.cancel(request_id), "its step failed")
            self.scheduler.finish_step(plan, {}, now_s=time.monotonic())
        for request_id in ids:
            self._tell_failed(request_id, "engine", f"a step on {self.config.box} failed: {error}")

    def _handoffs_of(self, plan: StepPlan) -> list[tuple[Outgoing, int, int]]:
        """Each hand-off in this step with the token range that it gets from it."""
        found: list[tuple[Outgoing, int, int]] = []
        with self._lock:
            for work in plan.prefill:
                outgoing = self._outgoing.get(work.request.request_id)
                if outgoing is None:
                    continue
                wanted = outgoing.target.cached_tokens
                if outgoing.place is None:
                    outgoing.place = self.runner.place(work.request)
                    # What this box had cached is there at once.
                    for layer in range(self.pool.shape.layers):
                        self.sender.layer_done(outgoing, layer, wanted, work.start)
                found.append((outgoing, max(work.start, wanted), work.start + work.tokens))
        return found

    def _pass_on(self, outcome: StepOutcome, report: StepReport, now_s: float) -> None:
        """Tells the sender which hand-offs are read to the end, or not wanted any more."""
        firsts = {token.request_id: token for token in report.tokens}
        for request_id in outcome.handing_over:
            outgoing = self._outgoing.get(request_id)
            if outgoing is not None:
                self.sender.prefilled(outgoing, firsts[request_id], now_s)
        for ended in outcome.ended:
            outgoing = self._outgoing.get(ended.request_id)
            if outgoing is not None:
                outgoing.wanted = False
                self.sender.give_up(outgoing, "the answer ended with its first token")

    def _report(
        self,
        plan: StepPlan,
        result: StepResult,
        outcome: StepOutcome,
        start_s: float,
        end_s: float,
    ) -> StepReport:
        pool = self.scheduler.pool
        event = StepEvent(
            box=self.config.box,
            step=plan.step,
            start_s=start_s,
            end_s=end_s,
            decode=tuple(request.request_id for request in plan.decode),
            prefill=tuple(
                PrefillSlice(
                    request_id=work.request.request_id,
                    start=work.start,
                    tokens=work.tokens,
                    last=work.last,
                )
                for work in plan.prefill
            ),
            context_tokens=plan.context_tokens,
            running=self.scheduler.running,
            waiting=self.scheduler.waiting,
            blocks_free=pool.blocks_available,
            blocks_total=pool.blocks_total,
        )
        return StepReport(
            event=event,
            tokens=tuple(
                Token(
                    request_id=token.request_id,
                    index=token.index,
                    token_id=token.token_id,
                    logprob=result.choices[token.request_id].logprob,
                    top_logprobs=result.choices[token.request_id].top_logprobs,
                )
                for token in outcome.tokens
            ),
            prefilled=tuple(
                PrefillDone(
                    request_id=one.request_id,
                    queue_s=one.queue_s,
                    prefill_s=one.prefill_s,
                    cached_tokens=one.cached_tokens,
                )
                for one in outcome.prefilled
            ),
            finished=tuple(
                Finished(request_id=ended.request_id, reason=ended.reason)
                for ended in outcome.ended
            ),
        )

    # ------------------------------------------------------------------ hand-offs

    def _arrived(self, arrived: Arrived) -> bool:
        """Receiver's thread: a hand-off is whole; False when its request is gone."""
        with self._work:
            if not self.scheduler.commit(arrived.request_id, arrived.first_token.token_id):
                return False
            self._work.notify()
        self.control.tell(
            Committed(request_id=arrived.request_id, bytes=arrived.bytes, tokens=arrived.tokens)
        )
        return True

    def _handoff_in_failed(self, request_id: str, why: str) -> None:
        """Receiver's thread: a hand-off to this box can't be used; nothing of it is kept."""
        with self._lock:
            self.scheduler.cancel(request_id)
        self._tell_failed(request_id, "handoff", why)

    def _handoff_out_ended(self, outgoing: Outgoing, result: HandoffResult) -> None:
        """Sender's thread: the peer has committed, or the hand-off is off."""
        with self._work:
            self._outgoing.pop(outgoing.request_id, None)
            self.scheduler.cancel(outgoing.request_id)
            self.scheduler.handoff_ended(outgoing.request_id)
            self._work.notify()
        if outgoing.wanted:
            self.control.tell(HandoffReport(event=result.event, why=result.why))

    def _tell_failed(self, request_id: str, kind: FailureKind, what: str) -> None:
        self.control.tell(Failed(request_id=request_id, kind=kind, what=what))

    # ------------------------------------------------------------------ telling

    def _ready(self) -> Ready:
        loaded = self.loaded
        return Ready(
            box=self.config.box,
            wire_version=WIRE_VERSION,
            fingerprint=loaded.fingerprint,
            fingerprint_fields=loaded.fields,
            model=loaded.name,
            max_context=loaded.max_context,
            block_tokens=self.config.block_tokens,
            blocks_total=self.scheduler.pool.blocks_total,
            kv_bytes_per_token=loaded.kv_shape.bytes_per_token,
            kv_endpoint=self.receiver.endpoint,
            public_key=self.keys.public,
            device=str(loaded.device),
            dtype=loaded.dtype,
            eos_token_ids=loaded.eos_token_ids,
        )

    def _status(self) -> WorkerStatus:
        power_w, power_why = self._power.read()
        others_cores, others_why = self._others.read()
        with self._lock:
            pool = self.scheduler.pool
            return WorkerStatus(
                box=self.config.box,
                clock_s=time.monotonic(),
                running=self.scheduler.running,
                waiting=self.scheduler.waiting,
                reserved=self.scheduler.reserved,
                blocks_free=pool.blocks_available,
                blocks_total=pool.blocks_total,
                prefix_blocks=pool.blocks_cached,
                power_w=power_w,
                power_why=power_why,
                rss_bytes=int(self._process.memory_info().rss),
                others_cores=others_cores,
                others_why=others_why,
            )


def _layer_notes(sender: Any, handoffs: list[tuple[Outgoing, int, int]]) -> Callable[[int], None]:
    def layer_done(layer: int) -> None:
        for outgoing, start, end in handoffs:
            sender.layer_done(outgoing, layer, start, end)

    return layer_done


def _refused(request_id: str, refusal: Refusal) -> Refused:
    return Refused(
        request_id=request_id,
        kind=refusal.kind,
        what=refusal.what,
        retry_after_s=refusal.retry_after_s,
    )


def _wrong_with(message: Submit | Reserve, vocab_size: int) -> str | None:
    """What a request asks for that can't be, None when nothing."""
    tokens = message.token_ids
    if not tokens or not 1 <= message.prompt_tokens <= len(tokens):
        return "an empty prompt"
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        return f"a token id outside the vocabulary of {vocab_size}"
    if len(tokens) - message.prompt_tokens >= message.sampling.max_tokens:
        return "no token is left to write"
    if not 0 < message.deadline_s < math.inf:
        return f"a deadline in {message.deadline_s} seconds"
    if (
        isinstance(message, Submit)
        and message.chunk_tokens is not None
        and message.chunk_tokens < 1
    ):
        return "a chunk of no tokens"
    if (
        isinstance(message, Submit)
        and message.handoff is not None
        and not 0 <= message.handoff.cached_tokens < len(tokens)
    ):
        return f"a hand-off from token {message.handoff.cached_tokens} of {len(tokens)}"
    return _wrong_sampling(message.sampling)


def _wrong_sampling(sampling: SamplingParams) -> str | None:
    numbers = {
        "temperature": (sampling.temperature, 0.0, 100.0),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "repetition_penalty": (sampling.repetition_penalty, 1e-3, 1e3),
        "presence_penalty": (sampling.presence_penalty, -100.0, 100.0),
        "frequency_penalty": (sampling.frequency_penalty, -100.0, 100.0),
    }
    for name, (value, low, high) in numbers.items():
        if not math.isfinite(value) or not low <= value <= high:
            return f"{name} {value} is not between {low:g} and {high:g}"
    return None


def _parent(pid: int | None) -> psutil.Process | None:
    """The process to live with; a process of the same number started later is not it."""
    if pid is None:
        return None
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess as error:
        raise ConfigError(f"parent_pid {pid}: there is no such process") from error


def _blocks_total(config: WorkerConfig, loaded: LoadedModel) -> int:
    from homesplit_engine.cache import blocks_that_fit

    if config.kv_blocks is not None:
        return config.kv_blocks
    free = psutil.virtual_memory().available
    if loaded.device.type == "cuda":
        import torch

        free = torch.cuda.mem_get_info(loaded.device)[0]
    blocks = blocks_that_fit(
        loaded.kv_shape,
        block_tokens=config.block_tokens,
        free_bytes=int(free * config.memory_fraction),
        most_tokens=config.max_batch_requests * loaded.max_context,
    )
    if blocks < 1:
        raise ConfigError(
            f"not one KV block of {config.block_tokens} tokens fits into "
            f"{config.memory_fraction:.0%} of the {free} bytes that are free"
        )
    return blocks


def _write_ready(path: Path, endpoints: WorkerEndpoints) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.write_bytes(msgspec.json.encode(endpoints))
    fresh.replace(path)


def _pin(config: WorkerConfig) -> None:
    """Before torch starts its threads: they inherit the cores."""
    if config.cpus is not None and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, config.cpus)
        except OSError as error:
            raise ConfigError(f"cpus {config.cpus}: can't be used: {error.strerror}") from error
    if config.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(config.threads)


def main(config_path: str, parent_pid: int | None = None) -> int:
    """Run one worker until it is told to stop, or `parent_pid` is gone; returns the exit code."""
    try:
        config = living_with(load(Path(config_path), WorkerConfig), parent_pid)
        keys = read_keys(Path(config.keys_file))
        _pin(config)
        worker = _started(config, keys)
    except Exception as error:
        known = isinstance(error, ConfigError | sockets.SocketError) or _is_model_error(error)
        if not known:
            raise
        print(f"homesplit worker: {error}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        worker.run()
    finally:
        worker.stop()
    return 0


def _started(config: WorkerConfig, keys: Keys) -> Worker:
    import torch

    from homesplit_engine.model import load_model

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    loaded = load_model(
        Path(config.model_dir), device=config.device, dtype=config.dtype, weights=config.weights
    )
    worker = Worker(config, keys, loaded, _blocks_total(config, loaded))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopper(worker))
    worker.start()
    _write_ready(Path(config.ready_file), worker.endpoints)
    return worker


def _stopper(worker: Worker) -> Callable[[int, object], None]:
    def stop(_number: int, _frame: object) -> None:
        worker.request_stop()

    return stop


def _is_model_error(error: Exception) -> bool:
    from homesplit_engine.model import ModelError

    return isinstance(error, ModelError)
