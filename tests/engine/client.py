"""A small router for tests: starts real worker processes and speaks their control protocol."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq
from homesplit_engine.config import Keys, WorkerConfig, WorkerEndpoints, load
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.records import KvWire
from homesplit_engine.wire import sockets
from homesplit_engine.wire.messages import (
    MAX_MESSAGE_BYTES,
    Failed,
    HandoffReport,
    HandoffTarget,
    Hello,
    Ping,
    Pong,
    Ready,
    Refused,
    Reserve,
    Reserved,
    SamplingParams,
    StepReport,
    Submit,
    Token,
    ToRouter,
    ToWorker,
    decode_to_router,
    encode,
)

from tests.engine.nursery import nursery

START_S = 150.0
ANSWER_S = 90.0
END_S = 60.0
"""A worker that is told to stop has ended by then, also where it hardly gets a core."""
_M = TypeVar("_M")


class WorkerProcess:
    """One worker process and the router's connection to it."""

    def __init__(
        self,
        folder: Path,
        keys: Keys,
        router: Keys,
        model: Path,
        *,
        run: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        """`run` starts the engine's program another way than by forking who has loaded it."""
        self.box = keys.name
        keys_file = folder / f"{self.box}.keys"
        self._ready_file = folder / f"{self.box}.ready"
        write_keys(keys_file, keys)
        fields: dict[str, Any] = {"threads": 1, "kv_blocks": 64, "block_tokens": 8} | settings
        config = WorkerConfig(
            box=self.box,
            model_dir=str(model),
            keys_file=str(keys_file),
            ready_file=str(self._ready_file),
            **fields,
        )
        config_file = folder / f"{self.box}.json"
        config_file.write_bytes(msgspec.json.encode(config))
        words = ("worker", "--config", str(config_file))
        self.process = (
            nursery().start(*words, folder=folder, name=self.box)
            if run is None
            else subprocess.Popen([sys.executable, *run, *words], stderr=subprocess.PIPE, text=True)
        )
        self._router = router
        self._context = zmq.Context()
        self.heard: list[ToRouter] = []
        self.ready: Ready | None = None

    def connect(self) -> Ready:
        """Waits for the ready file, connects, greets."""
        until = time.monotonic() + START_S
        while not self._ready_file.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.box} ended: {self.process.communicate()[1]}")
            if time.monotonic() > until:
                raise TimeoutError(f"{self.box} was not ready within {START_S} s")
            time.sleep(0.02)
        self.endpoints = load(self._ready_file, WorkerEndpoints)
        self.socket = sockets.connecting_socket(
            self._context,
            keys=self._router,
            server_key=self.endpoints.public_key,
            max_bytes=MAX_MESSAGE_BYTES,
            hwm=1000,
        )
        self.socket.connect(self.endpoints.control_endpoint)
        self.send(Hello())
        self.ready = self.wait(Ready)
        return self.ready

    def send(self, message: ToWorker) -> None:
        """Sends one message."""
        self.socket.send(encode(message))

    def wait(
        self,
        kind: type[_M],
        where: Callable[[_M], bool] = lambda _: True,
        seconds: float = ANSWER_S,
    ) -> _M:
        """The next message of a kind; all that comes is also kept in `heard`."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            if left <= 0 or not self.socket.poll(int(left * 1000) + 1):
                raise TimeoutError(f"{self.box}: no {kind.__name__}; heard {self.heard[-3:]}")
            message = decode_to_router(self.socket.recv())
            self.heard.append(message)
            if isinstance(message, kind) and where(message):
                return message

    def drain(self) -> None:
        """Takes in whatever has come."""
        while self.socket.poll(0):
            self.heard.append(decode_to_router(self.socket.recv()))

    def first_token(self, request_id: str) -> int:
        """The first token heard of a request, which may still be on its way."""
        while not self.tokens(request_id):
            self.wait(StepReport)
        return self.tokens(request_id)[0].token_id

    def handoff_report(self, request_id: str) -> HandoffReport:
        """What became of a request's hand-off from here."""
        for message in self.heard:
            if isinstance(message, HandoffReport) and message.event.request_id == request_id:
                return message
        return self.wait(HandoffReport, lambda m: m.event.request_id == request_id)

    def tokens(self, request_id: str) -> list[Token]:
        """Every token heard of a request."""
        return [
            token
            for report in self.heard
            if isinstance(report, StepReport)
            for token in report.tokens
            if token.request_id == request_id
        ]

    def finish(self, request_id: str) -> list[int]:
        """Waits until a request has finished here; its token ids."""
        self._until_ended(request_id)
        return [token.token_id for token in self.tokens(request_id)]

    def _until_ended(self, request_id: str) -> None:
        def ends(message: object) -> bool:
            if isinstance(message, Failed | Refused) and message.request_id == request_id:
                raise AssertionError(str(message))
            return isinstance(message, StepReport) and any(
                f.request_id == request_id for f in message.finished
            )

        if not any(ends(message) for message in self.heard):
            self.wait(object, ends)

    def blocks_free(self) -> int:
        """How many blocks the worker says are free now."""
        self.send(Ping(ping_id=len(self.heard)))
        return self.wait(Pong).status.blocks_free

    def has_heard(self) -> None:
        """Waits until the worker has dealt with all that was sent before."""
        self.blocks_free()

    def wait_until_free(self, seconds: float = ANSWER_S) -> None:
        """Waits until every block of the worker is free again."""
        until = time.monotonic() + seconds
        while (free := self.blocks_free()) != self.total:
            if time.monotonic() > until:
                raise AssertionError(f"{self.box}: {free} of {self.total} blocks free")
            time.sleep(0.02)

    @property
    def total(self) -> int:
        """All blocks of the worker."""
        assert self.ready is not None
        return self.ready.blocks_total

    def stop(self) -> None:
        """Ends the process."""
        self._context.destroy(linger=0)
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=END_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


