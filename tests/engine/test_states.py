"""The block pool, prefix index, scheduler and hand-off as state machines: any order of events.

What must hold after every event stands in each machine's invariants.
"""

from __future__ import annotations

from typing import Any

import torch
import zmq
from homesplit_engine.cache import KvPool, KvShape, Place
from homesplit_engine.handoff.layout import Piece, pack
from homesplit_engine.handoff.receiver import Arrived, Incoming, Receiver
from homesplit_engine.pages import BlockPool, blocks_for, chain_hash
from homesplit_engine.request import Phase, Request
from homesplit_engine.router.prefixes import STRIDE_TOKENS, PrefixMemory, chain
from homesplit_engine.scheduler import Limits, Scheduler, StepPlan
from homesplit_engine.wire.messages import (
    WIRE_VERSION,
    Ack,
    Chunk,
    Close,
    Envelope,
    KvMessage,
    Open,
    Raw,
    Token,
    decode_kv_head,
    decode_kv_reply,
)
from homesplit_engine.wire.seal import Seal, new_seal_key
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

BLOCK = 4
WORDS = st.lists(st.integers(0, 1), min_size=1, max_size=5)
"""Blocks of a prompt, each one of two kinds: prefixes are met again and again."""
BOUNDS = settings(max_examples=60, stateful_step_count=50, deadline=None)


