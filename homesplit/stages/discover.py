"""Finds the machines that could share a model, tries each, and says why one is not usable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from homesplit.core.events import BoxFound, BoxGone, Progress, StageEnded, StageStarted
from homesplit.core.found import Hint, Tried, advice_when_empty, merge
from homesplit.core.machine import Address, FoundBox
from homesplit.io.box_store import KnownBox, find_box, remember_box
from homesplit.io.discovery import (
    Browser,
    browsing_addresses,
    configured_hints,
    remembered_hints,
    this_machine,
    trust_files,
    typed_hints,
)
from homesplit.io.knock import Knocker
from homesplit.io.paths import Paths
from homesplit.io.target import split_target
from homesplit.stages.context import Context

_WATCH_EVERY_S = 10.0
_SETTLE_S = 0.5
_REST_S = 0.8 * _WATCH_EVERY_S
"""Announcements that come meanwhile are no reason to ask a machine that has just answered."""
BEING_TRIED = "being tried…"
_OVERFULL = (
    "So much is announced here that some of it is left out: name a machine by its address, as "
    "`homesplit discover user@192.168.1.20`."
)


def typed_box(target: str, *, why: str | None = None) -> FoundBox:
    """A machine that the person named, before anybody tried it; `why` it can't be used yet.

    Raises UsageError.
    """
    user, host, port = split_target(target)
    return FoundBox(
        name=host,
        addresses=(Address(address=host, port=port or 22),),
        found_by=("typed",),
        usable=why is None,
        why=why,
        user=user,
    )


class Typed:
    """Machines that the person names while `watch` looks; it tries them with all the others."""

    def __init__(self) -> None:
        self.targets: tuple[str, ...] = ()
        self._fresh: dict[str, FoundBox] = {}
        self.on_news: Callable[[], None] = _nothing

    def add(self, target: str) -> FoundBox:
        """The machine as it is listed until it has been tried; raises UsageError."""
        box = typed_box(target, why=BEING_TRIED)
        self.targets = tuple(dict.fromkeys((*self.targets, target)))
        self._fresh[box.name] = box
        self.on_news()
        return box

    def take(self) -> dict[str, FoundBox]:
        """Those that came since the last time."""
        fresh, self._fresh = self._fresh, {}
        return fresh


async def discover(
    ctx: Context, *, seconds: float, typed: Sequence[str] = ()
) -> tuple[FoundBox, ...]:
    """Look for `seconds`, then try every address; each machine is listed once."""
    ctx.emit(StageStarted(stage="discover", sentence=f"Looking for machines for {seconds:g} s."))
    browser = Browser(browsing_addresses(), _nothing)
    try:
        trouble = await browser.start()
        if trouble:
            ctx.emit(Progress(stage="discover", step="mdns", sentence=f"{trouble}."))
        else:
            await asyncio.sleep(seconds)
        if browser.overfull:
            _tell_overfull(ctx)
        boxes = await _look(ctx, browser, Knocker(0.0), typed)
    finally:
        await browser.close()
    for box in boxes:
        ctx.emit(BoxFound(box=box))
    advice = advice_when_empty(boxes)
    usable = sum(b.usable and not b.this_machine for b in boxes)
    sentence = advice or f"{usable} other machine{'s' * (usable != 1)} can be used."
    ctx.emit(StageEnded(stage="discover", sentence=sentence))
    return boxes


async def watch(ctx: Context, typed: Typed | None = None) -> None:
    """Look until cancelled, telling each machine as it appears, changes or goes."""
    changed = asyncio.Event()
    typed = typed or Typed()
    typed.on_news = changed.set
    browser = Browser(browsing_addresses(), changed.set)
    knocker = Knocker(_REST_S)
    seen: dict[str, FoundBox] = {}
    told = False
    try:
        trouble = await browser.start()
        if trouble:
            ctx.emit(Progress(stage="discover", step="mdns", sentence=f"{trouble}."))
        while True:
            # As they are listed by now: one that proves to be known under another name goes again.
            seen |= typed.take()
            boxes = {box.name: box for box in await _look(ctx, browser, knocker, typed.targets)}
            _tell_changes(ctx, seen, boxes)
            seen = boxes
            if browser.overfull and not told:
                told = True
                _tell_overfull(ctx)
            changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_EVERY_S):
                    await changed.wait()
            # Announcements come in bursts, one for each service.
            await asyncio.sleep(_SETTLE_S)
    finally:
        await browser.close()


def _tell_overfull(ctx: Context) -> None:
    ctx.emit(Progress(stage="discover", step="mdns", sentence=_OVERFULL))


def _tell_changes(ctx: Context, before: dict[str, FoundBox], after: dict[str, FoundBox]) -> None:
    for name, box in after.items():
        if before.get(name) != box:
            ctx.emit(BoxFound(box=box))
    for name in before.keys() - after.keys():
        ctx.emit(BoxGone(name=name))


async def _look(
    ctx: Context, browser: Browser, knocker: Knocker, typed: Sequence[str] = ()
) -> tuple[FoundBox, ...]:
    own, own_key = await asyncio.to_thread(this_machine)
    hints: list[Hint] = [
        *typed_hints(typed),
        *await configured_hints(),
        *remembered_hints(ctx.paths),
        *browser.hints(),
    ]
    files: list[Path] = await trust_files(ctx.paths)
    tried = [Tried(hint=own, host_key=own_key), *await knocker.try_hints(hints, files)]
    boxes = merge(tried, own_key=own_key)
    await asyncio.to_thread(_remember, ctx.paths, boxes)
    return boxes


def _remember(paths: Paths, boxes: Sequence[FoundBox]) -> None:
    """Keep where usable machines are, so that their names lead there later."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    for box in boxes:
        if box.this_machine or not box.usable or box.host_key is None:
            continue
        ways = [a for a in box.addresses if a.usable]
        known = find_box(paths, box.host_key)
        addresses = tuple(a.address for a in ways)
        if known and known.addresses == addresses and known.name == box.name:
            continue
        record = KnownBox(
            name=box.name,
            host_key=box.host_key,
            addresses=addresses,
            port=ways[0].port if ways else 22,
            user=box.user or (known.user if known else None),
            used_at=at,
        )
        remember_box(paths, record)


def _nothing() -> None:
    """Nobody waits for changes."""
