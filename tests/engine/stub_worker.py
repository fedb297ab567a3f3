"""A worker without a model: the real wire protocol over real closed sockets, settable latencies.

Its token at index i depends on the prompt and i alone, so every text can be foretold whatever
boxes it came from. `python -m tests.engine.stub_worker --config FILE` runs one as a process.
"""

from __future__ import annotations

import argparse
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import zmq
from homesplit_engine.config import Keys, WorkerAddress, WorkerConfig, WorkerEndpoints, load
from homesplit_engine.keys import read_keys
from homesplit_engine.records import PrefillSlice, StepEvent, TransferEvent, WorkerStatus
from homesplit_engine.router.health import NAME as HEALTH_NAME
from homesplit_engine.wire.messages import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    WIRE_VERSION,
    Ack,
    Cancel,
    Close,
    Committed,
    Envelope,
    Failed,
    Finished,
    Gone,
    HandoffReport,
    HandoffSecret,
    HandoffTarget,
    Hello,
    Ping,
    Pong,
    PrefillDone,
    Ready,
    Refused,
    Reserve,
    Reserved,
    SamplingParams,
    SendTo,
    StepReport,
    Stop,
    Submit,
    Token,
    ToRouter,
    decode_kv_head,
    decode_kv_message,
    decode_kv_reply,
    decode_to_worker,
    encode,
)
from homesplit_engine.wire.seal import Seal, new_seal_key
from homesplit_engine.wire.sockets import (
    CONTROL_DOMAIN,
    CONTROL_HWM,
    KV_DOMAIN,
    KV_HWM,
    Gatekeeper,
    bind,
    kv_connecting_socket,
    kv_listening_socket,
    listening_socket,
)

KV_BYTES_PER_TOKEN = 1000
TOP_TOKENS = 2


def answer_token(prompt: Sequence[int], index: int, low: int, high: int) -> int:
    """The token that every stub gives at `index` of the answer to `prompt`: in [low, high)."""
    return low + (sum(prompt) * 31 + index * 7 + index * index) % (high - low)