class PoolMachine(RuleBasedStateMachine):
    """Chains of blocks that come, grow, are shared by their prefix, and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, BLOCK)
        self.chains: list[tuple[list[int], list[bytes]]] = []
        self.wrote: dict[int, bytes] = {}
        """What each block was last filled with, as its hash."""

    @rule(words=WORDS, room=st.integers(0, 3))
    def come(self, words: list[int], room: int) -> None:
        hashes = _hashes(words)
        matched = self.pool.match(hashes)
        fresh = len(hashes) - len(matched)
        if fresh > self.pool.available_beside(matched):
            return
        for block, value in zip(matched, hashes, strict=False):
            assert self.wrote[block] == value, "a match names a block that holds something else"
        self.pool.take(matched)
        blocks = matched + self.pool.allocate(
            fresh, after=matched[-1] if matched else None, room=room
        )
        for block, value in zip(blocks[len(matched) :], hashes[len(matched) :], strict=True):
            self.wrote[block] = value
            self.pool.remember(block, value)
        self.chains.append((blocks, hashes))

    @precondition(lambda self: self.chains and self.pool.blocks_available)
    @rule(which=st.integers(0, 99))
    def grow(self, which: int) -> None:
        blocks, _ = self.chains[which % len(self.chains)]
        (block,) = self.pool.allocate(1, after=blocks[-1])
        self.wrote[block] = b"partly filled"
        blocks.append(block)

    @precondition(lambda self: self.chains)
    @rule(which=st.integers(0, 99))
    def go(self, which: int) -> None:
        blocks, _ = self.chains.pop(which % len(self.chains))
        self.pool.release(blocks)

    @invariant()
    def every_block_is_used_or_available(self) -> None:
        used = {block for blocks, _ in self.chains for block in blocks}
        assert self.pool.blocks_available == self.pool.blocks_total - len(used)
        assert self.pool.blocks_cached <= self.pool.blocks_available

    @invariant()
    def only_a_prefix_is_shared(self) -> None:
        for one, (blocks, hashes) in enumerate(self.chains):
            assert len(set(blocks)) == len(blocks)
            for other, theirs in self.chains[:one]:
                for block in set(blocks) & set(other):
                    place = blocks.index(block)
                    assert other.index(block) == place
                    assert hashes[: place + 1] == theirs[: place + 1]

    @invariant()
    def nobodys_blocks_were_overwritten(self) -> None:
        for blocks, hashes in self.chains:
            for block, value in zip(blocks, hashes, strict=False):
                assert self.wrote[block] == value

    def teardown(self) -> None:
        for blocks, _ in self.chains:
            self.pool.release(blocks)
        assert self.pool.blocks_available == self.pool.blocks_total


def _hashes(words: list[int]) -> list[bytes]:
    found: list[bytes] = []
    for word in words:
        found.append(chain_hash(found[-1] if found else b"", [word] * BLOCK))
    return found


MOST = 6
STRIDES = st.lists(st.integers(0, 1), max_size=MOST)


class PrefixMachine(RuleBasedStateMachine):
    """The router's guess at what each box holds: prompts are read there, boxes are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.subject = PrefixMemory(MOST)
        self.read: dict[str, list[list[int]]] = {}
        """Every prompt that a box has read since it was last lost, one number a stride."""

    @rule(box=st.sampled_from("ab"), words=STRIDES)
    def read_there(self, box: str, words: list[int]) -> None:
        self.subject.remember(box, _chain(words))
        self.read.setdefault(box, []).append(words)
        assert self.subject.cached_tokens(box, _chain(words)) == len(words) * STRIDE_TOKENS

    @rule(box=st.sampled_from("ab"))
    def lose(self, box: str) -> None:
        self.subject.forget(box)
        self.read.pop(box, None)

    @rule(box=st.sampled_from("ab"), words=STRIDES)
    def only_what_was_read_there_is_guessed(self, box: str, words: list[int]) -> None:
        strides, rest = divmod(self.subject.cached_tokens(box, _chain(words)), STRIDE_TOKENS)
        assert rest == 0
        seen = self.read.get(box, [])
        assert not strides or any(one[:strides] == words[:strides] for one in seen)

    @invariant()
    def no_more_is_remembered_than_allowed(self) -> None:
        assert all(self.subject.remembered(box) <= MOST for box in "ab")

    @invariant()
    def nothing_is_remembered_without_what_comes_before_it(self) -> None:
        for box, seen in self.read.items():
            heads = {
                tuple(words[: at + 1])
                for words in seen
                for at in range(self.subject.cached_tokens(box, _chain(words)) // STRIDE_TOKENS)
            }
            assert self.subject.remembered(box) == len(heads)


def _chain(words: list[int]) -> list[int]:
    return chain([word for word in words for _ in range(STRIDE_TOKENS)])


class SchedulerMachine(RuleBasedStateMachine):
    """Requests that come by both ways, are cancelled at any moment, also within a step."""

    def __init__(self) -> None:
        super().__init__()
        limits = Limits(max_batch_requests=4, max_step_tokens=16, max_waiting=5, max_context=64)
        self.subject = Scheduler(BlockPool(16, BLOCK), limits)
        self.plan: StepPlan | None = None
        self.live: dict[str, Request] = {}
        self.got: dict[str, list[int]] = {}
        self.count = 0

    @rule(
        words=WORDS,
        answer=st.integers(1, 12),
        chunk=st.sampled_from([None, 1, 5]),
        way=st.sampled_from(["here", "hand over", "reserve"]),
    )
    def come(self, words: list[int], answer: int, chunk: int | None, way: str) -> None:
        self.count += 1
        tokens = [word for word in words for _ in range(BLOCK)] + [9]
        request = Request(
            request_id=str(self.count),
            tokens=tokens,
            prompt_tokens=len(tokens),
            max_tokens=answer,
            arrived_s=float(self.count),
            deadline_s=1e9,
            chunk_tokens=chunk,
            hand_over=way == "hand over",
        )
        before = self.subject.pool.blocks_available
        take = self.subject.reserve if way == "reserve" and answer > 1 else self.subject.add
        if take(request, now_s=0.0) is None:
            self.live[request.request_id] = request
            self.got[request.request_id] = []
        else:
            assert self.subject.pool.blocks_available == before, "a refusal takes nothing"

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        name = sorted(self.live)[which % len(self.live)]
        self.subject.cancel(name)
        if self.live[name].phase is not Phase.HANDING_OVER:
            del self.live[name]

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99))
    def commit(self, which: int) -> None:
        name = sorted(self.live)[which % len(self.live)]
        if self.subject.commit(name, 1):
            self.got[name].append(0)

    @precondition(lambda self: self.subject.handing_over)
    @rule(which=st.integers(0, 99))
    def hand_off_ends(self, which: int) -> None:
        over = [n for n, r in self.live.items() if r.phase is Phase.HANDING_OVER]
        name = over[which % len(over)]
        self.subject.handoff_ended(name)
        del self.live[name]

    @precondition(lambda self: self.plan is None)
    @rule()
    def begin_step(self) -> None:
        self.plan = self.subject.schedule(1.0)
        if self.plan is None:
            return
        for request in self._in_step(self.plan):
            assert len(request.blocks) * BLOCK >= len(request.tokens), "no slot to write into"

    @precondition(lambda self: self.plan is not None)
    @rule()
    def end_step(self) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        sampled = {work.request.request_id: 7 for work in plan.prefill if work.last}
        sampled |= {request.request_id: 7 for request in plan.decode}
        outcome = self.subject.finish_step(plan, sampled, now_s=2.0)
        for token in outcome.tokens:
            assert token.request_id in self.live, "a token of a request that was cancelled"
            self.got[token.request_id].append(token.index)
        for ended in outcome.ended:
            if self.live[ended.request_id].phase is Phase.ENDED:
                del self.live[ended.request_id]

    def _in_step(self, plan: StepPlan) -> list[Request]:
        return [*(work.request for work in plan.prefill), *plan.decode]

    @invariant()
    def every_token_comes_once_and_in_order(self) -> None:
        for indices in self.got.values():
            assert indices == list(range(len(indices)))

    @invariant()
    def no_two_requests_write_into_one_block(self) -> None:
        written: list[int] = []
        for request in self.live.values():
            written += request.blocks[request.remembered :]
        assert len(written) == len(set(written))

    @invariant()
    def blocks_are_held_by_live_requests_only(self) -> None:
        in_step = self._in_step(self.plan) if self.plan else []
        holders = {id(r): r for r in [*self.live.values(), *in_step]}
        held = {block for request in holders.values() for block in request.blocks}
        assert self.subject.pool.blocks_available == self.subject.pool.blocks_total - len(held)

    @invariant()
    def bounds_are_kept(self) -> None:
        assert self.subject.running + self.subject.reserved <= 4
        assert self.subject.waiting <= 5 + 4  # those that gave way stand in front of the queue

    def teardown(self) -> None:
        if self.plan is not None:
            self.end_step()
        for name in list(self.live):
            self.subject.cancel(name)
            self.subject.handoff_ended(name)
        assert self.subject.pool.blocks_available == self.subject.pool.blocks_total
        assert self.subject.request_ids() == ()


