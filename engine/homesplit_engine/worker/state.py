"""What the threads of one worker share: its settings, its requests, and one lock for both."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from homesplit_engine.pages import BlockPool
from homesplit_engine.request import Phase
from homesplit_engine.scheduler import Limits, Scheduler

if TYPE_CHECKING:
    from homesplit_engine.config import Keys, WorkerConfig
    from homesplit_engine.handoff.departure import Departure
    from homesplit_engine.model import LoadedModel


class State:
    """The requests of one worker. Whoever looks at or changes them holds `changed`'s lock.

    The lock is never held while anything computes, sends or waits.
    """

    def __init__(
        self, config: WorkerConfig, keys: Keys, loaded: LoadedModel, blocks_total: int
    ) -> None:
        self.config = config
        self.keys = keys
        self.loaded = loaded
        self.scheduler = Scheduler(
            BlockPool(blocks_total, config.block_tokens, prefix_cache=config.prefix_cache),
            Limits(
                max_batch_requests=config.max_batch_requests,
                max_step_tokens=config.max_step_tokens,
                max_waiting=config.max_waiting,
                max_context=loaded.max_context,
            ),
        )
        self.changed = threading.Condition(threading.RLock())
        """Notified when there may be something to compute, or when the worker is to stop."""
        self.stopping = threading.Event()
        self.router_fd: int | None = None
        """The router's connection, once it has said something."""
        self.departures: dict[str, Departure] = {}
        """Requests that are read here and handed over, by id, until their hand-off has ended."""

    def stop_soon(self) -> None:
        """Asks the step loop to end. Takes no lock: a signal handler may call it."""
        self.stopping.set()

    def reached(self, fd: int) -> None:
        """The router spoke over this connection."""
        self.router_fd = fd

    def let_go(self, request_id: str, why: str, *, wanted: bool = True) -> None:
        """Ends the hand-off of a request that was just cancelled; the lock is held.

        It is not `wanted` where the answer ended by itself, with its first token.
        """
        departure, request = self.departures.get(request_id), self.scheduler.request(request_id)
        if departure is None:
            return
        read_by_sender = request is not None and request.phase is Phase.HANDING_OVER
        if read_by_sender and departure.give_up(why, wanted=wanted):
            return  # its sender says when the blocks are free
        del self.departures[request_id]
        self.scheduler.handoff_ended(request_id)

    def lost_without_target(self, now_s: float) -> list[str]:
        """Prompts that are read here and were not told in time where to go; the lock is held."""
        return [
            name
            for name, departure in self.departures.items()
            if not departure.has_target and departure.deadline_s <= now_s
        ]
