"""The worker: one whole model, no role. Reads, writes, or hands over, as each request says.

Threads: `control` (router's messages, answered at once), the main thread (steps),
`kv-sender` (one a peer), `kv-receiver`, `gatekeeper`, `look at …` (what may hang: disk, power),
`first-touch` (lays KV memory ahead of its use).
"""

from __future__ import annotations

import os
import secrets

import zmq

from homesplit_engine.cache import KvPool
from homesplit_engine.config import Keys, WorkerConfig, WorkerEndpoints
from homesplit_engine.control import ControlDoor
from homesplit_engine.graphs import why_no_graphs
from homesplit_engine.handoff.receiver import Receiver
from homesplit_engine.handoff.senders import Senders
from homesplit_engine.keys import ROUTER
from homesplit_engine.model import LoadedModel
from homesplit_engine.parent import Parent
from homesplit_engine.runner import Runner
from homesplit_engine.wire import sockets
from homesplit_engine.wire.messages import ToRouter
from homesplit_engine.worker.about import About
from homesplit_engine.worker.handoffs import Handoffs
from homesplit_engine.worker.intake import FailureKind, Intake, failed_message
from homesplit_engine.worker.state import State
from homesplit_engine.worker.steps import Steps

LINGER_MS = 500
"""How long the last messages to the router may take to leave."""


class Worker:
    """Puts one worker's parts together, starts them and ends them."""

    def __init__(
        self, config: WorkerConfig, keys: Keys, loaded: LoadedModel, blocks_total: int
    ) -> None:
        self._config = config
        self._keys = keys
        self._parent = None if config.parent_pid is None else Parent(config.parent_pid)
        self.state = State(config, keys, loaded, blocks_total)
        graphs = config.cuda_graphs and why_no_graphs(loaded) is None
        pool = KvPool(
            loaded.kv_shape,
            blocks_total=blocks_total,
            block_tokens=config.block_tokens,
            device=loaded.device,
            spare=graphs,
        )
        runner = Runner(loaded, pool, graphs=graphs)
        handoffs = Handoffs(self.state, tell=self._tell, failed=self._tell_failed)
        self._context = zmq.Context()
        # Made afresh for each process: who was let in by the last one asks the router again.
        kv_password = secrets.token_urlsafe(32)
        self._gate = sockets.Gatekeeper(
            self._context,
            {sockets.CONTROL_DOMAIN: {ROUTER: keys.allowed[ROUTER]}},
            {sockets.KV_DOMAIN: kv_password},
        )
        self._receiver = Receiver(
            self._context,
            host=config.kv_bind_host or config.bind_host,
            port=config.kv_port,
            fingerprint=loaded.fingerprint,
            pool=pool,
            arrived=handoffs.arrived,
            failed=handoffs.not_arrived,
        )
        self._senders = Senders(
            self._context,
            box=config.box,
            fingerprint=loaded.fingerprint,
            pool=pool,
            ended=handoffs.sent,
        )
        self._about = About(self.state, self._receiver.endpoint, self._senders)
        self._intake = Intake(
            self.state,
            about=self._about,
            runner=runner,
            receiver=self._receiver,
            senders=self._senders,
            kv_password=kv_password,
            failed=self._tell_failed,
        )
        self._steps = Steps(
            self.state,
            runner=runner,
            tell=self._tell,
            failed=self._tell_failed,
        )
        self._control = ControlDoor(
            self._context,
            keys=keys,
            host=config.bind_host,
            port=config.control_port,
            heard=self._intake.hear,
            router_lost=self._intake.cancel_all,
            reached=self.state.reached,
            tick=self._tick,
        )

    @property
    def endpoints(self) -> WorkerEndpoints:
        """What the ready file says."""
        return WorkerEndpoints(
            box=self._config.box,
            pid=os.getpid(),
            control_endpoint=self._control.endpoint,
            kv_endpoint=self._receiver.endpoint,
            public_key=self._keys.public,
            fingerprint=self.state.loaded.fingerprint,
        )

    def start(self) -> None:
        """Starts every thread but the steps'."""
        self._receiver.start()
        self._control.start()

    def run(self) -> None:
        """Computes steps until told to stop."""
        self._steps.run()

    def stop(self) -> None:
        """Ends all threads and sockets: first all are asked, then each is waited for."""
        self.state.stop_soon()
        parts = (self._senders, self._receiver, self._gate, self._control, self._about)
        for part in parts:
            part.stop_soon()
        for part in parts:
            part.join()
        self._context.destroy(linger=LINGER_MS)

    def _tick(self) -> None:
        """A few times a second: deadlines, and whether the process it belongs to is there."""
        self._intake.end_overdue()
        if self._parent is not None and not self._parent.lives:
            self.state.stop_soon()

    def _tell(self, message: ToRouter) -> None:
        self._control.tell(message)

    def _tell_failed(self, request_id: str, kind: FailureKind, what: str) -> None:
        self._control.tell(failed_message(request_id, kind, what))
