"""What the threads of one worker share: its settings, its requests, and one lock for both."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from homesplit_engine.pages import BlockPool
from homesplit_engine.request import Phase, Request
from homesplit_engine.scheduler import Limits, Scheduler

if TYPE_CHECKING:
    from homesplit_engine.config import Keys, WorkerConfig
    from homesplit_engine.handoff.sender import Outgoing
    from homesplit_engine.handoff.senders import Senders
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
        self.outgoing: dict[str, Outgoing] = {}
        """Requests that are read here and handed over, by id, until their hand-off has ended."""

    def stop_soon(self) -> None:
        """Asks the step loop to end. Takes no lock: a signal handler may call it."""
        self.stopping.set()

    def reached(self, fd: int) -> None:
        """The router spoke over this connection."""
        self.router_fd = fd

    def let_go(self, request: Request | None, why: str, senders: Senders) -> None:
        """Ends the hand-off of a request that was just cancelled; the lock is held."""
        outgoing = None if request is None else self.outgoing.get(request.request_id)
        if request is None or outgoing is None:
            return
        if request.phase is Phase.HANDING_OVER:
            senders.give_up(outgoing, why)
        else:
            del self.outgoing[request.request_id]
