"""Does an entry of the notebook again, on the same boxes, and holds it against its former self."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from homesplit_engine.records import ModeSetting
from msgspec import Struct

from homesplit.core.again import Change, change
from homesplit.core.entry import Entry
from homesplit.core.measured import RequestLog
from homesplit.core.workload import Workload
from homesplit.errors import UsageError
from homesplit.stages.bench import Target, bench
from homesplit.stages.compare import compare
from homesplit.stages.context import Context
from homesplit.stages.notebook import add_note
from homesplit.stages.serve import read_status, set_mode


class Repeated(Struct, frozen=True, kw_only=True):
    """The new entry and what changed since the former one."""

    entry: str
    former: str
    changes: tuple[Change, ...]
    sentence: str


def url_of(entry: Entry) -> str | None:
    """The foreign server that an entry measured; None for a deployment of one's own."""
    body = entry.body if isinstance(entry.body, dict) else {}
    return body.get("url")


async def repeat(
    ctx: Context, entry: Entry, raw: Mapping[str, Sequence[Any]], target: Target
) -> Repeated:
    """Measure `target` as the entry did; the change is noted on the new entry.

    Raises UsageError where the entry can't be done again from what it holds.
    """
    if entry.kind == "run" and "requests" in raw:
        key, changes = await _run_again(ctx, entry, raw, target)
    elif entry.kind == "comparison" and raw:
        key, changes = await _compare_again(ctx, entry, raw, target)
    else:
        raise UsageError(
            f"entry {entry.number} is a {entry.kind} without raw records.",
            do_next="Runs and comparisons can be repeated; for the rest use their own commands.",
        )
    words = " ".join(each.words for each in changes)
    sentence = f"Entry {entry.number} ({entry.at[:16]}) done again. {words}"
    add_note(ctx, sentence, entry=key)
    return Repeated(entry=key, former=entry.id, changes=tuple(changes), sentence=sentence)


async def _run_again(
    ctx: Context, entry: Entry, raw: Mapping[str, Sequence[Any]], target: Target
) -> tuple[str, list[Change]]:
    body, settings = entry.body, entry.about.settings
    if body.get("trace"):
        raise UsageError(
            f"entry {entry.number} replayed a trace, which the notebook doesn't hold.",
            do_next="Run `homesplit bench --trace` with the same file, seed and options.",
        )
    workload = _workload(settings)
    mode = msgspec.convert(settings.get("mode"), ModeSetting | None)
    before = None
    if mode is not None:
        before = (await read_status(target.url, target.api_key)).setting
        await set_mode(ctx, target.url, target.api_key, mode)
    try:
        result = await bench(
            ctx,
            target,
            workload,
            seconds=float(body["seconds"]),
            seed=entry.about.seeds["load"],
            # Other words of the same lengths: the former ones may still be in a prefix cache.
            salt=entry.about.seeds.get("salt", 0) + entry.number,
            warm_up=float(body["warm_up_s"]),
        )
    finally:
        if before is not None:
            await set_mode(ctx, target.url, target.api_key, before)
    then = _logs(raw["requests"])
    found = change("run", [then], [result.logs], workload.targets, result.summary.warm_up_s)
    return str(result.entry), [found]


async def _compare_again(
    ctx: Context, entry: Entry, raw: Mapping[str, Sequence[Any]], target: Target
) -> tuple[str, list[Change]]:
    body, settings = entry.body, entry.about.settings
    modes = [f"{m['mode']}:{m['prefill']}" for m in body["modes"] if m.get("setting")]
    also = [Target(url=m["url"]) for m in body["modes"] if m.get("url")]
    workload = _workload(settings)
    result = await compare(
        ctx,
        target,
        modes,
        workload,
        seconds=float(settings["seconds"]),
        repeats=int(settings["repeats"]),
        seed=entry.about.seeds["load"],
        also=also,
    )
    changes: list[Change] = []
    for mode in result.modes:
        rounds = [f"{mode.name} round {turn + 1}" for turn in range(result.repeats)]
        then = [_logs(raw.get(name, ())) for name in rounds]
        now = [run.logs for run in mode.runs]
        changes.append(change(mode.name, then, now, workload.targets, mode.pooled.warm_up_s))
    return str(result.entry), changes


def _workload(settings: Any) -> Workload:
    try:
        return msgspec.convert(settings["workload"], Workload)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise UsageError(f"the entry doesn't say which load it ran: {error}.") from error


def _logs(rows: Sequence[Any]) -> tuple[RequestLog, ...]:
    return msgspec.convert(rows, tuple[RequestLog, ...])
