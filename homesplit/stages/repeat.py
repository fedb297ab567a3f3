"""Does an entry of the notebook again, on the same boxes, and holds it against its former self."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from homesplit_engine.records import ModeSetting
from msgspec import Struct

from homesplit.core.again import Change, change
from homesplit.core.capacity import CapacityResult
from homesplit.core.entry import Entry, labelled
from homesplit.core.former_self import Other, otherwise, otherwise_words
from homesplit.core.load import LoadPlan, OfferedRequest
from homesplit.core.measured import RequestLog
from homesplit.core.prng import FRESH_BITS
from homesplit.core.remeasured import Advised, Figure, capacity_again
from homesplit.core.replay import REPLAY
from homesplit.core.say import listed
from homesplit.core.window import Window
from homesplit.core.workload import Targets, Workload
from homesplit.errors import UsageError
from homesplit.stages.bench import Target, bench, router_status, served_name
from homesplit.stages.beside import beside
from homesplit.stages.capacity import find_capacity
from homesplit.stages.compare import compare, mode_words
from homesplit.stages.context import Context
from homesplit.stages.notebook import add_note, show_entry
from homesplit.stages.serve import read_status, set_mode

Difference = Change | Figure | Advised


class Repeated(Struct, frozen=True, kw_only=True):
    """The new entry and what changed since the former one."""

    entry: str
    former: str
    changes: tuple[Difference, ...]
    sentence: str
    others: tuple[Other, ...] = ()
    """What was measured, or with what, that is not what it was."""


Raw = Mapping[str, Sequence[Any]]
Again = tuple[str, Sequence[Difference]]
"""The new entry's id, and each of its figures held against the former one."""


def repeatable(entry: Entry, raw: Raw) -> bool:
    """Whether an entry holds what it takes to measure it again."""
    if entry.kind in ("probe", "plan") or is_demo(entry):
        return True
    if entry.kind == "comparison":
        return bool(raw) and bool(entry.body.get("modes"))
    return _is_capacity(entry) or (entry.kind == "run" and bool(raw))


def is_demo(entry: Entry) -> bool:
    """Whether an entry is the outcome of `homesplit demo --headless`."""
    body = entry.body if isinstance(entry.body, dict) else {}
    return entry.kind == "comparison" and "kv_bytes_per_token" in body


def needs_server(entry: Entry) -> bool:
    """Whether the measurement is of a server: one that serves now, or the entry's own."""
    return entry.kind in ("run", "comparison") and not is_demo(entry)


def _is_capacity(entry: Entry) -> bool:
    return entry.kind == "run" and isinstance(entry.body, dict) and "trials" in entry.body


async def repeat(ctx: Context, entry: Entry, raw: Raw, target: Target | None) -> Repeated:
    """Measure again as the entry did; the change is noted on the new entry.

    `target` is the server for entries that need one. Raises UsageError where the entry can't
    be done again from what it holds.
    """
    if not repeatable(entry, raw):
        raise UsageError(
            f"entry {entry.number} is a {entry.kind} without raw records.",
            do_next="Probes, plans, runs, comparisons and demos can be repeated; a deployment is "
            "made again by `homesplit up`.",
        )
    if target is None and needs_server(entry):
        raise UsageError(f"entry {entry.number} needs a server to measure.", do_next="Name --url.")
    key, changes = await _measured_again(ctx, entry, raw, target)
    latter = show_entry(ctx, key)[0]
    others = otherwise(entry, latter)
    told = (
        f"Entry {entry.number} ({entry.at[:16]}) done again.",
        otherwise_words(others),
        *(each.words for each in changes),
    )
    sentence = labelled(" ".join(part for part in told if part), latter.about.loopback)
    add_note(ctx, sentence, entry=key)
    return Repeated(
        entry=key, former=entry.id, changes=tuple(changes), others=others, sentence=sentence
    )


async def _measured_again(ctx: Context, entry: Entry, raw: Raw, target: Target | None) -> Again:
    if is_demo(entry):
        # Imported here: what starts an engine takes long to import.
        from homesplit.stages.repeat_demo import demo_again

        return await demo_again(ctx, entry)
    if target is None:
        # Imported here: what reaches boxes takes long to import.
        from homesplit.stages.repeat_boxes import plan_again, probe_again

        if entry.kind == "probe":
            return await probe_again(ctx, entry)
        return await plan_again(ctx, entry)
    await _refuse_other_boxes(entry, target)
    target = await _as_then(entry, target)
    if _is_capacity(entry):
        return await _capacity_again(ctx, entry, target)
    if entry.kind == "run":
        return await _run_again(ctx, entry, raw, target)
    return await _compare_again(ctx, entry, raw, target)


async def _refuse_other_boxes(entry: Entry, target: Target) -> None:
    """Raises UsageError where other boxes serve now than those that the entry measured."""
    boxes = entry.about.boxes
    then = {box["name"] if isinstance(box, dict) else str(box) for box in boxes}
    if not then:
        return
    status = await router_status(target)
    if status is None:
        raise UsageError(
            f"entry {entry.number} measured {listed(sorted(then))}; {target.url} is no router of "
            "homesplit that tells its boxes.",
            do_next="Measure that server with `homesplit bench --url`, or beside your boxes with "
            "`homesplit compare --also`.",
        )
    now = {worker.box for worker in status.workers}
    if now != then:
        raise UsageError(
            f"entry {entry.number} measured {listed(sorted(then))}; what serves now is "
            f"{listed(sorted(now)) if now else 'nothing'}.",
            do_next="Deploy to those boxes again, or measure these with `homesplit bench`.",
        )


