"""All workers and all flights: who can be used, who carries what, what was measured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Generator, Sequence

import msgspec
import zmq.asyncio

from homesplit_engine.config import Keys, RouterConfig
from homesplit_engine.events import (
    EngineEvent,
    FaultSeen,
    ModeSwitched,
    RequestDone,
    StatusSeen,
    StepSeen,
    TransferSeen,
    WorkerBack,
    WorkerLost,
)
from homesplit_engine.policy import BoxView, Decision, Question, decide, resume
from homesplit_engine.records import (
    Fault,
    ModeSetting,
    ModeSwitch,
    Outcome,
    RequestRecord,
    StepEvent,
    TransferEvent,
)
from homesplit_engine.router.errors import ApiError, bad_request, busy
from homesplit_engine.router.feed import Feed
from homesplit_engine.router.flight import (
    BoxLost,
    Cancelled,
    Flight,
    GivenToken,
    Item,
    Order,
    Stage,
)
from homesplit_engine.router.link import WorkerLink
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.router.prefixes import PrefixMemory
from homesplit_engine.router.pressure import Pressure
from homesplit_engine.router.rates import Rates
from homesplit_engine.router.stalls import StepMemory, stall_causes
from homesplit_engine.status import RequestCounts, RouterStatus, Targets, WorkerSeen
from homesplit_engine.wire.messages import (
    Committed,
    Failed,
    HandoffReport,
    HandoffTarget,
    Pong,
    Ready,
    Refused,
    Reserved,
    StepReport,
    ToRouter,
    ToWorker,
)

log = logging.getLogger("homesplit.router")
KEPT_RECORDS = 10_000
MOST_RETRY_S = 60.0
SURE_SHARE = 0.8
"""A request is let in when its expected wait is within this share of its limit: waits scatter."""
LATE_REPORT_S = 1.0
"""How long a finished request's record waits for the sender's account of its hand-off."""


class Fleet:
    """The router's state: one per process, all on one event loop."""

    def __init__(self, config: RouterConfig, keys: Keys, metrics: Metrics) -> None:
        self.config = config
        self.detection_s = config.detection_s
        self.setting = config.setting
        self.rates = Rates(_told_links(config))
        self.pressure = Pressure()
        self.feed = Feed()
        self.metrics = metrics
        self.records: deque[RequestRecord] = deque(maxlen=KEPT_RECORDS)
        self.recorded = 0
        """Records ever made: the ring holds the last of them."""
        self._prefixes = PrefixMemory()
        self._steps = StepMemory()
        self._flights: dict[str, Flight] = {}
        """Every flight that has not ended, by request id."""
        self._by_wire_id: dict[str, Flight] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._usable = asyncio.Event()
        self._fingerprint: str | None = None
        self._turn = 0
        self._context = zmq.asyncio.Context()
        self.links = {
            address.box: WorkerLink(self._context, address, keys, self, config.detection_s)
            for address in config.workers
        }

    async def close(self) -> None:
        """End every connection."""
        for task in list(self._closing):
            task.cancel()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        self._context.destroy(linger=0)

    # -------------------------------------------------------------- who can be used

    def why_not(self, link: WorkerLink) -> str | None:
        """Why a worker is not used; None when it is."""
        if not link.alive or link.ready is None:
            return link.why
        if link.ready.fingerprint != self._fingerprint:
            return self._difference(link.ready)
        return None

    def usable(self) -> list[WorkerLink]:
        """The workers that requests may be placed on, in the order of the settings file."""
        return [link for link in self.links.values() if self._is_usable(link)]

    def _is_usable(self, link: WorkerLink) -> bool:
        return link.alive and link.ready is not None and link.ready.fingerprint == self._fingerprint

    def ready(self) -> Ready | None:
        """What the usable workers hold; None when there is none."""
        return next((link.ready for link in self.usable()), None)

    def _difference(self, ready: Ready) -> str:
        """Names the fields in which a worker differs from those in use."""
        peer = self.ready()
        if peer is None:
            return "its fingerprint differs from that of the workers in use"
        names = sorted({*ready.fingerprint_fields, *peer.fingerprint_fields})
        mine, theirs = ready.fingerprint_fields, peer.fingerprint_fields
        told = [
            f"{name} is {mine.get(name, 'absent')} here and {theirs.get(name, 'absent')} there"
            for name in names
            if mine.get(name) != theirs.get(name)
        ]
        return f"never paired with {peer.box}: {'; '.join(told) or 'the fingerprints differ'}"

    def _choose_fingerprint(self) -> None:
        """The first worker in the settings file's order that answers sets what is served.

        It stays while any worker with it lives, so that a stranger coming up changes nothing.
        """
        alive = [link.ready for link in self.links.values() if link.alive and link.ready]
        if alive and all(ready.fingerprint != self._fingerprint for ready in alive):
            self._fingerprint = alive[0].fingerprint

    def on_ready(self, link: WorkerLink) -> None:
        """A worker answers (again)."""
        self._choose_fingerprint()
        self._prefixes.forget(link.box)
        self.feed.tell(WorkerBack(box=link.box, at_s=time.monotonic()))
        why = self.why_not(link)
        log.info("%s: %s", link.box, f"not used: {why}" if why else "taken in")
        if why:
            self.fault(link.box, "fingerprint", f"{link.box} is not used: {why}")
            return
        self._usable.set()

    def on_lost(self, link: WorkerLink, why: str) -> None:
        """A worker stopped answering: whoever was on it goes on elsewhere."""
        log.warning("%s: lost: %s", link.box, why)
        self.feed.tell(WorkerLost(box=link.box, at_s=time.monotonic()))
        self.fault(link.box, "worker_lost", f"{link.box} was lost: {why}")
        self._choose_fingerprint()
        self._prefixes.forget(link.box)
        if not self.usable():
            self._usable.clear()
        for flight in list(self._flights.values()):
            flight.inbox.put_nowait((link.box, "", BoxLost(why=why)))

    async def until_usable(self, timeout_s: float) -> None:
        """Return when a box can be used, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._usable.wait()
                # A flight may want a box of its own kind that isn't there yet.
                await asyncio.sleep(min(0.05, timeout_s))

    # -------------------------------------------------------------- hearing

    def on_message(self, link: WorkerLink, message: ToRouter) -> None:
        """One message of a living worker."""
        match message:
            case StepReport():
                self._step(link, message)
            case Pong():
                self.feed.tell(StatusSeen(status=message.status))
            case HandoffReport():
                self.rates.learn_transfer(message.event)
                self.metrics.handoff(message.event)
                self.feed.tell(
                    TransferSeen(event=_plain_transfer(message.event), offset_s=_offset(link))
                )
                self._deliver(link.box, message.event.request_id, message)
            case Reserved() | Refused() | Committed() | Failed():
                self._deliver(link.box, message.request_id, message)
            case Ready():
                pass

    def _step(self, link: WorkerLink, report: StepReport) -> None:
        self.rates.learn_step(report.event)
        event, offset_s = _plain_step(report.event), _offset(link)
        self._steps.remember(event, offset_s)
        self.feed.tell(StepSeen(event=event, offset_s=offset_s))
        ends = {finished.request_id: finished.reason for finished in report.finished}
        for done in report.prefilled:
            self._prompt_read(link.box, done.request_id)
            self._deliver(link.box, done.request_id, done)
        for token in report.tokens:
            finish = None
            if token.request_id in ends and token is _last(report, token.request_id):
                finish = ends.pop(token.request_id)
            self._deliver(link.box, token.request_id, GivenToken(token, finish))
        for request_id, reason in ends.items():
            self._deliver(link.box, request_id, GivenToken(None, reason))

    def _deliver(self, box: str, wire_id: str, item: Item) -> None:
        flight = self._by_wire_id.get(wire_id)
        if flight is None:
            return
        if flight.ended and isinstance(item, HandoffReport):
            flight.note_transfer(item)
        flight.inbox.put_nowait((box, wire_id, item))

    def _prompt_read(self, box: str, wire_id: str) -> None:
        flight = self._by_wire_id.get(wire_id)
        if flight is None:
            return
        order = flight.order
        self._prefixes.remember(box, order.prefix)
        if order.internal or not any(
            other.waiting for other in self._flights.values() if other is not flight
        ):
            return  # nobody stood behind it, so it tells nothing of a queue
        self.pressure.learn(
            received_s=order.received_s,
            prompt_tokens=len(order.token_ids),
            now_s=time.monotonic(),
        )

    # -------------------------------------------------------------- what a flight asks

    def place(self, flight: Flight) -> Decision | None:
        """Where a new flight goes; None when no box can be used."""
        self._turn += 1
        views = self._views(flight)
        decision = decide(
            flight.order.setting, views, self.rates.link_bytes_per_s, self._ask(flight), self._turn
        )
        if decision is not None:
            flight.fingerprint = self._fingerprint
        return decision

    def place_again(self, flight: Flight, reason: str, avoid: str | None) -> Decision | None:
        """Where a flight that lost its box goes on; None when no box of its kind can be used."""
        if flight.fingerprint != self._fingerprint:
            return None
        return resume(flight.order.setting, self._views(flight), reason, avoid)

    def _ask(self, flight: Flight) -> Question:
        ready = self.ready()
        return Question(
            prompt_tokens=len(flight.order.token_ids),
            max_tokens=flight.order.sampling.max_tokens,
            expected_output_tokens=self.rates.output_tokens,
            kv_bytes_per_token=ready.kv_bytes_per_token if ready else None,
        )

    def _views(self, asking: Flight) -> list[BoxView]:
        """The usable boxes as the policy sees them."""
        return [self._view(link.box, asking) for link in self.usable()]

    def _view(self, box: str, asking: Flight) -> BoxView:
        requests = decoding = pending = sending = 0
        for flight in self._flights.values():
            attempt = flight.attempt
            if attempt is None or flight is asking or box not in attempt.boxes:
                continue
            requests += 1
            if attempt.decision.decode_box == box and attempt.stage is Stage.WRITING:
                decoding += 1
            if attempt.decision.prefill_box == box:
                pending += attempt.unread_tokens
                sending += _still_to_send(flight)
        link = self.links[box]
        return BoxView(
            box=box,
            requests=requests,
            decoding=decoding,
            pending_prefill_tokens=pending,
            cached_tokens=self._prefixes.cached_tokens(box, asking.order.prefix),
            prefill_tokens_per_s=self.rates.prefill_tokens_per_s.get(box),
            decode_step_s=self.rates.decode_step_s.get(box),
            handing_over_tokens=sending,
            free_tokens=link.status.blocks_free * link.ready.block_tokens
            if link.status is not None and link.ready is not None
            else None,
        )

    def target(self, box: str, reserved: Reserved) -> HandoffTarget | None:
        """The hand-off address of a box that reserved room; None when it is gone."""
        link = self.links[box]
        if self.why_not(link) is not None or link.ready is None:
            return None
        return HandoffTarget(
            reservation_id=reserved.reservation_id,
            box=box,
            endpoint=link.address.kv_endpoint,
            public_key=link.address.public_key,
            fingerprint=link.ready.fingerprint,
            cached_tokens=reserved.cached_tokens,
        )

    def send(self, box: str, message: ToWorker) -> bool:
        """Whether the message was handed over for a living worker."""
        link = self.links[box]
        return link.alive and link.send(message)

    def cancel(self, box: str, wire_id: str) -> None:
        """Have a worker forget an attempt."""
        self.links[box].cancel(wire_id)

    def listen(self, wire_id: str, flight: Flight) -> None:
        """Bring a flight what is said about this wire id."""
        self._by_wire_id[wire_id] = flight

    def unlisten(self, wire_id: str) -> None:
        """Drop what is still said about this wire id."""
        self._by_wire_id.pop(wire_id, None)

    def expected_handoff_s(self, decision: Decision, tokens: int) -> float | None:
        """How long a hand-off should take beside the others; None when never measured."""
        rate = self.rates.link_bytes_per_s.get((decision.prefill_box, decision.decode_box))
        ready = self.links[decision.decode_box].ready
        if not rate or ready is None:
            return None
        sharing = sum(
            flight.attempt is not None
            and flight.attempt.decision.kind == "split"
            and flight.attempt.stage in (Stage.READING, Stage.HANDING_OVER)
            for flight in self._flights.values()
        )
        return tokens * ready.kv_bytes_per_token / rate * max(1, sharing)

    def usable_boxes(self) -> int:
        """How many boxes can be used."""
        return len(self.usable())

    def fault(self, box: str | None, kind: str, sentence: str) -> None:
        """Tell the watchers of a fault."""
        self.metrics.faults.labels(self.config.model_name, kind).inc()
        fault = Fault(at_s=time.monotonic(), box=box, kind=kind, sentence=sentence)
        self.feed.tell(FaultSeen(fault=fault))

    # -------------------------------------------------------------- flights

    def counts(self) -> RequestCounts:
        """Requests writing an answer, and before their first token."""
        waiting = sum(flight.waiting for flight in self._flights.values())
        return RequestCounts(running=len(self._flights) - waiting, waiting=waiting)

    def admit(
        self, requests: int, prompt_tokens: int = 0, first_token_s: float | None = None
    ) -> None:
        """Raise the 429 when so many more requests would overfill the queue or come too late.

        `first_token_s`: when the client gives up; the settings' own limit always holds.
        """
        waiting = self.counts().waiting
        if waiting + requests > self.config.max_waiting:
            raise busy(
                f"{waiting} requests wait for their first token already, the most that is let in "
                f"is {self.config.max_waiting}. Try again later.",
                retry_after_s=self._drain_s(),
            )
        limits = [s for s in (first_token_s, self.config.first_token_deadline_s) if s is not None]
        ahead = self._tokens_waiting()
        wait_s = self.pressure.wait_s(ahead + prompt_tokens)
        # With nobody ahead nothing is gained by refusing, however slow the boxes are.
        if limits and ahead and wait_s is not None and wait_s > SURE_SHARE * min(limits):
            raise busy(
                f"The first token would come after about {wait_s:.1f} s, behind {waiting} others; "
                f"the limit is {min(limits):g} s. Try again later.",
                retry_after_s=min(MOST_RETRY_S, wait_s - SURE_SHARE * min(limits)),
            )

    def _tokens_waiting(self) -> int:
        """Prompt tokens of the requests that still wait for their first token."""
        return sum(
            len(flight.order.token_ids)
            for flight in self._flights.values()
            if flight.waiting and not flight.order.internal
        )

    def _drain_s(self) -> float:
        """How long the prompts now waiting take, as measured; else one second."""
        return min(MOST_RETRY_S, max(1.0, self.pressure.wait_s(self._tokens_waiting()) or 1.0))

    def is_flying(self, request_id: str) -> bool:
        """Whether a request of this id has not ended."""
        return request_id in self._flights

    @contextlib.contextmanager
    def flying(self, order: Order) -> Generator[Flight]:
        """A flight that is cancelled, ended and recorded whatever happens inside."""
        flight = Flight(self, order)
        self._flights[order.request_id] = flight
        outcome: Outcome = "cancelled"
        error: str | None = None
        try:
            yield flight
            outcome = "completed"
        except ApiError as failure:
            error = failure.message
            outcome = _outcome(failure, flight)
            raise
        except (asyncio.CancelledError, ConnectionError, GeneratorExit):
            error = "the client went away"
            raise
        except Exception as failure:
            outcome, error = "failed", f"{type(failure).__name__}: {failure}"
            raise
        finally:
            del self._flights[order.request_id]
            flight.end()
            self._close(flight, outcome, error)

    def _close(self, flight: Flight, outcome: Outcome, error: str | None) -> None:
        """Record now, or a little later when the hand-off's account is still on its way."""
        if outcome == "completed" and flight.awaits_report:
            task = asyncio.create_task(self._record_later(flight, outcome, error))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        else:
            self._record(flight, outcome, error)

    async def _record_later(self, flight: Flight, outcome: Outcome, error: str | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_REPORT_S):
                await flight.reported.wait()
        self._record(flight, outcome, error)

    def _record(self, flight: Flight, outcome: Outcome, error: str | None) -> None:
        if flight.attempt is not None:
            self.unlisten(flight.attempt.wire_id)
        if flight.order.internal:
            return
        record = flight.record(outcome, error)
        if outcome == "completed":
            self.rates.learn_answer(record.output_tokens)
        self.note(record)

    def note(self, record: RequestRecord) -> None:
        """Keep a record and tell it."""
        self.records.append(record)
        self.recorded += 1
        target_s = self.config.tpot_target_s
        causes = stall_causes(record, target_s, self._steps) if target_s is not None else {}
        self.metrics.request(record, causes)
        self.feed.tell(RequestDone(record=record))

    def cancel_request(self, request_id: str) -> bool:
        """End a request from outside; False when there is none of this id."""
        flights = [
            flight
            for known, flight in self._flights.items()
            if known == request_id or known.startswith(f"{request_id}/")
        ]
        for flight in flights:
            flight.inbox.put_nowait(("", "", Cancelled()))
        return bool(flights)

    # -------------------------------------------------------------- mode and status

    def switch(self, setting: ModeSetting, began_s: float) -> ModeSwitch:
        """Put another policy in force for requests to come; raises ApiError 400."""
        check_setting(setting, tuple(self.links))
        self.setting = setting
        now_s = time.monotonic()
        switch = ModeSwitch(at_s=now_s, setting=setting, took_s=now_s - began_s)
        self.feed.tell(ModeSwitched(switch=switch))
        return switch

    def snapshot(self) -> list[EngineEvent]:
        """What a new watcher has to know first."""
        now_s = time.monotonic()
        events: list[EngineEvent] = []
        for link in self.links.values():
            if link.alive:
                events.append(WorkerBack(box=link.box, at_s=now_s))
            else:
                events.append(WorkerLost(box=link.box, at_s=now_s))
            if link.status is not None:
                events.append(StatusSeen(status=link.status))
        return events

    def status(self) -> RouterStatus:
        """Everything that is known now."""
        return RouterStatus(
            model=self.config.model_dir,
            model_name=self.config.model_name,
            fingerprint=self._fingerprint,
            setting=self.setting,
            loopback=self.config.loopback,
            targets=Targets(ttft_s=self.config.ttft_target_s, tpot_s=self.config.tpot_target_s),
            workers=tuple(self._seen(link) for link in self.links.values()),
            requests=self.counts(),
            clock_s=time.monotonic(),
        )

    def _seen(self, link: WorkerLink) -> WorkerSeen:
        why = self.why_not(link)
        return WorkerSeen(
            box=link.box,
            alive=link.alive,
            usable=why is None,
            why=why,
            ready=link.ready,
            status=link.status,
            clock_offset_s=link.clock.offset_s,
            clock_error_s=link.clock.error_s,
            prefill_tokens_per_s=self.rates.prefill_tokens_per_s.get(link.box),
            decode_step_s=self.rates.decode_step_s.get(link.box),
        )


