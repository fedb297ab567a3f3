"""Hands KV over: a thread that sends each layer's KV while the next layers are computed.

The step's thread only queues small notes ("layer 3, tokens 0 to 256 are in the pool"); this
thread copies the bytes out, sends them, and waits for the peer's answer. The blocks belong
to the hand-off until `ended` has been called, which happens exactly once for each.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from msgspec import Struct
from zmq.utils.monitor import recv_monitor_message

from homesplit_engine.cache import KvPool, Place
from homesplit_engine.handoff.frames import FRAME_BYTES, SEND_FROM_BYTES
from homesplit_engine.handoff.layout import (
    Piece,
    as_it_lies,
    cut,
    pack,
    piece_bytes,
    token_wire_bytes,
)
from homesplit_engine.records import LinkSeen, Sending, TransferEvent
from homesplit_engine.wire import sockets, tcp
from homesplit_engine.wire.messages import (
    WIRE_VERSION,
    Abort,
    Chunk,
    Close,
    Envelope,
    Gone,
    HandoffTarget,
    KvMessage,
    Open,
    ProtocolError,
    Raw,
    Token,
    decode_kv_head,
    decode_kv_reply,
)
from homesplit_engine.wire.seal import Seal, SealBroken
from homesplit_engine.wire.wake import Waker

STALL_S = 5.0
"""A peer that takes nothing for this long is given up: ZeroMQ asks for more when half of the
queued frames have gone, so a link of 4 Mbit/s or more is never taken for one that stands still."""
SLOWEST_BYTES_PER_S = 5e5
"""That link's rate."""
ON_THE_WAY_BYTES = sockets.KV_HWM * FRAME_BYTES + 2**22
"""What may have been taken and not yet sent: ZeroMQ's frames, and as much as Linux buffers for a
connection (`tcp_wmem`, 4 MiB unless set otherwise)."""
WAIT_MS = 50
"""How often the thread looks at deadlines when nothing comes."""
_REPLY_BYTES = 2**20
GONE = "does not hold this reservation (cancelled, expired, or another box's)"
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
_REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class _Given(Exception):
    """The hand-off in hand can't go on; the message says why."""


class HandoffResult(Struct, frozen=True, kw_only=True):
    """How a hand-off ended, for the worker to tell."""

    event: TransferEvent
    why: str | None


class Outgoing:
    """One hand-off on the sending side."""

    def __init__(
        self,
        *,
        request_id: str,
        target: HandoffTarget,
        prompt_tokens: int,
        deadline_s: float,
    ) -> None:
        self.request_id = request_id
        self.target = target
        self.prompt_tokens = prompt_tokens
        self.place: Place | None = None
        """Where its KV lies; known once the request is admitted, before anything is noted."""
        self.deadline_s = deadline_s
        self.given_up: str | None = None
        """Set by any thread to stop the hand-off; the sender's thread sees it soon."""
        self.wanted = True
        """False once nobody waits for it any more: the answer ended with its first token."""
        self.prefill_end_s: float | None = None
        self.start_s: float | None = None
        self.chunks = 0
        self.bytes = 0
        self.noted_bytes = 0
        """Of what is in the pool, sent or not."""
        self.before: dict[str, int] = {}
        """What others to the same peer had noted by then, by reservation: it is sent before its
        last layer."""
        self.pending: Piece | None = None
        self.mark: Any = None
        """When the newest layer that was told of was in the pool (`Threads.mark`)."""
        self.seal = Seal(target.secret.seal_key)
        self.messages = 0
        """How many have been sealed; each has its own number."""
        self.answer_due_s = math.inf
        """Until its last message was taken."""
        self.opened = False
        self.over = False
        self.ends_at = 0
        """What had been given to the connection when its last message was."""


class Layer(Struct, frozen=True):
    """A note to the thread: K and V of a piece are in the pool, on a GPU behind the mark."""

    outgoing: Outgoing
    piece: Piece
    mark: Any


class _Prefilled(Struct, frozen=True):
    outgoing: Outgoing
    first_token: Token


class _GivenUp(Struct, frozen=True):
    outgoing: Outgoing


_Note = Layer | _Prefilled | _GivenUp