LAYERS, PROMPT, PIECE = 3, 10, 4
SHAPE = KvShape(kv_heads=(1,) * LAYERS, head_dim=(2,) * LAYERS, dtype=torch.float32)
NAMES = ("r", "s")
THEIRS, ANOTHERS = 1, 2
"""Connections: the one that both hand-offs come by, and a stranger's."""
NOT_OURS = -7.0


class Way:
    """One hand-off on its way: what was sent, what is still to come, what came."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.value = 100.0 * (number + 1)
        """Each token's KV is this and its place."""
        self.key = new_seal_key()
        self.sent = self._messages()
        self.channel = list(self.sent)
        self.came: list[list[Raw]] = []
        """Up to the first thing that was not as it must be, or the end."""
        self.committed = False
        self.failed = False
        self.answers: list[Ack] = []

    @property
    def is_open(self) -> bool:
        """Whether its reservation is held and its KV not whole."""
        return not (self.committed or self.failed)

    def kv(self) -> torch.Tensor:
        """Its KV in each layer: 2 x tokens x heads x width."""
        return self.value + torch.arange(2 * PROMPT * 2, dtype=SHAPE.dtype).view(2, PROMPT, 1, 2)

    def _messages(self) -> list[list[Raw]]:
        """Two layers in one frame and one alone, for each piece of the prompt."""
        pool = _pool()
        place = pool.place(range(BLOCKS_EACH))
        for layer in range(LAYERS):
            pool.copy_in(layer, place, 0, self.kv() + layer)
        plain: list[tuple[KvMessage, memoryview | None]] = [(_open(self.name), None)]
        for start in range(0, PROMPT, PIECE):
            for layer, layers in ((0, 2), (2, 1)):
                piece = Piece(
                    layer=layer, layers=layers, start=start, end=min(PROMPT, start + PIECE)
                )
                frame = pack(pool, place, piece)
                plain.append((_chunk(self.name, len(plain) - 1, piece, frame.nbytes), frame))
        size = sum(frame.nbytes for _, frame in plain if frame)
        plain.append((_close(self.name, len(plain) - 1, size), None))
        seal = Seal(self.key)
        return [
            seal.message(
                _envelope(self.name, number), message, *(() if frame is None else (frame,))
            )
            for number, (message, frame) in enumerate(plain)
        ]


