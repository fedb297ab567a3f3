"""A probe in the notebook: from its beginning, figure by figure, and whole."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

from homesplit.core.entry import About
from homesplit.core.events import Progress
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.probe_words import probe_words
from homesplit.errors import NotebookError
from homesplit.stages.context import Context
from homesplit.stages.notebook import Course


class ProbeEntry:
    """The entry of one probe; what was measured is in it before it is told.

    A probe stands whether or not it can be written down: that it can't is told once.
    """

    def __init__(self, ctx: Context, names: Sequence[str]) -> None:
        self._ctx = ctx
        self._names = names
        self._course: Course | None = Course(ctx, "probe")
        self._boxes: list[BoxProfile] = []
        self._link: LinkProfile | None = None

    @contextlib.contextmanager
    def open(self) -> Generator[None, None, None]:
        """The entry is there from the beginning of the block on."""
        course = self._course
        self._write(f"Probe of {' and '.join(self._names)}, not ended: begun.")
        with course.open() if course else contextlib.nullcontext():
            yield

    def box(self, profile: BoxProfile) -> None:
        """One more box has been measured."""
        self._boxes.append(profile)
        self._write(f"Probe, not ended: {self._words}")

    def link(self, link: LinkProfile) -> None:
        """The link has been measured."""
        self._link = link
        self._write(f"Probe, not ended: {self._words}")

    def ended(self, kept: Sequence[str]) -> None:
        """All that was asked for has been measured; `kept` are older figures that stay."""
        self._write(self._words, kept, ended=True)

    @property
    def _words(self) -> str:
        return probe_words(self._names, self._boxes, self._link)

    def _write(self, sentence: str, kept: Sequence[str] = (), *, ended: bool = False) -> None:
        if self._course is None:
            return
        boxes, link = tuple(self._boxes), self._link
        about = About(boxes=boxes, link=link, loopback=link.loopback if link else None)
        body: dict[str, Any] = {"boxes": boxes, "link": link, "kept": tuple(kept)}
        try:
            self._course.so_far(sentence, body, about=about, ended=ended)
        except NotebookError as error:
            self._course = None
            told = f"This is not in the notebook: {error.sentence()}"
            self._ctx.emit(Progress(stage="notebook", step="write", sentence=told))