async def _as_then(entry: Entry, target: Target) -> Target:
    """The server asked as it was then: by the same door, for the same model where it has it."""
    settings = entry.about.settings if isinstance(entry.about.settings, dict) else {}
    model = target.model or await served_name(target, entry.about.model)
    return dataclasses.replace(target, model=model, api=target.api or settings.get("api"))


@contextlib.asynccontextmanager
async def _in_its_mode(ctx: Context, entry: Entry, target: Target) -> AsyncGenerator[None, None]:
    """The mode that the entry was measured in, while the block lasts."""
    settings = entry.about.settings
    mode = msgspec.convert(settings.get("mode"), ModeSetting | None)
    if mode is None:
        yield
        return
    before = (await read_status(target.url, target.api_key)).setting
    await set_mode(ctx, target.url, target.api_key, mode)
    try:
        yield
    finally:
        await set_mode(ctx, target.url, target.api_key, before)


async def _run_again(ctx: Context, entry: Entry, raw: Raw, target: Target) -> Again:
    body = entry.body
    workload = _workload(entry.about.settings)
    plan = _replayed(entry, raw, workload, float(body["seconds"]))
    async with _in_its_mode(ctx, entry, target):
        result = await bench(
            ctx,
            target,
            workload,
            seconds=float(body["seconds"]),
            seed=entry.about.seeds["load"],
            # Other words of the same lengths: the former ones may still be in a prefix cache.
            salt=secrets.randbits(FRESH_BITS),
            plan=plan,
            warm_up=float(body["warm_up_s"]),
            drain=float(body.get("drain_s", 0.0)),
        )
    found = await beside(
        _change,
        "run",
        [raw["requests"]],
        [result.logs],
        workload.targets,
        seen_then=_window(body, float(body["seconds"])),
        seen_now=result.summary.window,
    )
    return str(result.entry), [found]


def _replayed(entry: Entry, raw: Raw, workload: Workload, seconds: float) -> LoadPlan | None:
    """The requests of a replay as the entry holds them, None of a drawn load; UsageError."""
    traced = workload.source == REPLAY or bool(entry.body.get("trace"))
    if not traced:
        return None
    if "offered" not in raw:
        raise UsageError(
            f"entry {entry.number} replayed a trace, which this entry doesn't hold.",
            do_next="Run `homesplit bench --trace` with the same file, seed and options.",
        )
    return LoadPlan(
        workload=entry.body.get("trace") or workload.name,
        seed=entry.about.seeds["load"],
        seconds=seconds,
        closed=False,
        requests=msgspec.convert(raw["offered"], tuple[OfferedRequest, ...]),
        notes=(workload.description,) if workload.description else (),
    )


async def _capacity_again(ctx: Context, entry: Entry, target: Target) -> Again:
    settings = entry.about.settings
    workload = _workload(settings)
    # A search of before there was a limit took as long as it needed.
    within_s = settings.get("within_s")
    async with _in_its_mode(ctx, entry, target):
        found = await find_capacity(
            ctx,
            target,
            workload,
            seconds=float(settings["seconds"]),
            seed=entry.about.seeds["load"],
            within_s=None if within_s is None else float(within_s),
        )
    then = msgspec.convert(entry.body, CapacityResult)
    return str(found.entry), [capacity_again(then, found)]


async def _compare_again(ctx: Context, entry: Entry, raw: Raw, target: Target) -> Again:
    body, settings = entry.body, entry.about.settings
    own = [msgspec.convert(m["setting"], ModeSetting) for m in body["modes"] if m.get("setting")]
    also = [Target(url=m["url"], model=m.get("model")) for m in body["modes"] if m.get("url")]
    workload = _workload(settings)
    seconds = float(settings["seconds"])
    result = await compare(
        ctx,
        target,
        [mode_words(setting) for setting in own],
        workload,
        seconds=seconds,
        repeats=int(settings["repeats"]),
        seed=entry.about.seeds["load"],
        plan=_replayed(entry, raw, workload, seconds),
        also=also,
        warm_up=settings.get("warm_up_s"),
        drain=settings.get("drain_s", 0.0),
    )
    changes: list[Change] = []
    for mode in result.modes:
        rounds = [f"{mode.name} round {turn + 1}" for turn in range(result.repeats)]
        changes.append(
            await beside(
                _change,
                mode.name,
                [raw.get(name, ()) for name in rounds],
                [run.logs for run in mode.runs],
                workload.targets,
                seen_then=_window(settings, seconds),
                seen_now=mode.pooled.window,
            )
        )
    return str(result.entry), changes


def _change(
    name: str,
    then: Sequence[Sequence[Any]],
    now: Sequence[Sequence[RequestLog]],
    targets: Targets,
    *,
    seen_then: Window,
    seen_now: Window,
) -> Change:
    """What moved since; `then` are the raw records of the entry's runs."""
    logs = [_logs(rows) for rows in then]
    return change(name, logs, now, targets, seen_then=seen_then, seen_now=seen_now)


def _window(kept: Mapping[str, Any], seconds: float) -> Window:
    """What counted of a run, as its entry holds it; `seconds` where it was offered to its end."""
    return Window(
        warm_up_s=float(kept.get("warm_up_s") or 0.0),
        drain_s=float(kept.get("drain_s") or 0.0),
        offered_s=float(kept.get("offered_s") or seconds),
    )


def _workload(settings: Any) -> Workload:
    try:
        return msgspec.convert(settings["workload"], Workload)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise UsageError(
            f"the entry doesn't say which load it ran: {error}.",
            do_next="Run the command that made it once more.",
        ) from error


def _logs(rows: Sequence[Any]) -> tuple[RequestLog, ...]:
    return msgspec.convert(rows, tuple[RequestLog, ...])