class HandoffMachine(RuleBasedStateMachine):
    """Two hand-offs to one real receiver, over a channel that loses, repeats, reorders and damages.

    Whatever was reserved for a hand-off that failed is at once filled by somebody else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.subject = Scheduler(BlockPool(BLOCKS_EACH * 2, BLOCK), Limits(max_context=64))
        self.pool = _pool()
        self.context: zmq.Context[Any] = zmq.Context()
        self.receiver = Receiver(
            self.context,
            host="127.0.0.1",
            port=0,
            fingerprint="f",
            pool=self.pool,
            arrived=self._arrived,
            failed=self._failed,
        )
        self.ways = {name: Way(name, number) for number, name in enumerate(NAMES)}
        self.places: dict[str, Place] = {}
        for name, way in self.ways.items():
            request = _prompt(name)
            assert self.subject.reserve(request, now_s=0.0) is None
            self.places[name] = self.pool.place(request.blocks)
            self.receiver.expect(
                Incoming(
                    reservation_id=name,
                    request_id=name,
                    from_box="A",
                    seal_key=way.key,
                    place=self.places[name],
                    cached_tokens=0,
                    prompt_tokens=PROMPT,
                )
            )

    def _arrived(self, arrived: Arrived) -> bool:
        """As the worker does."""
        committed = self.subject.commit(arrived.request_id, arrived.first_token.token_id)
        self.ways[arrived.request_id].committed = committed
        return committed

    def _failed(self, request_id: str, _why: str) -> None:
        self.subject.cancel(request_id)
        self._give_to_another(request_id)

    def _give_to_another(self, name: str) -> None:
        self.ways[name].failed = True
        for layer in range(LAYERS):
            values = torch.full((2, PROMPT, 1, 2), NOT_OURS)
            self.pool.copy_in(layer, self.places[name], 0, values)

    def _deliver(self, way: Way, parts: list[Raw], connection: int = THEIRS) -> None:
        envelope = decode_kv_head(parts[0])
        assert isinstance(envelope, Envelope)
        # Until a whole message came by a connection, what is damaged there is a stranger's.
        heard = way.came or parts in way.sent
        if way.is_open and connection == THEIRS and heard:
            way.came.append(parts)
        told = self.receiver.answer(envelope, parts, connection)
        if told is not None and len(told) == 2:
            head = decode_kv_head(told[0])
            assert isinstance(head, Envelope)
            way.answers.append(decode_kv_reply(Seal(way.key).open_answer(head, told)))

    @precondition(lambda self: any(way.channel for way in self.ways.values()))
    @rule(name=st.sampled_from(NAMES), times=st.integers(1, 9))
    def deliver(self, name: str, times: int) -> None:
        way = self.ways[name]
        for _ in range(min(times, len(way.channel))):
            self._deliver(way, way.channel.pop(0))

    @rule(name=st.sampled_from(NAMES))
    def lose(self, name: str) -> None:
        if self.ways[name].channel:
            self.ways[name].channel.pop(0)

    @rule(name=st.sampled_from(NAMES))
    def repeat(self, name: str) -> None:
        channel = self.ways[name].channel
        if channel:
            channel.insert(0, channel[0])

    @rule(name=st.sampled_from(NAMES), place=st.integers(0, 99))
    def reorder(self, name: str, place: int) -> None:
        channel = self.ways[name].channel
        if len(channel) > 1:
            at = place % (len(channel) - 1)
            channel[at], channel[at + 1] = channel[at + 1], channel[at]

    @rule(name=st.sampled_from(NAMES), part=st.integers(1, 2), place=st.integers(0, 9999))
    def damage(self, name: str, part: int, place: int) -> None:
        channel = self.ways[name].channel
        if channel:
            parts = list(channel[0])
            at = min(part, len(parts) - 1)
            spoilt = bytearray(parts[at])
            spoilt[place % len(spoilt)] ^= 1 << place % 8
            channel[0] = [*parts[:at], bytes(spoilt), *parts[at + 1 :]]

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 9))
    def stranger_knocks(self, name: str, number: int) -> None:
        """Who knows the reservation's name and not its key."""
        other = Seal(new_seal_key())
        self._deliver(
            self.ways[name], other.message(_envelope(name, number), _open(name)), ANOTHERS
        )

    @rule(name=st.sampled_from(NAMES), which=st.integers(0, 99), spoilt=st.booleans())
    def stranger_repeats(self, name: str, which: int, spoilt: bool) -> None:
        """Who saw messages go by sends one again by a connection of its own, whole or spoilt."""
        way = self.ways[name]
        if way.is_open and way.came:
            seen = way.came + way.channel[:1]
            *others, last = seen[which % len(seen)]
            self._deliver(way, [*others, bytes(last)[::-1] if spoilt else last], ANOTHERS)
            assert way.is_open

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        """As the worker does: the receiver lets go first."""
        way = self.ways[name]
        self.receiver.drop(name)
        if self.subject.cancel(name) is not None:
            way.committed = False
            self._give_to_another(name)

    @invariant()
    def committed_exactly_when_everything_came_once_and_in_order(self) -> None:
        for way in self.ways.values():
            if way.committed:
                assert way.came == way.sent
            if way.came == way.sent:
                assert not way.is_open

    @invariant()
    def what_is_committed_is_what_was_sent(self) -> None:
        for name, way in self.ways.items():
            if way.committed:
                for layer in range(LAYERS):
                    there = self.pool.read(layer, self.places[name], 0, PROMPT)
                    assert torch.equal(there, way.kv() + layer)

    @invariant()
    def what_failed_holds_nothing_and_nothing_is_written_for_it_any_more(self) -> None:
        kept = [name for name, way in self.ways.items() if not way.failed]
        assert set(self.subject.request_ids()) == set(kept)
        held = self.subject.pool.blocks_total - self.subject.pool.blocks_available
        assert held == BLOCKS_EACH * len(kept)
        for name, way in self.ways.items():
            if way.failed:
                for layer in range(LAYERS):
                    there = self.pool.read(layer, self.places[name], 0, PROMPT)
                    assert bool((there == NOT_OURS).all())

    @invariant()
    def each_hand_off_is_answered_at_most_once_and_truly(self) -> None:
        for way in self.ways.values():
            assert len(way.answers) <= 1
            assert not any(ack.committed for ack in way.answers) or way.came == way.sent

    def teardown(self) -> None:
        for name in NAMES:
            self.cancel(name)
        assert self.subject.pool.blocks_available == self.subject.pool.blocks_total
        self.context.destroy(linger=0)


