"""Several hand-offs over one healthy link: what the sender tells and the router makes of it."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import zmq
from homesplit_engine.cache import KvPool, KvShape
from homesplit_engine.handoff.layout import token_wire_bytes
from homesplit_engine.handoff.sender import Layer, Outgoing, Sender, _door, _Peer
from homesplit_engine.router.handover import Handover, Way
from homesplit_engine.wire.messages import HandoffSecret, HandoffTarget, Token

LAYERS = 4
SHAPE = KvShape(kv_heads=(16,) * LAYERS, head_dim=(64,) * LAYERS, dtype=torch.float32)
LINK_BYTES_PER_S = 2.5e6
"""20 Mbit/s."""
READS_TOKENS_PER_S = 2000
ON_THE_WAY_BYTES = 8e6
"""What is given and has not arrived, at most."""
TURN_S = 0.02
DETECTION_S = 2.0
Works = Sequence[tuple[int, int, int]]
"""Of each prompt of a step: which one, from which token, up to which."""


class Wire(_Peer):
    """A connection that carries as much as it is known to."""

    def __init__(self) -> None:
        self.given_bytes = 0
        self.arrived: float = 0.0

    def unacknowledged(self, upto: int) -> int:
        return max(0, upto - int(self.arrived))

    def carry(self, seconds: float) -> None:
        self.arrived = min(self.given_bytes, self.arrived + seconds * LINK_BYTES_PER_S)


def _nothing(*_: Any) -> None:
    return None


def outgoing_of(number: int, tokens: int) -> Outgoing:
    target = HandoffTarget(
        reservation_id=str(number),
        box="b",
        endpoint="",
        secret=HandoffSecret(password="", seal_key=bytes(32)),
        fingerprint="f",
        cached_tokens=0,
    )
    return Outgoing(request_id=str(number), target=target, prompt_tokens=tokens, deadline_s=1e9)


def steps(prompts: Sequence[int], chunk: int) -> Iterator[Works]:
    """Prompts read one behind the other, so many tokens a step; the next fills what one leaves."""
    left = [(n, at) for n, tokens in enumerate(prompts) for at in range(tokens)]
    for begin in range(0, len(left), chunk):
        part = itertools.groupby(left[begin : begin + chunk], key=lambda one: one[0])
        spans = [(n, [at for _, at in ats]) for n, ats in part]
        yield [(n, ats[0], ats[-1] + 1) for n, ats in spans]


class Run:
    """The sender, its wire and the router's view of each hand-off, in a time of their own."""

    def __init__(self, prompts: Sequence[int]) -> None:
        self.prompts = prompts
        self.now_s = 0.0
        pool = KvPool(SHAPE, blocks_total=1, block_tokens=8, device=torch.device("cpu"))
        self.context: zmq.Context[Any] = zmq.Context()
        self.sender = Sender(self.context, box="a", fingerprint="f", pool=pool, ended=_nothing)
        self.all = [outgoing_of(number, tokens) for number, tokens in enumerate(prompts)]
        self.wire = Wire()
        self.sender._peers[_door(self.all[0].target)] = self.wire
        self.views = [Handover(DETECTION_S) for _ in prompts]
        self.given_up: list[str] = []
        self._told_s = 0.0

    def read(self, works: Works) -> None:
        """One step, layer by layer."""
        took_s = sum(end - begin for _, begin, end in works) / READS_TOKENS_PER_S
        for layer in range(LAYERS):
            self.pass_time(took_s / LAYERS)
            for number, begin, end in works:
                self.sender.layer_done(self.all[number], layer, begin, end)
        for number, _, end in works:
            if end == self.prompts[number]:
                token = Token(request_id=str(number), index=0, token_id=1)
                self.sender.prefilled(self.all[number], token, self.now_s)
                self.views[number].first_token_came(self.now_s)

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TURN_S
            self.wire.carry(TURN_S)
            self._send()
            if self.now_s >= self._told_s:
                self._told_s = self.now_s + DETECTION_S / 4
                self._tell()

    def _send(self) -> None:
        """As the sender's thread does, as long as the wire takes it."""
        notes = self.sender._notes
        while notes and self.wire.unacknowledged(self.wire.given_bytes) < ON_THE_WAY_BYTES:
            note = notes.popleft()
            if isinstance(note, Layer):
                tokens = note.piece.end - note.piece.start
                size = tokens * token_wire_bytes(SHAPE, "same") // LAYERS
                note.outgoing.opened = True
                note.outgoing.bytes += size
                self.wire.given_bytes += size
                note.outgoing.ends_at = self.wire.given_bytes

    def _tell(self) -> None:
        for told in self.sender.sending():
            number, left = int(told.request_id), told.left_bytes
            view = self.views[number]
            view.seen(left + told.ahead_bytes if left else 0, self.now_s)
            read_s = self.prompts[number] / READS_TOKENS_PER_S
            whole = self.prompts[number] * token_wire_bytes(SHAPE, "same")
            why = view.look(Way(whole, LINK_BYTES_PER_S, read_s), self.now_s)
            if why is not None:
                self.given_up.append(f"{number} at {self.now_s:.1f} s: {why}")

    @property
    def is_through(self) -> bool:
        return not self.sender._notes and self.wire.arrived >= self.wire.given_bytes


@pytest.mark.parametrize(
    ("prompts", "chunk"),
    [([640, 1280, 640], 256), ([32] * 8, 256), ([300] * 3, 900), ([100, 900, 20, 20], 64)],
    ids=["chunks that two share", "many in one step", "read whole together", "long and short"],
)
def test_over_a_link_as_fast_as_it_is_known_to_be_no_hand_off_is_given_up(
    prompts: Sequence[int], chunk: int
) -> None:
    run = Run(prompts)
    for works in steps(prompts, chunk):
        run.read(works)
    while not run.is_through:
        run.pass_time(1.0)
    run.context.destroy(linger=0)
    assert run.given_up == []
    assert run.wire.given_bytes == sum(prompts) * token_wire_bytes(SHAPE, "same")
