"""Who is let in: bounded queues, and an early refusal of whom waiting could only disappoint."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from homesplit_engine.config import RouterConfig
from homesplit_engine.router.board import Board
from homesplit_engine.router.errors import bad_request, busy
from homesplit_engine.router.overload import Overload
from homesplit_engine.router.pressure import Pressure

MOST_RETRY_S = 60.0
SURE_SHARE = 0.8
"""A request is let in when its expected wait is within this share of its limit: waits scatter."""


class Ahead(Struct, frozen=True, kw_only=True):
    """What waits to be read where a request would go."""

    requests: int
    wait_s: float
    """Until its own first token."""


class Admission:
    """Judges each request before it is taken in; once in, it is never dropped."""

    def __init__(
        self,
        config: RouterConfig,
        board: Board,
        pressure: Pressure,
        there: Callable[[int], Ahead | None],
        clock: Callable[[], float],
    ) -> None:
        """`there` tells what waits where a prompt of so many tokens would be read now."""
        self._config = config
        self._board = board
        self._pressure = pressure
        self._there = there
        self._clock = clock
        self._overload = Overload(config.ttft_target_s)

    def admit(
        self,
        requests: int,
        prompt_tokens: int = 0,
        first_token_s: float | None = None,
        ttft_target_s: float | None = None,
    ) -> None:
        """Raise the 400 or 429 when so many more would overfill the queue or come too late.

        `first_token_s`: when the client gives up; the settings' own limit always holds, and
        under overload the TTFT target as well: the request's own, else the deployment's.
        """
        if requests > self._config.max_waiting:
            raise bad_request(
                f"The prompts and choices of this body make {requests} requests, the most that is "
                f"ever let in is {self._config.max_waiting}. Ask in several bodies."
            )
        waiting = self._board.counts().waiting
        if waiting + requests > self._config.max_waiting:
            raise busy(
                f"{waiting} requests wait for their first token already, the most that is let in "
                f"is {self._config.max_waiting}. Try again later.",
                retry_after_s=self._drain_s(),
            )
        ahead = self._board.tokens_waiting()
        if not ahead:
            self._pressure.nobody_waits(self._clock())
        wait_s = self._pressure.wait_s(ahead + prompt_tokens)
        if wait_s is None:
            return
        alone_s = self._pressure.wait_s(prompt_tokens) or 0.0
        ahead_s = self._pressure.wait_s(ahead) or 0.0
        target_s = self._overload.limit_s(
            ahead_s, alone_s, self._clock(), waiting=waiting, own_s=ttft_target_s
        )
        limit_s = self._strictest_s(first_token_s, target_s)
        # With nobody ahead nothing is gained by refusing, however slow the boxes are.
        if limit_s is None or not ahead or wait_s <= SURE_SHARE * limit_s:
            return
        # All boxes together are too busy; the one that it would go to may have nobody waiting.
        there = self._there(prompt_tokens) if requests == 1 else None
        if there is not None:
            waiting, wait_s = there.requests, there.wait_s
            if not waiting or wait_s <= SURE_SHARE * limit_s:
                return
        raise busy(
            f"The first token would come after about {wait_s:.1f} s, behind {waiting} others; "
            f"the limit is {limit_s:g} s. Try again later.",
            retry_after_s=min(MOST_RETRY_S, wait_s - SURE_SHARE * limit_s),
        )

    def _strictest_s(self, client_s: float | None, target_s: float | None) -> float | None:
        """The strictest limit that holds now; None when there is none."""
        limits = (client_s, self._config.first_token_deadline_s, target_s)
        return min((limit for limit in limits if limit is not None), default=None)

    def _drain_s(self) -> float:
        """How long the prompts now waiting take, as measured; else one second."""
        drain_s = self._pressure.wait_s(self._board.tokens_waiting())
        return min(MOST_RETRY_S, max(1.0, drain_s or 1.0))