class Pair:
    """Two workers, A and B, and what a router does with them."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        model_b: Path | None = None,
        *,
        cpus_of: Mapping[str, tuple[int, ...]] | None = None,
        **settings: Any,
    ) -> None:
        keys = make_keys(["A", "B"])
        self.keys = keys
        each: dict[str, dict[str, Any]] = {
            box: settings | {"cpus": (cpus_of or {}).get(box)} for box in "AB"
        }
        self.a = WorkerProcess(folder, keys["A"], keys["router"], model, **each["A"])
        self.b = WorkerProcess(folder, keys["B"], keys["router"], model_b or model, **each["B"])
        self.a.connect()
        self.b.connect()

    def stop(self) -> None:
        """Ends both."""
        self.a.stop()
        self.b.stop()

    def reserve(self, request_id: str, prompt: list[int], **changes: Any) -> Reserved:
        """Asks B to keep room for a request that A reads."""
        self.b.send(reserve(request_id, prompt, **changes))
        return self.b.wait(Reserved, lambda m: m.request_id == request_id)

    def target(self, reserved: Reserved, kv_wire: KvWire = "same") -> HandoffTarget:
        """Where A hands the request over to."""
        return HandoffTarget(
            reservation_id=reserved.reservation_id,
            box="B",
            endpoint=self.b.endpoints.kv_endpoint,
            secret=reserved.secret,
            fingerprint=self.b.endpoints.fingerprint,
            cached_tokens=reserved.cached_tokens,
            kv_wire=kv_wire,
        )

    def text(self, request_id: str) -> list[int]:
        """All token ids of a split request: A's first and B's rest."""
        rest = self.b.finish(request_id)
        return [self.a.first_token(request_id), *rest]

    def split(
        self,
        request_id: str,
        prompt: list[int],
        chunk: int | None,
        kv_wire: KvWire = "same",
        **sampling: Any,
    ) -> Reserved:
        """A reads, B writes."""
        reserved = self.reserve(request_id, prompt, kv_wire=kv_wire, **sampling)
        target = self.target(reserved, kv_wire)
        self.a.send(submit(request_id, prompt, chunk_tokens=chunk, handoff=target, **sampling))
        return reserved


def sampling_of(**sampling: Any) -> SamplingParams:
    """Greedy, six tokens, unless said otherwise."""
    settings: dict[str, Any] = {"max_tokens": 6} | sampling
    return SamplingParams(**settings)


def submit(
    request_id: str,
    prompt: list[int],
    *,
    chunk_tokens: int | None = 12,
    handoff: HandoffTarget | None = None,
    handoff_follows: bool = False,
    deadline_s: float = 60.0,
    prompt_tokens: int | None = None,
    **sampling: Any,
) -> Submit:
    """A Submit with the tests' defaults."""
    return Submit(
        request_id=request_id,
        token_ids=prompt,
        prompt_tokens=len(prompt) if prompt_tokens is None else prompt_tokens,
        sampling=sampling_of(**sampling),
        chunk_tokens=chunk_tokens,
        deadline_s=deadline_s,
        handoff=handoff,
        handoff_follows=handoff_follows,
    )


def reserve(
    request_id: str,
    prompt: list[int],
    *,
    deadline_s: float = 60.0,
    kv_wire: KvWire = "same",
    **sampling: Any,
) -> Reserve:
    """A Reserve with the tests' defaults."""
    return Reserve(
        request_id=request_id,
        token_ids=prompt,
        prompt_tokens=len(prompt),
        sampling=sampling_of(**sampling),
        deadline_s=deadline_s,
        from_box="A",
        kv_wire=kv_wire,
    )