class _Peer:
    """The connection to one peer's hand-off socket."""

    def __init__(self, context: zmq.Context[Any], box: str, target: HandoffTarget) -> None:
        self.box = target.box
        self.fd: int | None = None
        """The connection's, while there is one."""
        self.given_bytes = 0
        """Since it was made."""
        self.socket = sockets.kv_connecting_socket(
            context,
            name=box,
            password=target.secret.password,
            max_bytes=_REPLY_BYTES,
            hwm=sockets.KV_HWM,
        )
        try:
            self.monitor = self.socket.get_monitor_socket(_LOST | _REFUSED | zmq.EVENT_CONNECTED)
        except zmq.ZMQError:
            self.socket.close(linger=0)
            raise
        try:
            self.socket.connect(target.endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def unacknowledged(self, upto: int) -> int:
        """How much of what was given up to then the peer has not got yet; 0 where it isn't told."""
        seen = tcp.look(self.fd)
        return 0 if seen is None else max(0, upto - seen.acked_bytes)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


class Sender:
    """The sending thread of one worker and its connections to peers."""

    def __init__(
        self,
        context: zmq.Context[Any],
        *,
        box: str,
        fingerprint: str,
        pool: KvPool,
        ended: Callable[[Outgoing, HandoffResult], None],
    ) -> None:
        self._context = context
        self._box = box
        self._fingerprint = fingerprint
        self._pool = pool
        self._ended = ended
        # Notes are tiny and there are at most layers x chunks of them for each admitted request.
        self._notes: deque[_Note] = deque()
        self._waker = Waker()
        self._poller = zmq.Poller()
        self._poller.register(self._waker.fd, zmq.POLLIN)
        self._peers: dict[tuple[str, str], _Peer] = {}
        self._waiting: dict[str, Outgoing] = {}
        """Those that were opened, by reservation."""
        self._begun: dict[str, Outgoing] = {}
        """Those of which something is in the pool, in the order in which they are sent."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-sender", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop_soon(self) -> None:
        """Asks the thread to close its sockets and end; hand-offs under way are not told."""
        self._stopping.set()
        self._waker.wake()

    def join(self) -> None:
        """Waits for the thread's end."""
        self._thread.join(sockets.JOIN_S)

    # ------------------------------------------------------------------ from other threads

    def sending(self) -> list[Sending]:
        """The hand-offs under way, and those that wait for them."""
        begun, found = dict(self._begun), list[Sending]()
        unsent: dict[tuple[str, str], int] = {}
        for outgoing in begun.values():
            door, own = _door(outgoing.target), self._unsent(outgoing)
            # Until it is read to its end, those that began before it are taken to end before it.
            is_read = outgoing.prefill_end_s is not None
            ahead = _ahead(outgoing, begun) if is_read else unsent.get(door, 0)
            found.append(self._left(outgoing, own, ahead))
            unsent[door] = unsent.get(door, 0) + own
        return found

    def links(self) -> list[LinkSeen]:
        """The connections to the peer."""
        found = [(peer.box, tcp.look(peer.fd)) for peer in list(self._peers.values())]
        return [
            LinkSeen(peer=box, sent=seen.sent, resent=seen.resent, rtt_s=seen.rtt_s)
            for box, seen in found
            if seen is not None
        ]

    def _unsent(self, outgoing: Outgoing) -> int:
        tokens = max(0, outgoing.prompt_tokens - outgoing.target.cached_tokens)
        whole = tokens * token_wire_bytes(self._pool.shape, outgoing.target.kv_wire)
        return max(0, whole - outgoing.bytes)

    def _left(self, outgoing: Outgoing, unsent: int, ahead: int) -> Sending:
        peer = self._peers.get(_door(outgoing.target))
        # All that was given before its last byte goes before that, whosever it is.
        on_the_way = 0
        if peer is not None:
            on_the_way = peer.unacknowledged(peer.given_bytes if unsent else outgoing.ends_at)
        return Sending(
            request_id=outgoing.request_id, left_bytes=unsent + on_the_way, ahead_bytes=ahead
        )

    def layer_done(self, outgoing: Outgoing, layer: int, start: int, end: int) -> None:
        """K and V of tokens [start, end) of one layer are in the pool."""
        if start < end:
            self._begun.setdefault(outgoing.target.reservation_id, outgoing)
            piece = Piece(layer=layer, layers=1, start=start, end=end)
            outgoing.noted_bytes += piece_bytes(self._pool.shape, piece, outgoing.target.kv_wire)
            if layer + 1 == self._pool.shape.layers:
                outgoing.before = self._noted_beside(outgoing)
            self._note(Layer(outgoing, piece, self._pool.threads.mark()))

    def _noted_beside(self, outgoing: Outgoing) -> dict[str, int]:
        """What others to the same peer have noted, by reservation."""
        door = _door(outgoing.target)
        return {
            reservation_id: other.noted_bytes
            for reservation_id, other in dict(self._begun).items()
            if other is not outgoing and _door(other.target) == door
        }

    def prefilled(self, outgoing: Outgoing, first_token: Token, now_s: float) -> None:
        """The prompt is read to its end: everything has been noted by `layer_done`."""
        outgoing.prefill_end_s = now_s
        self._note(_Prefilled(outgoing, first_token))

    def give_up(self, outgoing: Outgoing, why: str) -> None:
        """Stops a hand-off; `ended` follows."""
        outgoing.given_up = outgoing.given_up or why
        self._note(_GivenUp(outgoing))

    def _note(self, note: _Note) -> None:
        self._notes.append(note)
        self._waker.wake()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            # Notes and the peers' answers end the wait alike: a commit is told when it comes.
            self._poller.poll(WAIT_MS if self._waiting else 4 * WAIT_MS)
            self._waker.clear()
            self._hear()
            while self._notes and not self._stopping.is_set():
                note = self._notes.popleft()
                if note.outgoing.over:
                    self._begun.pop(note.outgoing.target.reservation_id, None)
                else:
                    self._work(note)
                self._hear()
        for peer in self._peers.values():
            peer.close()
        self._waker.close()

    def _work(self, note: _Note) -> None:
        outgoing = note.outgoing
        try:
            self._check(outgoing)
            if isinstance(note, Layer):
                outgoing.mark = note.mark
                self._add(outgoing, note.piece)
            elif isinstance(note, _Prefilled):
                self._close(outgoing, note.first_token)
        except _Given as given:
            self._abandon(outgoing, str(given))
        except zmq.ZMQError as error:
            box = outgoing.target.box
            self._abandon(outgoing, f"{box} can't be reached: {error.strerror}")

    def _check(self, outgoing: Outgoing) -> None:
        if outgoing.given_up is not None:
            raise _Given(outgoing.given_up)
        if time.monotonic() > outgoing.deadline_s:
            raise _Given("its deadline passed")

    def _add(self, outgoing: Outgoing, piece: Piece) -> None:
        """Joins a layer to those that wait, and sends when there is enough or no more comes."""
        waiting = outgoing.pending
        if waiting is not None and (
            piece.layer != waiting.layer + waiting.layers
            or (piece.start, piece.end) != (waiting.start, waiting.end)
        ):
            self._send_piece(outgoing, waiting)
            waiting = None
        if waiting is not None:
            piece = Piece(
                layer=waiting.layer,
                layers=waiting.layers + 1,
                start=piece.start,
                end=piece.end,
            )
        # The last layer goes alone: when it comes, nothing is to be left of those before it.
        to_come = self._pool.shape.layers - piece.layer - piece.layers
        if (
            to_come <= 1
            or piece_bytes(self._pool.shape, piece, outgoing.target.kv_wire) >= SEND_FROM_BYTES
        ):
            outgoing.pending = None
            self._send_piece(outgoing, piece)
        else:
            outgoing.pending = piece

    def _send_piece(self, outgoing: Outgoing, whole: Piece) -> None:
        self._open(outgoing)
        wire, shape = outgoing.target.kv_wire, self._pool.shape
        for piece in cut(shape, whole, wire):
            if outgoing.place is None:
                raise _Given("its blocks are not known")
            frame = as_it_lies(self._pool, outgoing.place, piece, wire)
            if frame is None:
                frame = [pack(self._pool, outgoing.place, piece, wire, outgoing.mark)]
            size = piece_bytes(shape, piece, wire)
            header = Chunk(
                reservation_id=outgoing.target.reservation_id,
                sequence=outgoing.chunks,
                layer=piece.layer,
                layers=piece.layers,
                from_token=piece.start,
                tokens=piece.end - piece.start,
                bytes=size,
            )
            self._send(outgoing, header, frame)
            outgoing.chunks += 1
            outgoing.bytes += size

    def _open(self, outgoing: Outgoing) -> None:
        if outgoing.opened:
            return
        outgoing.opened = True
        outgoing.start_s = time.monotonic()
        self._waiting[outgoing.target.reservation_id] = outgoing
        self._send(
            outgoing,
            Open(
                wire_version=WIRE_VERSION,
                reservation_id=outgoing.target.reservation_id,
                request_id=outgoing.request_id,
                from_box=self._box,
                fingerprint=self._fingerprint,
                layers=self._pool.shape.layers,
                from_token=outgoing.target.cached_tokens,
                prompt_tokens=outgoing.prompt_tokens,
                dtype=outgoing.target.kv_wire,
            ),
        )

    def _close(self, outgoing: Outgoing, first_token: Token) -> None:
        if outgoing.pending is not None:
            self._send_piece(outgoing, outgoing.pending)
            outgoing.pending = None
        self._open(outgoing)
        self._send(
            outgoing,
            Close(
                reservation_id=outgoing.target.reservation_id,
                chunks=outgoing.chunks,
                bytes=outgoing.bytes,
                first_token=first_token,
            ),
        )
        closed_s = time.monotonic()
        begun_s = closed_s if outgoing.start_s is None else outgoing.start_s
        unanswered = sum(one.bytes for one in self._waiting.values())
        outgoing.answer_due_s = answer_due_s(begun_s, closed_s, unanswered)

    def _send(self, outgoing: Outgoing, message: KvMessage, frame: Sequence[Raw] = ()) -> None:
        """Sends as soon as the peer takes it, listening meanwhile; raises _Given."""
        peer = self._peer(outgoing.target)
        socket, parts = peer.socket, _sealed(outgoing, message, frame)
        began = time.monotonic()
        while not sockets.try_send(socket, parts):
            if socket.poll(50, zmq.POLLOUT):
                continue
            self._hear()
            if outgoing.over:
                raise _Given("the peer gave the hand-off up")
            self._check(outgoing)
            if self._stopping.is_set():
                raise _Given("this worker is stopping")
            if time.monotonic() - began > STALL_S:
                raise _Given(
                    f"{outgoing.target.box} at {outgoing.target.endpoint} took no data "
                    f"for {STALL_S:.0f} s"
                )
        peer.given_bytes += sum(map(len, parts))
        outgoing.ends_at = peer.given_bytes

    def _peer(self, target: HandoffTarget) -> _Peer:
        key = _door(target)
        if key not in self._peers:
            peer = self._peers[key] = _Peer(self._context, self._box, target)
            self._poller.register(peer.socket, zmq.POLLIN)
            self._poller.register(peer.monitor, zmq.POLLIN)
        return self._peers[key]

    # ------------------------------------------------------------------ answers

    def _hear(self) -> None:
        """Takes in every answer and every lost connection; gives up who waits too long."""
        for key, peer in list(self._peers.items()):
            while sockets.has_news(peer.socket):
                self._answer(peer.socket.recv_multipart())
            while key in self._peers and sockets.has_news(peer.monitor):
                told = recv_monitor_message(peer.monitor)
                event = int(told["event"])
                if event == zmq.EVENT_CONNECTED:
                    peer.fd = int(told["value"])
                    continue
                lost = not event & _REFUSED
                self._lose(key, "the connection was lost" if lost else "it does not let us in")
        now = time.monotonic()
        for outgoing in list(self._waiting.values()):
            late = now > outgoing.answer_due_s
            if outgoing.given_up is not None:
                self._abandon(outgoing, outgoing.given_up)
            elif late or now > outgoing.deadline_s:
                self._abandon(outgoing, f"{outgoing.target.box} did not answer in time")

    def _answer(self, parts: list[bytes]) -> None:
        try:
            head = decode_kv_head(parts[0])
            outgoing = self._waiting.get(head.reservation_id)
            if outgoing is None:
                return
            if isinstance(head, Gone):
                self._end(outgoing, committed=False, why=f"{outgoing.target.box} {GONE}")
            elif len(parts) == 2:
                ack = decode_kv_reply(outgoing.seal.open_answer(head, parts))
                why = None if ack.committed else (ack.why or "the peer refused it")
                self._end(outgoing, committed=ack.committed, why=why)
        except (ProtocolError, SealBroken):
            # Nobody's word: who waits for an answer that never comes is given up in time.
            return

    def _lose(self, key: tuple[str, str], what: str) -> None:
        """Frames may be gone for good: every hand-off over this connection has failed."""
        peer = self._peers.pop(key)
        self._poller.unregister(peer.socket)
        self._poller.unregister(peer.monitor)
        peer.close()
        for outgoing in list(self._waiting.values()):
            if _door(outgoing.target) == key:
                box, endpoint = outgoing.target.box, outgoing.target.endpoint
                self._end(outgoing, committed=False, why=f"{box} at {endpoint}: {what}")

    def _abandon(self, outgoing: Outgoing, why: str) -> None:
        if outgoing.over:
            return
        peer = self._peers.get(_door(outgoing.target))
        if peer is not None and outgoing.opened and peer.socket.poll(0, zmq.POLLOUT):
            abort = Abort(reservation_id=outgoing.target.reservation_id, why=why)
            peer.socket.send_multipart(_sealed(outgoing, abort))
        self._end(outgoing, committed=False, why=why)
        if peer is not None:
            self._drop_if_clogged(_door(outgoing.target), peer)

    def _drop_if_clogged(self, key: tuple[str, str], peer: _Peer) -> None:
        """What is still on its way for nobody would hold up the next hand-off on a slow link."""
        alone = all(_door(one.target) != key for one in self._waiting.values())
        if key in self._peers and alone and peer.unacknowledged(peer.given_bytes) > FRAME_BYTES:
            tcp.cut_off(peer.fd)
            self._lose(key, "")

    def _end(self, outgoing: Outgoing, *, committed: bool, why: str | None) -> None:
        outgoing.over = True
        self._waiting.pop(outgoing.target.reservation_id, None)
        self._begun.pop(outgoing.target.reservation_id, None)
        end_s = time.monotonic()
        prefill_end_s = end_s if outgoing.prefill_end_s is None else outgoing.prefill_end_s
        event = TransferEvent(
            box_from=self._box,
            box_to=outgoing.target.box,
            request_id=outgoing.request_id,
            start_s=end_s if outgoing.start_s is None else outgoing.start_s,
            end_s=end_s,
            bytes=outgoing.bytes,
            tokens=max(0, outgoing.prompt_tokens - outgoing.target.cached_tokens),
            exposed_s=max(0.0, end_s - prefill_end_s),
            committed=committed,
        )
        self._ended(outgoing, HandoffResult(event=event, why=why))


def _door(target: HandoffTarget) -> tuple[str, str]:
    """What a connection is known by: a worker that was started again has another password."""
    return (target.endpoint, target.secret.password)


def _ahead(outgoing: Outgoing, begun: dict[str, Outgoing]) -> int:
    """What others still have to send before the last layer of one that is read to its end.

    Prompts that are read in one step are noted layer by layer, one layer of each after the other.
    """
    return sum(
        max(0, noted - begun[reservation_id].bytes)
        for reservation_id, noted in outgoing.before.items()
        if reservation_id in begun
    )


def _sealed(outgoing: Outgoing, message: KvMessage, frame: Sequence[Raw] = ()) -> list[Raw]:
    envelope = Envelope(
        reservation_id=outgoing.target.reservation_id,
        number=outgoing.messages,
        asks=isinstance(message, Open | Close),
    )
    outgoing.messages += 1
    return outgoing.seal.message(envelope, message, *frame)


def answer_due_s(begun_s: float, closed_s: float, unanswered_bytes: int) -> float:
    """When the peer's answer to a hand-off is overdue.

    `closed_s` is when its last message was taken; `unanswered_bytes` are those taken by then of
    it and of others to the same peer. A short one is taken at once, however slow the link is: so
    what may still be on the way has the time that it takes on the slowest link.
    """
    on_the_way_s = min(unanswered_bytes, ON_THE_WAY_BYTES) / SLOWEST_BYTES_PER_S
    return closed_s + STALL_S + max(closed_s - begun_s, on_the_way_s)
