"""Progress with a total as one line that is drawn over, where stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from homesplit.cli.output import say_raw
from homesplit.core.events import Event, Progress
from homesplit.stages.context import Context

_BAR_CELLS = 30
_PLAIN_STEP = 0.1
"""Without a terminal a line is written for each further tenth only."""
_PLAIN_STEP_OF_TIME = 0.25
"""The same of what merely takes its time, as a load does."""


@contextmanager
def with_progress_line(ctx: Context) -> Generator[Context, None, None]:
    """`ctx`, whose counted progress is drawn in place; everything else is told as before."""
    line = _Line(ctx)
    try:
        yield replace(ctx, emit=line.emit)
    finally:
        line.end()


class _Line:
    def __init__(self, ctx: Context) -> None:
        self._tell = ctx.emit
        self._open = False
        self._reached: dict[tuple[str | None, str], int] = {}
        self._terminal = sys.stderr.isatty()

    def emit(self, event: Event) -> None:
        """Draw counted progress; pass on everything else."""
        if not isinstance(event, Progress) or not event.total:
            self.end()
            self._tell(event)
        elif self._terminal:
            self._draw(event, event.done / event.total)
        else:
            self._step(event, event.done / event.total)

    def end(self) -> None:
        """Leave the drawn line."""
        if self._open:
            say_raw("\n")
            self._open = False

    def _draw(self, event: Progress, share: float) -> None:
        filled = round(_BAR_CELLS * min(share, 1.0))
        bar = "#" * filled + "." * (_BAR_CELLS - filled)
        box = f"{event.box}: " if event.box else ""
        say_raw(f"\r\x1b[K[{bar}] {share:4.0%} {box}{event.sentence}")
        self._open = True

    def _step(self, event: Progress, share: float) -> None:
        key = (event.box, event.step)
        size = _PLAIN_STEP_OF_TIME if event.unit == "s" else _PLAIN_STEP
        reached = int(share / size)
        if self._reached.get(key) != reached:
            self._reached[key] = reached
            self._tell(event)