def check_setting(setting: ModeSetting, boxes: Sequence[str]) -> None:
    """Raise ApiError 400 when a setting can't be meant for these boxes."""
    for name, box in (("prefill_box", setting.prefill_box), ("decode_box", setting.decode_box)):
        if box is not None and box not in boxes:
            raise bad_request(
                f"There is no box {box[:80]!r} here; the boxes are {', '.join(boxes)}.", param=name
            )
    if not 1 <= setting.chunk_tokens <= 2**20:
        raise bad_request("chunk_tokens must be at least 1.", param="chunk_tokens")
    if setting.mode == "split" and len(boxes) < 2:
        raise bad_request("split needs two boxes, and this deployment has one.", param="mode")
    if (
        setting.mode == "split"
        and setting.prefill_box is not None
        and setting.prefill_box == setting.decode_box
    ):
        raise bad_request("split needs two different boxes.", param="decode_box")


def _outcome(failure: ApiError, flight: Flight) -> Outcome:
    if failure.code == "cancelled":
        return "cancelled"
    return "failed" if flight.token_s or failure.status in (500, 504) else "rejected"


def _told_links(config: RouterConfig) -> dict[tuple[str, str], float]:
    """The probe's link rate for every pair of boxes; empty when none was given."""
    rate = config.link_bytes_per_s
    boxes = [address.box for address in config.workers]
    return {(a, b): rate for a in boxes for b in boxes if a != b} if rate else {}