@dataclass(slots=True, kw_only=True)
class StubSettings:
    """How fast the stub is and what it does wrong; may be changed while it runs."""

    step_s: float = 0.0
    """Pause between two decode steps."""
    prefill_tokens_per_s: float = 1e6
    handoff_s: float = 0.0
    low: int = 3
    high: int = 90
    """Token ids are drawn from [low, high)."""
    eos: int = 2
    eos_after: int | None = None
    """Give the end token at this index."""
    script: tuple[int, ...] = ()
    """Give these tokens in turn in place of the usual ones."""
    max_context: int = 4096
    blocks_total: int = 1000
    fingerprint_fields: dict[str, str] = field(default_factory=lambda: {"dtype": "float32"})
    refuse: Literal["full", "too_long", "deadline", "bad_request"] | None = None
    fail: Literal["engine", "numeric", "out_of_blocks"] | None = None
    fail_at: int = 0
    """Fail instead of giving the token of this index."""
    handoff: Literal["works", "fails", "hangs"] = "works"
    deaf: bool = False
    """Reads nothing and says nothing, like a machine asleep."""
    mute_after: int | None = None
    """Go deaf by itself after giving a client the token of this index."""
    tokens_twice: bool = False
    """Say every token twice, as a careless resend would."""
    reserves: bool = True
    """Clients' reservations are answered; those that came meanwhile once it is True again."""
    pause_at: int | None = None
    """Give no client a token of this index or a later one until this is None again."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """One request that the stub holds."""

    request_id: str
    prompt: list[int]
    next_index: int
    sampling: SamplingParams
    ready_s: float
    arrived_s: float
    unread: int
    handoff: HandoffTarget | None = None
    handoff_follows: bool = False
    first: Token | None = None
    """The first token of one that was read and waits to be told where it goes."""
    handing_over: bool = False


@dataclass(slots=True, kw_only=True)
class _Handover:
    """A hand-off on its way out."""

    work: _Work
    target: HandoffTarget
    socket: zmq.Socket[Any]
    start_s: float
    send_at_s: float
    token: Token
    sent: bool = False


class StubWorker:
    """One stub in a thread of its own; `with` starts and ends it."""

    def __init__(self, box: str, keys: Keys, settings: StubSettings | None = None) -> None:
        self.box = box
        self.settings = settings or StubSettings()
        self.received: list[Any] = []
        """Every message from the router but pings."""
        self.cancelled: list[str] = []
        self._keys = keys
        self._control_port = 0
        self._kv_port = 0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._work: dict[str, _Work] = {}
        self._reserved: dict[str, tuple[_Work, Seal]] = {}
        self._unreserved: list[Reserve] = []
        self._password = secrets.token_urlsafe(32)
        self._outgoing: list[_Handover] = []
        self._steps = 0
        self._busy_until_s = 0.0
        self._next_step_s = 0.0
        self._router: bytes | None = None

    @property
    def held(self) -> int:
        """Requests, reservations and hand-offs that it still holds."""
        return len(self._work) + len(self._reserved) + len(self._outgoing)

    @property
    def paused(self) -> int:
        """Requests that have come to `pause_at` and stand there."""
        return sum(self._is_paused(work) for work in list(self._work.values()))

    @property
    def address(self) -> WorkerAddress:
        """How the router reaches it."""
        return WorkerAddress(
            box=self.box,
            control_endpoint=f"tcp://127.0.0.1:{self._control_port}",
            kv_endpoint=f"tcp://127.0.0.1:{self._kv_port}",
            public_key=self._keys.public,
        )

    @property
    def endpoints(self) -> WorkerEndpoints:
        """What a worker writes into its ready file."""
        address = self.address
        return WorkerEndpoints(
            box=self.box,
            pid=os.getpid(),
            control_endpoint=address.control_endpoint,
            kv_endpoint=address.kv_endpoint,
            public_key=address.public_key,
            fingerprint=self._fingerprint(),
        )

    def __enter__(self) -> StubWorker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen (again, on the same ports) with nothing held."""
        self._ending.clear()
        self._context = zmq.Context()
        peers = {"router": self._keys.allowed["router"]}
        self._gate = Gatekeeper(self._context, {CONTROL_DOMAIN: peers}, {KV_DOMAIN: self._password})
        self._control = listening_socket(
            self._context,
            keys=self._keys,
            domain=CONTROL_DOMAIN,
            max_bytes=MAX_MESSAGE_BYTES,
            hwm=CONTROL_HWM,
        )
        self._kv = kv_listening_socket(self._context, max_bytes=MAX_FRAME_BYTES, hwm=KV_HWM)
        self._control_port = _port(bind(self._control, "127.0.0.1", self._control_port))
        self._kv_port = _port(bind(self._kv, "127.0.0.1", self._kv_port))
        self._thread = threading.Thread(target=self._run, name=f"stub {self.box}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End as a killed process does: every connection closes, everything held is gone."""
        if self._thread is None:
            return
        self._ending.set()
        self._thread.join()
        self._thread = None
        self._gate.stop()
        self._context.destroy(linger=0)
        self._work.clear()
        self._reserved.clear()
        self._unreserved.clear()
        self._outgoing.clear()
        self._router = None

    def run_until_stopped(self) -> None:
        """Block until the router says Stop (as a process)."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _fingerprint(self) -> str:
        return ",".join(f"{k}={v}" for k, v in sorted(self.settings.fingerprint_fields.items()))

    # -------------------------------------------------------------- the loop

    def _run(self) -> None:
        while not self._ending.is_set():
            if self.settings.deaf:
                time.sleep(0.005)
                continue
            self._read(self._pause_s())
            while self.settings.reserves and self._unreserved:
                self._reserve(self._unreserved.pop(0))
            now_s = time.monotonic()
            self._hand_over(now_s)
            if self._work and now_s >= self._next_step_s:
                self._next_step_s = now_s + self.settings.step_s
                self._step(now_s)

    def _pause_s(self) -> float:
        if not self._work and not self._outgoing:
            return 0.02
        return min(0.02, max(0.0005, self._next_step_s - time.monotonic()))

    def _read(self, pause_s: float) -> None:
        poller = zmq.Poller()
        for socket in (self._control, self._kv, *(one.socket for one in self._outgoing)):
            poller.register(socket, zmq.POLLIN)
        for socket, _ in poller.poll(max(1, round(pause_s * 1000))):
            while not socket.closed and socket.poll(0):
                parts = socket.recv_multipart()
                if socket is self._control:
                    self._router = parts[0]
                    self._hear(decode_to_worker(parts[1]))
                elif socket is self._kv:
                    self._receive_kv(parts)
                else:
                    self._acknowledged(socket, parts)

    def _say(self, message: ToRouter) -> None:
        if self._router is not None:
            _tell(self._control, [self._router, encode(message)])

    def _hear(self, message: Any) -> None:
        if not isinstance(message, Ping):
            self.received.append(message)
        match message:
            case Hello():
                self._say(self._ready())
            case Ping():
                self._say(Pong(ping_id=message.ping_id, status=self._status()))
            case Submit():
                self._submitted(message)
            case SendTo():
                self._send_to(message)
            case Reserve():
                self._reserve_when_told(message)
            case Cancel():
                self._cancel(message.request_id)
            case Stop():
                self._ending.set()
            case _:
                pass

    def _ready(self) -> Ready:
        settings = self.settings
        return Ready(
            box=self.box,
            wire_version=WIRE_VERSION,
            fingerprint=self._fingerprint(),
            fingerprint_fields=settings.fingerprint_fields,
            model="stub",
            max_context=settings.max_context,
            block_tokens=16,
            blocks_total=settings.blocks_total,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            kv_endpoint=self.address.kv_endpoint,
            public_key=self._keys.public,
            device="none",
            dtype="float32",
            eos_token_ids=(settings.eos,),
        )

    def _status(self) -> WorkerStatus:
        return WorkerStatus(
            box=self.box,
            clock_s=time.monotonic(),
            running=len(self._work),
            waiting=0,
            reserved=len(self._reserved),
            blocks_free=self.settings.blocks_total - self.held,
            blocks_total=self.settings.blocks_total,
            power_why="a stub draws no power",
        )

    # -------------------------------------------------------------- requests

    def _refuses(self, request_id: str) -> bool:
        if self.settings.refuse is None:
            return False
        self._say(
            Refused(
                request_id=request_id,
                kind=self.settings.refuse,
                what=f"the stub {self.box} refuses: {self.settings.refuse}",
                retry_after_s=2.0,
            )
        )
        return True

    def _submitted(self, submit: Submit) -> None:
        if self._refuses(submit.request_id):
            return
        now_s = time.monotonic()
        tokens = len(submit.token_ids)
        begin_s = max(now_s, self._busy_until_s)
        self._busy_until_s = begin_s + tokens / self.settings.prefill_tokens_per_s
        self._work[submit.request_id] = _Work(
            request_id=submit.request_id,
            prompt=submit.token_ids[: submit.prompt_tokens],
            next_index=tokens - submit.prompt_tokens,
            sampling=submit.sampling,
            ready_s=self._busy_until_s,
            arrived_s=now_s,
            unread=tokens,
            handoff=submit.handoff,
            handoff_follows=submit.handoff_follows,
        )

    def _send_to(self, message: SendTo) -> None:
        work = self._work.get(message.request_id)
        if work is None or work.handoff is not None:
            return
        work.handoff = message.target
        if work.first is not None:
            self._begin_handover(work, message.target, work.first, time.monotonic())

    def _reserve_when_told(self, reserve: Reserve) -> None:
        """Keep room, or be asked again once `reserves` is True."""
        if self.settings.reserves or _is_own(reserve.request_id):
            self._reserve(reserve)
        else:
            self._unreserved.append(reserve)

    def _reserve(self, reserve: Reserve) -> None:
        if self._refuses(reserve.request_id):
            return
        reservation = f"{self.box}:{reserve.request_id}"
        secret = HandoffSecret(password=self._password, seal_key=new_seal_key())
        work = _Work(
            request_id=reserve.request_id,
            prompt=reserve.token_ids[: reserve.prompt_tokens],
            next_index=len(reserve.token_ids) - reserve.prompt_tokens + 1,
            sampling=reserve.sampling,
            ready_s=0.0,
            arrived_s=time.monotonic(),
            unread=0,
        )
        self._reserved[reservation] = (work, Seal(secret.seal_key))
        self._say(
            Reserved(
                request_id=reserve.request_id,
                reservation_id=reservation,
                cached_tokens=0,
                secret=secret,
            )
        )

    def _cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self._work.pop(request_id, None)
        self._unreserved = [one for one in self._unreserved if one.request_id != request_id]
        for name, (work, _) in list(self._reserved.items()):
            if work.request_id == request_id:
                del self._reserved[name]
        for outgoing in [one for one in self._outgoing if one.work.request_id == request_id]:
            outgoing.socket.close(linger=0)
            self._outgoing.remove(outgoing)

    def _token(self, work: _Work) -> Token:
        settings, index = self.settings, work.next_index
        if index == settings.eos_after and not work.sampling.ignore_eos:
            token_id = settings.eos
        elif settings.script:
            token_id = settings.script[index % len(settings.script)]
        else:
            token_id = answer_token(work.prompt, index, settings.low, settings.high)
        top = work.sampling.top_logprobs
        return Token(
            request_id=work.request_id,
            index=index,
            token_id=token_id,
            logprob=None if top is None else -0.5,
            top_logprobs=tuple((settings.low + n, -0.5 - n) for n in range(top or 0)),
        )

    def _step(self, now_s: float) -> None:
        """One step: a token for every request that is ready."""
        able = [
            work
            for work in self._work.values()
            if work.ready_s <= now_s and not work.handing_over and not self._is_paused(work)
        ]
        tokens: list[Token] = []
        finished: list[Finished] = []
        prefilled: list[PrefillDone] = []
        pieces: list[PrefillSlice] = []
        decode: list[str] = []
        for work in able:
            if self.settings.fail is not None and work.next_index >= self.settings.fail_at:
                del self._work[work.request_id]
                what = f"the stub fails: {self.settings.fail}"
                self._say(Failed(request_id=work.request_id, kind=self.settings.fail, what=what))
                continue
            token = self._token(work)
            tokens.append(token)
            if work.unread:
                pieces.append(_slice(work))
                prefilled.append(self._read_prompt(work, now_s))
            else:
                decode.append(work.request_id)
            work.next_index += 1
            self._after(work, token, finished, now_s)
        if tokens:
            self._report(now_s, tokens, prefilled, finished, pieces, decode)
        self._maybe_mute(tokens)

    def _is_paused(self, work: _Work) -> bool:
        at = self.settings.pause_at
        return at is not None and work.next_index >= at and not _is_own(work.request_id)

    def _read_prompt(self, work: _Work, now_s: float) -> PrefillDone:
        prefill_s = work.unread / self.settings.prefill_tokens_per_s
        work.unread = 0
        return PrefillDone(
            request_id=work.request_id,
            queue_s=max(0.0, now_s - work.arrived_s - prefill_s),
            prefill_s=prefill_s,
            cached_tokens=0,
        )

    def _after(self, work: _Work, token: Token, finished: list[Finished], now_s: float) -> None:
        """What follows a token: the end, a hand-off, or the next token."""
        stops = {self.settings.eos, *work.sampling.stop_token_ids}
        if token.token_id in stops and not work.sampling.ignore_eos:
            finished.append(Finished(request_id=work.request_id, reason="stop"))
        elif work.next_index >= work.sampling.max_tokens:
            finished.append(Finished(request_id=work.request_id, reason="length"))
        elif work.handoff is not None or work.handoff_follows:
            work.handing_over, work.first = True, token
            if work.handoff is not None:
                self._begin_handover(work, work.handoff, token, now_s)
            return
        else:
            return
        del self._work[work.request_id]

    def _report(
        self,
        now_s: float,
        tokens: list[Token],
        prefilled: list[PrefillDone],
        finished: list[Finished],
        pieces: list[PrefillSlice],
        decode: list[str],
    ) -> None:
        self._steps += 1
        read_s = sum(piece.tokens for piece in pieces) / self.settings.prefill_tokens_per_s
        event = StepEvent(
            box=self.box,
            step=self._steps,
            start_s=now_s - self.settings.step_s - read_s,
            end_s=now_s,
            decode=tuple(decode),
            prefill=tuple(pieces),
            running=len(self._work),
        )
        report = StepReport(
            event=event,
            tokens=tuple(tokens),
            prefilled=tuple(prefilled),
            finished=tuple(finished),
        )
        self._say(report)
        if self.settings.tokens_twice:
            self._say(StepReport(event=event, tokens=tuple(tokens)))

    def _maybe_mute(self, tokens: list[Token]) -> None:
        after = self.settings.mute_after
        clients = [token for token in tokens if not _is_own(token.request_id)]
        if after is not None and any(token.index >= after for token in clients):
            self.settings.deaf = True

    # -------------------------------------------------------------- hand-off

    def _begin_handover(
        self, work: _Work, target: HandoffTarget, token: Token, now_s: float
    ) -> None:
        socket = kv_connecting_socket(
            self._context,
            name=self.box,
            password=target.secret.password,
            max_bytes=MAX_FRAME_BYTES,
            hwm=KV_HWM,
        )
        # Each hand-off has a connection of its own here, so it may not take the box's name.
        socket.setsockopt(zmq.ROUTING_ID, f"{self.box}:{work.request_id}".encode()[:200])
        socket.connect(target.endpoint)
        self._outgoing.append(
            _Handover(
                work=work,
                target=target,
                socket=socket,
                start_s=now_s,
                send_at_s=now_s + self.settings.handoff_s,
                token=token,
            )
        )

    def _hand_over(self, now_s: float) -> None:
        for one in list(self._outgoing):
            if one.sent or now_s < one.send_at_s or self.settings.handoff == "hangs":
                continue
            if self.settings.handoff == "fails":
                self._handed_over(one, False, "the stub breaks its hand-offs")
                continue
            size = len(one.work.prompt) * KV_BYTES_PER_TOKEN
            close = Close(
                reservation_id=one.target.reservation_id,
                chunks=1,
                bytes=size,
                first_token=one.token,
            )
            envelope = Envelope(reservation_id=close.reservation_id, number=0, asks=True)
            seal = Seal(one.target.secret.seal_key)
            one.socket.send_multipart(seal.message(envelope, close, b"k" * min(size, 4096)))
            one.sent = True

    def _receive_kv(self, parts: list[bytes]) -> None:
        envelope = decode_kv_head(parts[1])
        if not isinstance(envelope, Envelope):
            return
        name = envelope.reservation_id
        work, seal = self._reserved.pop(name, (None, None))
        if work is None or seal is None:
            _tell(self._kv, [parts[0], encode(Gone(reservation_id=name))])
            return
        close = decode_kv_message(seal.open_message(envelope, parts[1:]))
        assert isinstance(close, Close)
        ack = Ack(reservation_id=name, committed=True)
        _tell(self._kv, [parts[0], *seal.answer(envelope, ack)])
        self._work[work.request_id] = work
        self._say(Committed(request_id=work.request_id, bytes=close.bytes, tokens=len(work.prompt)))

    def _acknowledged(self, socket: zmq.Socket[Any], parts: list[bytes]) -> None:
        one = next((one for one in self._outgoing if one.socket is socket), None)
        head = decode_kv_head(parts[0])
        if one is None:
            return
        if isinstance(head, Gone):
            self._handed_over(one, False, "no such reservation")
        else:
            seal = Seal(one.target.secret.seal_key)
            ack = decode_kv_reply(seal.open_answer(head, parts))
            self._handed_over(one, ack.committed, ack.why)

    def _handed_over(self, one: _Handover, committed: bool, why: str | None) -> None:
        self._outgoing.remove(one)
        one.socket.close(linger=0)
        self._work.pop(one.work.request_id, None)
        now_s = time.monotonic()
        event = TransferEvent(
            box_from=self.box,
            box_to=one.target.box,
            request_id=one.work.request_id,
            start_s=one.start_s,
            end_s=now_s,
            bytes=len(one.work.prompt) * KV_BYTES_PER_TOKEN,
            tokens=len(one.work.prompt),
            exposed_s=now_s - one.start_s,
            committed=committed,
        )
        self._say(HandoffReport(event=event, why=why))


def _is_own(request_id: str) -> bool:
    """Whether the router asks by itself, at a moment that no test chooses."""
    return request_id.startswith(HEALTH_NAME)


def _tell(socket: zmq.Socket[Any], parts: list[bytes]) -> None:
    """Say something to a peer, who may have gone meanwhile."""
    try:
        socket.send_multipart(parts)
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise


def _slice(work: _Work) -> PrefillSlice:
    return PrefillSlice(request_id=work.request_id, start=0, tokens=work.unread, last=True)


def _port(endpoint: str) -> int:
    return int(endpoint.rsplit(":", 1)[1])


def main() -> None:
    """Run one stub as a process of its own."""
    parser = argparse.ArgumentParser(prog="stub_worker")
    parser.add_argument("--config", required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--prefill-tokens-per-s", type=float, default=1e6)
    parser.add_argument("--low", type=int, default=3)
    parser.add_argument("--high", type=int, default=90)
    args = parser.parse_args()
    config = load(Path(args.config), WorkerConfig)
    settings = StubSettings(
        step_s=args.step_s,
        prefill_tokens_per_s=args.prefill_tokens_per_s,
        low=args.low,
        high=args.high,
    )
    worker = StubWorker(config.box, read_keys(Path(config.keys_file)), settings)
    worker.start()
    Path(config.ready_file).write_bytes(msgspec.json.encode(worker.endpoints))
    worker.run_until_stopped()


if __name__ == "__main__":
    main()