BLOCKS_EACH = blocks_for(PROMPT, BLOCK)


def _pool() -> KvPool:
    return KvPool(
        SHAPE, blocks_total=BLOCKS_EACH * 2, block_tokens=BLOCK, device=torch.device("cpu")
    )


def _prompt(name: str) -> Request:
    return Request(
        request_id=name,
        tokens=[ord(name) + place for place in range(PROMPT)],
        prompt_tokens=PROMPT,
        max_tokens=2,
        arrived_s=0.0,
        deadline_s=1e9,
    )


def _envelope(name: str, number: int) -> Envelope:
    return Envelope(reservation_id=name, number=number)


def _open(name: str) -> Open:
    return Open(
        wire_version=WIRE_VERSION,
        reservation_id=name,
        request_id=name,
        from_box="A",
        fingerprint="f",
        layers=LAYERS,
        from_token=0,
        prompt_tokens=PROMPT,
        dtype="same",
    )


def _chunk(name: str, sequence: int, piece: Piece, size: int) -> Chunk:
    return Chunk(
        reservation_id=name,
        sequence=sequence,
        layer=piece.layer,
        layers=piece.layers,
        from_token=piece.start,
        tokens=piece.end - piece.start,
        bytes=size,
    )


def _close(name: str, chunks: int, size: int) -> Close:
    first = Token(request_id=name, index=0, token_id=1)
    return Close(reservation_id=name, chunks=chunks, bytes=size, first_token=first)


def _case(machine: type[Any]) -> Any:
    machine.TestCase.settings = BOUNDS
    return machine.TestCase


TestBlockPoolAndPrefixIndex = _case(PoolMachine)
TestRoutersPrefixMemory = _case(PrefixMachine)
TestScheduler = _case(SchedulerMachine)
TestHandoff = _case(HandoffMachine)


def test_an_opening_that_a_stranger_repeats_ends_no_hand_off() -> None:
    machine = HandoffMachine()
    machine.deliver("r", 1)
    machine.stranger_repeats("r", 0, spoilt=False)
    machine.deliver("r", 99)
    assert machine.ways["r"].committed
    machine.teardown()
