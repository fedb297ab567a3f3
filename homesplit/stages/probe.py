"""Measures boxes, and the link between two of them, and keeps the profiles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from homesplit.core.events import BoxProbed, LinkProbed, Progress, StageEnded, StageStarted
from homesplit.core.kept import sentences
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.probed import box_profile, link_profile, unmeasured_link
from homesplit.core.ways import link_addresses
from homesplit.errors import ProbeError, UsageError, during
from homesplit.io.blas import blas_wheel
from homesplit.io.box import Box
from homesplit.io.box_store import KnownBox, remember_box
from homesplit.io.probe_runner import LINK_S, gather_facts, measure_box, measure_link, needs_blas
from homesplit.io.probe_store import save_box, save_link, turned
from homesplit.io.same_machine import refuse_copies
from homesplit.io.ssh import Connections
from homesplit.stages.context import Context
from homesplit.stages.probe_entry import ProbeEntry

_ONE_MACHINE = "both names are one machine: loopback teaches the mechanism and measures no network"


class ProbeResult(Struct, frozen=True, kw_only=True):
    """What was measured."""

    boxes: tuple[BoxProfile, ...]
    link: LinkProfile | None = None
    kept: tuple[str, ...] = ()
    """Figures of an earlier time that stay in force because the new try gave none, in words."""


async def probe(ctx: Context, names: Sequence[str], *, only_link: bool = False) -> ProbeResult:
    """Measure one or two boxes, then the link (or that alone).

    Raises UnreachableError, TrustError, UsageError.
    """
    if not 1 <= len(names) <= 2 or (only_link and len(names) != 2):
        raise UsageError("probe takes one box or two, and two for a link.")
    ctx.emit(StageStarted(stage="probe", sentence=f"Measuring {' and '.join(names)}."))
    entry = ProbeEntry(ctx, names)
    async with Connections(paths=ctx.paths, ask=ctx.ask) as connections:
        boxes = [await connections.connect(name) for name in names]
        await refuse_copies(boxes)
        with during("it was asked what it is"):
            facts = await asyncio.gather(*(gather_facts(box) for box in boxes))
        # One after the other: boxes that share a power strip or this machine must not disturb
        # each other, and the link is measured while both are at rest.
        pairs = [] if only_link else zip(boxes, facts, strict=True)
        kept: list[str] = []
        with entry.open():
            profiles = [await _probe_box(ctx, b, f, kept, entry) for b, f in pairs]
            pair = len(boxes) == 2
            link = await _probe_link(ctx, boxes, facts, kept, entry) if pair else None
            entry.ended(kept)
    result = ProbeResult(boxes=tuple(profiles), link=link, kept=tuple(kept))
    ctx.emit(StageEnded(stage="probe", sentence=_ended(link)))
    return result


def _ended(link: LinkProfile | None) -> str:
    if link is None or link.loopback or link.a_to_b.value or link.b_to_a.value:
        return "Measured and saved."
    return f"The link was not measured: {link.a_to_b.why}"


def _told(ctx: Context, box: str, step: str) -> Callable[[str], None]:
    def say(sentence: str) -> None:
        ctx.emit(Progress(stage="probe", step=step, box=box, sentence=sentence))

    return say


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


async def _probe_box(
    ctx: Context, box: Box, facts: dict[str, Any], kept: list[str], entry: ProbeEntry
) -> BoxProfile:
    blas = await _blas(ctx, facts) if needs_blas(facts) else b""
    with during("it was measured"):
        measured = await measure_box(box, facts, _told(ctx, box.name, "box"), blas=blas)
    profile = box_profile(box.name, box.host_key, facts, measured, at=_now())
    saved = await asyncio.to_thread(save_box, ctx.paths, profile)
    kept += sentences(saved)
    if box.host_key and not box.local:
        known = KnownBox(
            name=box.name,
            host_key=box.host_key,
            addresses=(box.address,),
            port=box.port,
            user=box.user,
            used_at=_now(),
        )
        await asyncio.to_thread(remember_box, ctx.paths, known)
    entry.box(profile)
    ctx.emit(BoxProbed(profile=saved))
    return profile


async def _blas(ctx: Context, facts: dict[str, Any]) -> bytes:
    system = facts.get("system") or {}
    wheel = await blas_wheel(ctx.paths, system.get("kernel"), system.get("machine"))
    return await asyncio.to_thread(wheel.read_bytes) if wheel else b""


async def _probe_link(
    ctx: Context,
    boxes: Sequence[Box],
    facts: Sequence[dict[str, Any]],
    kept: list[str],
    entry: ProbeEntry,
) -> LinkProfile:
    a, b = boxes
    keys = (a.host_key or a.name, b.host_key or b.name)
    if keys[0] == keys[1] or (a.local and b.local):
        link = unmeasured_link(a.name, b.name, _ONE_MACHINE, loopback=True)
        entry.link(link)
        ctx.emit(LinkProbed(link=link))
        return link
    with during("the link was measured"):
        link = await _measured_link(ctx, (a, b), facts)
    saved = await asyncio.to_thread(save_link, ctx.paths, link, keys)
    kept += sentences(saved)
    entry.link(link)
    ctx.emit(LinkProbed(link=saved))
    return link


async def _measured_link(
    ctx: Context, boxes: tuple[Box, Box], facts: Sequence[dict[str, Any]]
) -> LinkProfile:
    """b listens and a drives; the other way round when a can't get through to b."""
    (a, b), (facts_a, facts_b) = boxes, facts
    say = _told(ctx, f"{a.name} to {b.name}", "link")
    try:
        addresses = link_addresses(facts_b, facts_a, b.address)
        begin = asyncio.get_running_loop().time()
        answer = await measure_link(b, facts_b, a, facts_a, addresses, say)
        if not answer.get("why"):
            return link_profile(a.name, b.name, facts_a, facts_b, answer, at=_now())
        say("no way there, trying from the other end")
        addresses = link_addresses(facts_a, facts_b, a.address)
        seconds = LINK_S - (asyncio.get_running_loop().time() - begin)
        answer = await measure_link(a, facts_a, b, facts_b, addresses, say, seconds=seconds)
    except ProbeError as error:
        return unmeasured_link(a.name, b.name, error.sentence())
    return turned(link_profile(b.name, a.name, facts_b, facts_a, answer, at=_now()))
