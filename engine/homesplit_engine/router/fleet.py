"""All workers and all flights: who can be used, who carries what, what was measured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Generator

import msgspec
import zmq.asyncio
from msgspec import Struct

from homesplit_engine.config import Keys, RouterConfig
from homesplit_engine.events import (
    FaultSeen,
    ModeSwitched,
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
    WorkerStatus,
)
from homesplit_engine.router.admission import Admission, Ahead
from homesplit_engine.router.attempt import BoxLost, Cancelled, GivenToken, Item, Order, Stopping
from homesplit_engine.router.board import Board
from homesplit_engine.router.book import Book, outcome_of
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.feed import Feed
from homesplit_engine.router.fingerprints import difference
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.handover import Way
from homesplit_engine.router.link import WorkerLink
from homesplit_engine.router.metrics import Metrics
from homesplit_engine.router.prefixes import PrefixMemory
from homesplit_engine.router.pressure import Pressure
from homesplit_engine.router.rates import Rates
from homesplit_engine.router.rooms import Rooms
from homesplit_engine.router.setting import check_setting
from homesplit_engine.router.stalls import StepMemory
from homesplit_engine.router.watch import Watch
from homesplit_engine.router.wire_ids import plain_step, plain_transfer
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
ROUTER_ENDED = "router_ended"
FAIR_ANSWER = 128
"""Tokens that an answer is taken to have before any has ended."""
_NEWS_S = {ROUTER_ENDED: 300.0}
"""What is over when it is told: for so long it is told to those whose connection it broke."""


class Held(Struct, frozen=True, kw_only=True):
    """How many tokens of one prompt and answer the workers hold that are served.

    One that is away for a moment counts: it may be back before an answer ends.
    """

    least: int
    """The smallest."""
    now: int
    """The largest of those that can be used now."""
    most: int
    """The largest of all."""


class Fleet:
    """The router's state: one per process, all on one event loop."""

    def __init__(self, config: RouterConfig, keys: Keys, metrics: Metrics) -> None:
        self.config = config
        self.detection_s = config.detection_s
        self.setting = config.setting
        self.rates = Rates(_told_links(config))
        self.feed = Feed()
        self.metrics = metrics
        self.board = Board()
        self._pressure = Pressure()
        self._box_pressure = {address.box: Pressure() for address in config.workers}
        self._standing: dict[tuple[str | None, str], Fault] = {}
        """Faults that last, by box and kind."""
        self.watch = Watch(self.stand, self.stand_down)
        self.admission = Admission(
            config, self.board, self._pressure, self._wait_there, time.monotonic
        )
        self._prefixes = PrefixMemory()
        self._rooms = Rooms()
        self._steps = StepMemory()
        self.book = Book(
            self.feed, metrics, self._steps, self.board, self.rates, config.tpot_target_s
        )
        self._usable = asyncio.Event()
        self.fingerprint: str | None = None
        """Of the workers in use; None before the first one answers."""
        self._settled_s = time.monotonic() + config.detection_s
        """From then on what is served stays; sooner once a client was served."""
        self._turn = 0
        self._context = zmq.asyncio.Context()
        self.links = {
            address.box: WorkerLink(self._context, address, keys, self, config.detection_s)
            for address in config.workers
        }

    async def close(self) -> None:
        """End every connection."""
        self.book.close()
        await asyncio.gather(*(link.close() for link in self.links.values()))
        self._context.destroy(linger=0)

    # -------------------------------------------------------------- who can be used

    def why_not(self, link: WorkerLink) -> str | None:
        """Why a worker is not used; None when it is."""
        if not link.alive or link.ready is None:
            return link.why
        if link.ready.fingerprint != self.fingerprint:
            return difference(link.ready, self.ready())
        return None

    def usable(self) -> list[WorkerLink]:
        """The workers that requests may be placed on, in the order of the settings file."""
        return [link for link in self.links.values() if self._is_usable(link)]

    def _is_usable(self, link: WorkerLink) -> bool:
        return link.alive and link.ready is not None and link.ready.fingerprint == self.fingerprint

    def ready(self) -> Ready | None:
        """What the usable workers hold; None when there is none."""
        return next((link.ready for link in self.usable()), None)

    def held(self) -> Held | None:
        """What the workers hold of one prompt and answer; None when none can be used."""
        now = [link.ready.holds_tokens for link in self.usable() if link.ready]
        known = [
            link.ready.holds_tokens
            for link in self.links.values()
            if link.ready and link.ready.fingerprint == self.fingerprint
        ]
        return Held(least=min(known), now=max(now), most=max(known)) if now else None

    def _choose_fingerprint(self) -> None:
        """The first worker in the settings file's order that answers sets what is served.

        Within the detection time it may come later than others, unless a client was served by
        then. Afterwards what is served stays while any worker with it lives, so that a stranger
        coming up changes nothing.
        """
        alive = [link.ready for link in self.links.values() if link.alive and link.ready]
        none_left = all(ready.fingerprint != self.fingerprint for ready in alive)
        if alive and (none_left or time.monotonic() < self._settled_s):
            self.fingerprint = alive[0].fingerprint

    def on_ready(self, link: WorkerLink) -> None:
        """A worker answers (again)."""
        used_before = [other for other in self.usable() if other is not link]
        self._choose_fingerprint()
        for other in used_before:
            self._tell_if_unlike(other)
        self._prefixes.forget(link.box)
        self.feed.tell(WorkerBack(box=link.box, at_s=time.monotonic()))
        if not self._tell_if_unlike(link):
            log.info("%s: taken in", link.box)
            self._usable.set()

    def _tell_if_unlike(self, link: WorkerLink) -> bool:
        """Whether a living worker can't be used beside those that are, which is told."""
        why = self.why_not(link)
        if why is None:
            return False
        log.info("%s: not used: %s", link.box, why)
        self.fault(link.box, "fingerprint", f"{link.box} is not used: {why}")
        return True

    def on_lost(self, link: WorkerLink, why: str) -> None:
        """A worker stopped answering: whoever was on it goes on elsewhere."""
        log.warning("%s: lost: %s", link.box, why)
        self.feed.tell(WorkerLost(box=link.box, at_s=time.monotonic()))
        self.fault(link.box, "worker_lost", f"{link.box} was lost: {why}")
        self._choose_fingerprint()
        self._prefixes.forget(link.box)
        self._rooms.forget(link.box)
        self.watch.lost(link.box)
        if not self.usable():
            self._usable.clear()
        for flight in self.board:
            flight.inbox.put_nowait((link.box, "", BoxLost(why=why)))

    async def until_usable(self, timeout_s: float) -> None:
        """Return when a box can be used, or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._usable.wait()
                # A flight may want a box of its own kind or size that isn't there yet.
                await asyncio.sleep(min(0.05, timeout_s))

    # -------------------------------------------------------------- hearing

    def on_message(self, link: WorkerLink, message: ToRouter) -> None:
        """One message of a living worker."""
        match message:
            case StepReport():
                self._step(link, message)
            case Pong():
                self._heard_of(link, message.status)
            case HandoffReport():
                self.watch.handed_over(
                    message.event, self.rates.link_can_bytes_per_s, self.board.handing_over()
                )
                self.rates.learn_transfer(message.event)
                self.metrics.handoff(message.event)
                self.feed.tell(
                    TransferSeen(event=plain_transfer(message.event), offset_s=_offset(link))
                )
                self._deliver(link.box, message.event.request_id, message)
            case Reserved() | Refused() | Committed() | Failed():
                self._deliver(link.box, message.request_id, message)
            case Ready():
                pass

    def _heard_of(self, link: WorkerLink, status: WorkerStatus) -> None:
        for sending in status.sending:
            self._deliver(link.box, sending.request_id, sending)
        self.watch.heard(status, link.tcp(), time.monotonic())
        self.feed.tell(StatusSeen(status=msgspec.structs.replace(status, sending=())))

    def _step(self, link: WorkerLink, report: StepReport) -> None:
        self.rates.learn_step(report.event)
        event, offset_s = plain_step(report.event), _offset(link)
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
        flight = self.board.listening(wire_id)
        if flight is None:
            return
        if flight.ended and isinstance(item, HandoffReport):
            flight.story.transferred(item)
        flight.inbox.put_nowait((box, wire_id, item))

    def _prompt_read(self, box: str, wire_id: str) -> None:
        flight = self.board.listening(wire_id)
        if flight is None:
            return
        order = flight.order
        self._prefixes.remember(box, order.prefix)
        if order.internal:
            return
        now_s, tokens = time.monotonic(), len(order.token_ids)
        for pressure, where in ((self._pressure, None), (self._box_pressure[box], box)):
            if self.board.anyone_waits_beside(flight, where):
                pressure.learn(received_s=order.received_s, prompt_tokens=tokens, now_s=now_s)
            # Else nobody stood behind it, so it tells nothing of a queue.

    def _wait_there(self, prompt_tokens: int) -> Ahead | None:
        """What waits where a request that came now would be read; None when no box takes it."""
        now_s = time.monotonic()
        views = [self.board.view(link, self.rates, self._prefixes) for link in self.usable()]
        ready = self.ready()
        question = Question(
            prompt_tokens=prompt_tokens,
            max_tokens=round(self.rates.output_tokens or FAIR_ANSWER),
            expected_output_tokens=self.rates.output_tokens,
            kv_bytes_per_token=ready.handoff_bytes_per_token(self.setting.kv_wire)
            if ready
            else None,
        )
        links = self.rates.links(now_s)
        decision = decide(self.setting, views, links, question, self._turn + 1, told=False)
        if decision is None:
            return None
        box = decision.prefill_box
        requests, tokens = self.board.waiting_on(box)
        here, all_boxes = self._box_pressure[box], self._pressure
        if not requests:
            here.nobody_waits(now_s)
        rate = here.tokens_per_s or all_boxes.tokens_per_s
        wait_s = (tokens + prompt_tokens) / rate if rate else 0.0
        return Ahead(requests=requests, wait_s=wait_s)

    # -------------------------------------------------------------- what a flight asks

    def place(self, flight: Flight) -> Decision | None:
        """Where a new flight goes; None when no box can be used."""
        self._turn += 1
        views, links = self._views(flight), self.rates.links(time.monotonic())
        decision = decide(flight.order.setting, views, links, self._ask(flight), self._turn)
        if decision is not None:
            flight.fingerprint = self.fingerprint
            if not flight.order.internal:
                self._settled_s = 0.0
        return decision

    def place_again(self, flight: Flight, reason: str, avoid: str | None) -> Decision | None:
        """Where a flight that lost its box goes on; None when no box of its kind can be used."""
        if flight.fingerprint != self.fingerprint:
            return None
        return resume(flight.order.setting, self._views(flight), reason, avoid)

    def _ask(self, flight: Flight) -> Question:
        ready = self.ready()
        return Question(
            prompt_tokens=len(flight.order.token_ids),
            max_tokens=flight.order.sampling.max_tokens,
            expected_output_tokens=self.rates.output_tokens,
            kv_bytes_per_token=ready.handoff_bytes_per_token(flight.order.setting.kv_wire)
            if ready
            else None,
        )

    def _views(self, asking: Flight) -> list[BoxView]:
        """The usable boxes that can hold it as the policy sees them."""
        return [
            self.board.view(link, self.rates, self._prefixes, asking.order.prefix, asking)
            for link in self._able(asking.order)
        ]

    def _able(self, order: Order) -> list[WorkerLink]:
        """The usable boxes that hold all of its prompt and answer."""
        return [
            link
            for link in self.usable()
            if link.ready is not None and link.ready.holds_tokens >= order.longest
        ]

    def has_room(self, box: str, flight: Flight) -> bool:
        """Whether a box will probably keep room for this prompt, so that it may be read at once."""
        link = self.links[box]
        free = None
        if link.status is not None and link.ready is not None:
            free = link.status.blocks_free * link.ready.block_tokens
        wanted = self.board.promised_tokens_beside(flight, box) + len(flight.order.token_ids)
        return self._rooms.probably_has(box, wanted, free)

    def asked_for_room(self, box: str, *, full: bool) -> None:
        """A box kept room for a prompt, or was full."""
        self._rooms.answered(box, full=full)

    def target(self, box: str, reserved: Reserved) -> HandoffTarget | None:
        """The hand-off address of a box that reserved room; None when it is gone."""
        link = self.links[box]
        if self.why_not(link) is not None or link.ready is None:
            return None
        return HandoffTarget(
            reservation_id=reserved.reservation_id,
            box=box,
            endpoint=link.address.kv_endpoint,
            secret=reserved.secret,
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
        self.board.listen(wire_id, flight)

    def unlisten(self, wire_id: str) -> None:
        """Drop what is still said about this wire id."""
        self.board.unlisten(wire_id)

    def way(self, flight: Flight, decision: Decision) -> Way:
        """What is known of the way that a flight's hand-off takes."""
        order, ready = flight.order, self.ready()
        per_token = ready.handoff_bytes_per_token(order.setting.kv_wire) if ready else None
        return Way(
            whole_bytes=None if per_token is None else len(order.token_ids) * per_token,
            link_bytes_per_s=self.rates.link_can_bytes_per_s.get(
                (decision.prefill_box, decision.decode_box)
            ),
            read_s=self._read_again_s(flight, decision),
        )

    def _read_again_s(self, flight: Flight, decision: Decision) -> float | None:
        """What its prompt would wait and be read for where it would go on now."""
        views = self._views(flight)
        again = resume(flight.order.setting, views, "")
        if again is None:
            return None
        box = again.prefill_box
        waiting = next(view.pending_prefill_tokens for view in views if view.box == box)
        boxes = (box, decision.decode_box, decision.prefill_box)
        return self.rates.read_s(boxes, waiting + len(flight.order.token_ids))

    def slow_handoff(self, decision: Decision, bytes_per_s: float | None) -> None:
        """A hand-off was given up while so much of it arrived a second, None if nobody knows."""
        pair = decision.prefill_box, decision.decode_box
        self.rates.learn_slow(pair, bytes_per_s, time.monotonic())

    def boxes_for(self, flight: Flight) -> int:
        """How many boxes can be used that hold its prompt and answer."""
        return len(self._able(flight.order))

    def fault(self, box: str | None, kind: str, sentence: str) -> Fault:
        """Tell the watchers of a fault."""
        self.metrics.faults.labels(self.config.model_name, kind).inc()
        fault = Fault(at_s=time.monotonic(), box=box, kind=kind, sentence=sentence)
        self.feed.tell(FaultSeen(fault=fault))
        return fault

    def stand(self, box: str | None, kind: str, sentence: str) -> None:
        """Tell of a fault, also those who begin to watch later."""
        self._standing[box, kind] = self.fault(box, kind, sentence)

    def stand_down(self, box: str | None, kind: str) -> None:
        """A fault that lasted is over."""
        self._standing.pop((box, kind), None)

    def lasting(self, now_s: float) -> tuple[Fault, ...]:
        """The faults that last, for those who begin to watch now."""
        return tuple(
            fault
            for fault in self._standing.values()
            if now_s - fault.at_s < _NEWS_S.get(fault.kind, math.inf)
        )

    # -------------------------------------------------------------- flights

    @contextlib.contextmanager
    def flying(self, order: Order) -> Generator[Flight]:
        """A flight that is cancelled, ended and recorded whatever happens inside."""
        flight = Flight(self, order)
        self.board.add(flight)
        outcome: Outcome = "cancelled"
        error: str | None = None
        try:
            yield flight
            outcome = "completed"
        except ApiError as failure:
            error = failure.message
            outcome = outcome_of(failure, flight)
            raise
        except (asyncio.CancelledError, ConnectionError, GeneratorExit):
            error = "the client went away"
            raise
        except Exception as failure:
            outcome, error = "failed", f"{type(failure).__name__}: {failure}"
            raise
        finally:
            self.board.remove(flight)
            flight.end()
            self.book.enter(flight, outcome, error)

    def cancel_request(self, request_id: str) -> bool:
        """End a request from outside; False when there is none of this id."""
        flights = self.board.named(request_id)
        for flight in flights:
            flight.inbox.put_nowait(("", "", Cancelled()))
        return bool(flights)

    def end_flights(self) -> None:
        """Tell every open answer that the router stops."""
        for flight in self.board:
            flight.inbox.put_nowait(("", "", Stopping()))

    # -------------------------------------------------------------- mode

    def switch(self, setting: ModeSetting, began_s: float) -> ModeSwitch:
        """Put another policy in force for requests to come; raises ApiError 400."""
        check_setting(setting, tuple(self.links))
        self.setting = setting
        now_s = time.monotonic()
        switch = ModeSwitch(at_s=now_s, setting=setting, took_s=now_s - began_s)
        self.feed.tell(ModeSwitched(switch=switch))
        return switch


def _told_links(config: RouterConfig) -> dict[tuple[str, str], float]:
    """The probe's link rate for every pair of boxes; empty when none was given."""
    rate = config.link_bytes_per_s
    boxes = [address.box for address in config.workers]
    return {(a, b): rate for a in boxes for b in boxes if a != b} if rate else {}


def _offset(link: WorkerLink) -> float:
    # Before the first ping there is no offset; steps only come after a Submit, long after it.
    return link.clock.offset_s or 0.0


def _last(report: StepReport, request_id: str) -> object:
    """The last token of a request in a report."""
    return next(token for token in reversed(report.tokens) if token.request_id == request_id)