def _still_to_send(flight: Flight) -> int:
    """Prompt tokens of a split request that is not committed yet."""
    attempt = flight.attempt
    if attempt is None or attempt.decision.kind != "split" or attempt.stage is Stage.WRITING:
        return 0
    return len(flight.order.token_ids)


def _offset(link: WorkerLink) -> float:
    # Before the first ping there is no offset; steps only come after a Submit, long after it.
    return link.clock.offset_s or 0.0


def _last(report: StepReport, request_id: str) -> object:
    """The last token of a request in a report."""
    return next(token for token in reversed(report.tokens) if token.request_id == request_id)


def _known_as(wire_id: str) -> str:
    """The request id behind a wire id: later attempts carry `+n`."""
    return wire_id.partition("+")[0]


def _plain_step(event: StepEvent) -> StepEvent:
    """The step with request ids in place of wire ids."""
    if not any("+" in wire_id for wire_id in event.decode) and not any(
        "+" in piece.request_id for piece in event.prefill
    ):
        return event
    return msgspec.structs.replace(
        event,
        decode=tuple(_known_as(wire_id) for wire_id in event.decode),
        prefill=tuple(
            msgspec.structs.replace(piece, request_id=_known_as(piece.request_id))
            for piece in event.prefill
        ),
    )


def _plain_transfer(event: TransferEvent) -> TransferEvent:
    """The hand-off with its request id in place of the wire id."""
    return msgspec.structs.replace(event, request_id=_known_as(event.request_id))
