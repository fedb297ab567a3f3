"""Command of the lesson in what survives: break a box or the link for some seconds."""

from __future__ import annotations

from typing import Any

from homesplit_engine.records import Fault

from homesplit.controller.base import Base, stage_module
from homesplit.core import events
from homesplit.core.engine_state import MENDED
from homesplit.stages.context import Context


class Faulting(Base):
    """Faults on purpose, in the demo and in a lab only."""

    worker_pids: dict[str, int]
    """The demo's own workers by box; empty elsewhere."""

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self.worker_pids = {}

    def _breaker(self) -> Any:
        module = stage_module("fault")
        return module.OwnWorkers(self.worker_pids) if self.demo else module.lab_breaker()

    def fault_choices(self) -> tuple[Any, ...]:
        """What can be broken here; nothing outside of demo and lab."""
        breaker = self._breaker()
        if breaker is None:
            return ()
        found: tuple[Any, ...] = stage_module("fault").choices(breaker, self.deployed_boxes())
        return found

    def inject(self, choice: Any) -> None:
        """Break it for some seconds; begin and end are marked on the charts and strips."""
        breaker = self._breaker()

        async def work(ctx: Context) -> None:
            self._mark(choice.what, choice.box, choice.happened)
            try:
                await stage_module("fault").break_for_a_while(breaker, choice)
            finally:
                self._mark(MENDED, choice.box, f"{choice.box} is as before.")

        self.start("fault", work)

    def _mark(self, kind: str, box: str, sentence: str) -> None:
        fault = Fault(at_s=self.engine_now_s(), box=box, kind=kind, sentence=sentence)
        self.emit(events.FaultSeen(fault=fault))
