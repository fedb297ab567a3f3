"""The block pool, prefix index, scheduler and hand-off as state machines: any order of events.

What must hold after every event stands in each machine's invariants.
"""

from __future__ import annotations

from typing import Any

from homesplit_engine.handoff.ledger import HandoffRefused, Ledger
from homesplit_engine.pages import BlockPool, chain_hash
from homesplit_engine.request import Phase, Request
from homesplit_engine.scheduler import Limits, Scheduler, StepPlan
from homesplit_engine.wire.messages import Chunk, Close, Token
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


class HandoffMachine(RuleBasedStateMachine):
    """One hand-off over a channel that loses, repeats and reorders; the receiver's own checks."""

    def __init__(self) -> None:
        super().__init__()
        self.subject = Scheduler(BlockPool(8, BLOCK), Limits(max_context=64))
        request = Request(
            request_id="r",
            tokens=list(range(PROMPT)),
            prompt_tokens=PROMPT,
            max_tokens=8,
            arrived_s=0.0,
            deadline_s=1e9,
        )
        assert self.subject.reserve(request, now_s=0.0) is None
        self.channel: list[Chunk | Close] = _messages()
        self.sent = list(self.channel)
        self.seen: list[Chunk | Close] = []
        self.ledger: Ledger | None = Ledger(layers=LAYERS, from_token=0, prompt_tokens=PROMPT)
        self.wrote: dict[tuple[int, int], int] = {}
        self.committed = False

    @precondition(lambda self: self.channel)
    @rule()
    def deliver(self) -> None:
        self._receive(self.channel.pop(0))

    @precondition(lambda self: self.channel)
    @rule()
    def lose(self) -> None:
        self.channel.pop(0)

    @precondition(lambda self: self.channel)
    @rule()
    def repeat(self) -> None:
        self.channel.insert(0, self.channel[0])

    @precondition(lambda self: len(self.channel) > 1)
    @rule(place=st.integers(0, 99))
    def reorder(self, place: int) -> None:
        at = place % (len(self.channel) - 1)
        self.channel[at], self.channel[at + 1] = self.channel[at + 1], self.channel[at]

    @rule()
    def cancel(self) -> None:
        self.subject.cancel("r")
        self.ledger = None

    def _receive(self, message: Chunk | Close) -> None:
        """As the receiver does: the first thing that is not as it must be ends the hand-off."""
        if self.ledger is None:
            return
        self.seen.append(message)
        try:
            if isinstance(message, Chunk):
                size = message.tokens * message.layers
                self.ledger.check(message, expected_bytes=size, frame_bytes=message.bytes)
                self.ledger.note(message)
                for layer in range(message.layer, message.layer + message.layers):
                    for token in range(message.from_token, message.from_token + message.tokens):
                        self.wrote[layer, token] = message.sequence
            else:
                self.ledger.close(message)
                self.ledger = None
                self.committed = self.subject.commit("r", message.first_token.token_id)
        except HandoffRefused:
            self.ledger = None
            self.subject.cancel("r")

    @invariant()
    def committed_exactly_when_everything_came_once_and_in_order(self) -> None:
        assert self.committed == (self.committed and self.seen == self.sent)
        if self.seen == self.sent and self.ledger is None:
            assert self.committed
        if self.committed:
            everything = {(layer, token) for layer in range(LAYERS) for token in range(PROMPT)}
            assert set(self.wrote) == everything

    @invariant()
    def what_was_refused_holds_nothing(self) -> None:
        if self.ledger is None and not self.committed:
            assert self.subject.pool.blocks_available == self.subject.pool.blocks_total
            assert self.subject.request_ids() == ()


def _messages() -> list[Chunk | Close]:
    """Two layers in one frame and one alone, for each piece of the prompt."""
    chunks: list[Chunk] = []
    for start in range(0, PROMPT, PIECE):
        tokens = min(PIECE, PROMPT - start)
        for layer, layers in ((0, 2), (2, 1)):
            chunks.append(
                Chunk(
                    reservation_id="v",
                    sequence=len(chunks),
                    layer=layer,
                    layers=layers,
                    from_token=start,
                    tokens=tokens,
                    bytes=tokens * layers,
                )
            )
    size = sum(chunk.bytes for chunk in chunks)
    first = Token(request_id="r", index=0, token_id=1)
    return [*chunks, Close(reservation_id="v", chunks=len(chunks), bytes=size, first_token=first)]


def _case(machine: type[Any]) -> Any:
    machine.TestCase.settings = BOUNDS
    return machine.TestCase


TestBlockPoolAndPrefixIndex = _case(PoolMachine)
TestScheduler = _case(SchedulerMachine)
TestHandoff = _case(HandoffMachine)
