"""What happened to one request, kept while it happens and told as its record at the end."""

from __future__ import annotations

import asyncio
import time

from homesplit_engine.policy import Decision
from homesplit_engine.records import Outcome, RequestRecord, TransferEvent
from homesplit_engine.router.attempt import Order
from homesplit_engine.wire.messages import HandoffReport, PrefillDone


class Story:
    """Notes in the order of events; the first of a kind counts where there may be several."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.token_s: list[float] = []
        """When each token was given to the client."""
        self.cached_tokens = 0
        self.moves = 0
        """How often it went on elsewhere after something was lost."""
        self.split_committed = False
        self.reported = asyncio.Event()
        """Set once the sender's account of a committed hand-off is here."""
        self._why: list[str] = []
        self._first: Decision | None = None
        self._prefilled: PrefillDone | None = None
        self._transfer: TransferEvent | None = None
        self._committed_s: float | None = None

    @property
    def awaits_report(self) -> bool:
        """Whether the sender's account of a committed hand-off is still to come."""
        return self.split_committed and self._transfer is None

    def placed(self, decision: Decision) -> None:
        """It was given a box, or two."""
        self._first = self._first or decision
        self._why.append(decision.why)

    def cached(self, tokens: int) -> None:
        """So many tokens of its prompt were there already."""
        self.cached_tokens = max(self.cached_tokens, tokens)

    def prefilled(self, done: PrefillDone) -> None:
        """Its prompt was read. Where it is read again, all of it may be there, and answer too."""
        if self._prefilled is None:
            self.cached(done.cached_tokens)
            self._prefilled = done

    def committed(self) -> None:
        """Its hand-off was committed."""
        self.split_committed = True
        self._committed_s = time.monotonic()

    def transferred(self, report: HandoffReport) -> None:
        """The sender's account of a committed hand-off came."""
        if report.event.committed:
            self._transfer = report.event
            self.split_committed = True
            self.reported.set()

    def record(
        self,
        outcome: Outcome,
        error: str | None,
        finish_reason: str | None,
        placed: Decision | None,
    ) -> RequestRecord:
        """What happened, as far as it is known now; `placed` is the placement it has now."""
        first, prefilled, transfer = self._first, self._prefilled, self._transfer
        now = placed or first
        return RequestRecord(
            request_id=self.order.request_id,
            mode=self.order.setting.mode,
            served=self._served(),
            prefill=first.prefill if first else self.order.setting.prefill,
            prefill_box=first.prefill_box if first else None,
            decode_box=now.decode_box if now else None,
            why="; ".join(self._why) or "it was never placed",
            outcome=outcome,
            finish_reason=finish_reason,
            error=error,
            prompt_tokens=len(self.order.token_ids),
            output_tokens=len(self.token_s),
            cached_tokens=self.cached_tokens,
            received_s=self.order.received_s,
            token_s=tuple(self.token_s),
            tokenise_s=self.order.tokenise_s,
            queue_s=prefilled.queue_s if prefilled else None,
            prefill_s=prefilled.prefill_s if prefilled else None,
            handoff_s=transfer.end_s - transfer.start_s if transfer else None,
            handoff_exposed_s=transfer.exposed_s if transfer else None,
            handoff_bytes=transfer.bytes if transfer else None,
            handoff_tokens=transfer.tokens if transfer else None,
            first_decode_s=self._first_decode_s(),
            resubmitted=self.moves,
            wall_time=self.order.wall_time,
        )

    def _served(self) -> str:
        if not self.token_s:
            return "none"
        if self.moves:
            return "resumed"
        return "split" if self.split_committed else "colocated"

    def _first_decode_s(self) -> float | None:
        if len(self.token_s) < 2 or self.moves:
            return None
        began_s = self._committed_s if self.split_committed else self.token_s[0]
        return max(0.0, self.token_s[1] - began_s) if began_s is not None else None
