"""A prompt that is read here for a peer: what was read before it is known where to is kept."""

from __future__ import annotations

import threading

from homesplit_engine.cache import Place
from homesplit_engine.handoff.sender import Outgoing
from homesplit_engine.handoff.senders import Senders
from homesplit_engine.wire.messages import HandoffTarget, Token


class Departure:
    """One hand-off from here, from when its prompt is taken in.

    It is told its target before, while or after the prompt is read. The step's thread tells it of
    layers while the control thread may tell it the target; all else is told under the worker's
    lock.
    """

    def __init__(
        self,
        senders: Senders,
        *,
        request_id: str,
        prompt_tokens: int,
        layers: int,
        deadline_s: float,
    ) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.deadline_s = deadline_s
        self._senders = senders
        self._read = [0] * layers
        """Leading tokens of each layer whose K and V are in the pool."""
        self._place: Place | None = None
        self._first: tuple[Token, float] | None = None
        """The first token and when the prompt was read to its end."""
        self._outgoing: Outgoing | None = None
        self._lock = threading.Lock()
        """Held while notes are passed on, so that each layer's come in order."""

    @property
    def has_target(self) -> bool:
        """Whether it is known where it goes."""
        return self._outgoing is not None

    @property
    def has_place(self) -> bool:
        """Whether it is known where its KV lies."""
        return self._place is not None

    def lies_at(self, place: Place, cached_tokens: int) -> None:
        """It was given its blocks, in which so many leading tokens' KV is already."""
        with self._lock:
            self._place = place
            if self._outgoing is not None:
                self._outgoing.place = place
        for layer in range(len(self._read)):
            self.layer_done(layer, 0, cached_tokens)

    def layer_done(self, layer: int, start: int, end: int) -> None:
        """K and V of tokens [start, end) of one layer are in the pool; those before it were."""
        with self._lock:
            self._read[layer] = end
            if self._outgoing is not None:
                self._pass_on(self._outgoing, layer, start, end)

    def prefilled(self, first_token: Token, now_s: float) -> None:
        """The prompt is read to its end, and `layer_done` has told of all of it."""
        self._first = (first_token, now_s)
        if self._outgoing is not None:
            self._senders.prefilled(self._outgoing, first_token, now_s)

    def send_to(self, target: HandoffTarget) -> None:
        """It goes there; what was read by now goes at once. The first word counts."""
        with self._lock:
            if self._outgoing is not None:
                return
            outgoing = Outgoing(
                request_id=self.request_id,
                target=target,
                prompt_tokens=self.prompt_tokens,
                deadline_s=self.deadline_s,
            )
            outgoing.place = self._place
            self._outgoing = outgoing
            for layer, end in enumerate(self._read):
                self._pass_on(outgoing, layer, 0, end)
        if self._first is not None:
            self._senders.prefilled(outgoing, *self._first)

    def give_up(self, why: str, *, wanted: bool = True) -> bool:
        """Stop it; False when nothing was to be sent yet, so that no sender will tell its end.

        It is not `wanted` where the answer ended by itself: then its end is nobody's news.
        """
        if self._outgoing is None:
            return False
        self._outgoing.wanted = self._outgoing.wanted and wanted
        self._senders.give_up(self._outgoing, why)
        return True

    def _pass_on(self, outgoing: Outgoing, layer: int, start: int, end: int) -> None:
        start = max(start, outgoing.target.cached_tokens)
        if start < end:
            self._senders.layer_done(outgoing, layer, start, end)
