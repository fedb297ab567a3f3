"""Does a demo of the notebook again, mode by mode beside its former self."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from homesplit.core.again import Change, change
from homesplit.core.demo_result import DemoMode, label
from homesplit.core.entry import Entry
from homesplit.core.measured import RequestLog
from homesplit.core.window import window
from homesplit.errors import NotebookError
from homesplit.stages.context import Context
from homesplit.stages.demo import run_demo
from homesplit.stages.notebook import list_entries, show_entry


async def demo_again(ctx: Context, entry: Entry) -> tuple[str, Sequence[Change]]:
    """The same model under the same load in the same modes; raises what `run_demo` raises.

    A mode whose own entry is gone has nothing to be held against, and is told so.
    """
    former: list[dict[str, Any]] = entry.body["modes"]
    runs = [_run(ctx, mode.get("entry")) for mode in former]
    seconds = [seconds for seconds, _ in runs if seconds]
    wires = [mode["kv_wire"] for mode in former if mode.get("kv_wire") not in (None, "same")]
    found = await run_demo(
        ctx,
        seconds=sum(seconds) or 60.0,
        model=entry.about.model or "",
        kv_wire=wires[0] if wires else "same",
    )
    pairs = zip(runs, found.modes, strict=False)
    changes = [_change(mode, each_s, logs) for (each_s, logs), mode in pairs]
    return list_entries(ctx, "comparison")[-1].id, changes


def _run(ctx: Context, key: str | None) -> tuple[float, tuple[RequestLog, ...]]:
    """How long a mode's load was offered, and what came of it."""
    try:
        entry, raw = show_entry(ctx, key or "")
    except NotebookError:
        return 0.0, ()
    logs = msgspec.convert(raw.get("requests", ()), tuple[RequestLog, ...])
    return float(entry.body["seconds"]), logs


def _change(mode: DemoMode, each_s: float, logs: Sequence[RequestLog]) -> Change:
    return change(
        label(mode.setting),
        [logs],
        [mode.result.logs],
        mode.result.workload.targets,
        seen_then=window(each_s, 0.0, 0.0),
        seen_now=mode.result.summary.window,
    )
