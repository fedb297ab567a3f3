"""The Monitor screen: what runs, goodput of the last minute, and the state of the boxes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from homesplit_engine.records import ModeSetting, WorkerStatus

from homesplit.core.engine_state import MENDED
from homesplit.core.state import Done, Engine, RunState
from homesplit.core.workload import Targets
from homesplit.view import numbers
from homesplit.view.ledger import OUTCOMES
from homesplit.view.link_use import Moves, link_lines, link_use
from homesplit.view.panels import as_fits, nothing_yet
from homesplit.view.spans import (
    Line,
    Lines,
    Span,
    bar,
    clean,
    crop,
    fit,
    line,
    width_of,
)
from homesplit.view.watch import LATE_S

SPAN_S = 60.0
"""What `now` means on the panels: the requests that ended in the last minute."""
NOTHING_RUNS = (
    "A strip for each box moves here once a model runs: where it reads prompts, where it writes "
    "tokens, where an answer waits. A wait in one strip stands above or below its cause."
)
NOTHING_SERVED = (
    "No request has been served yet. l starts a small load of short and long prompts; "
    "c lets you chat with the model yourself."
)


def switched_s(engine: Engine) -> float | None:
    """When the present mode began, None when it was never switched."""
    return engine.switches[-1].at_s if engine.switches else None


def recent(engine: Engine, now_s: float, span_s: float = SPAN_S) -> tuple[Done, ...]:
    """Requests that ended in the last `span_s` seconds, of the present mode alone."""
    since = switched_s(engine)
    began_s = now_s - span_s
    first = bisect_left(engine.requests, began_s - LATE_S, key=lambda done: done.at_s)
    return tuple(
        done
        for done in engine.requests[first:]
        if done.at_s >= began_s and (since is None or done.received_s >= since)
    )


def span_words(engine: Engine, now_s: float, room: int = 99) -> str:
    """Which requests the figures are of, in at most `room` characters."""
    since = switched_s(engine)
    if since is None or now_s - since >= SPAN_S:
        return f"last {SPAN_S:.0f} s"
    mode = engine.setting.mode if engine.setting else "the switch"
    lasted_s = max(now_s - since, 0)
    told = f"{lasted_s:.0f} s of {mode}"
    return told if len(told) <= room else f"last {lasted_s:.0f} s"


def inside(done: Done, targets: Targets) -> bool:
    """Whether a request completed within both targets, as `words.inside_targets` says."""
    if done.outcome != "completed":
        return False
    if targets.ttft_s is not None and (done.ttft_s is None or done.ttft_s > targets.ttft_s):
        return False
    return targets.tpot_s is None or done.tpot_s is None or done.tpot_s <= targets.tpot_s


def goodput_lines(
    state: RunState, seen: Sequence[Done], now_s: float, width: int, height: int
) -> Lines:
    """Goodput and attainment of the requests `seen` of late, and what became of the misses."""
    engine = state.engine
    if not seen:
        return nothing_yet("goodput", width, height)
    good = [done for done in seen if inside(done, state.choices.targets)]
    began = max((t for t in (switched_s(engine), engine.first_s) if t is not None), default=None)
    since = now_s - began if began is not None else SPAN_S
    span = max(min(SPAN_S, since), 1.0)
    attained = len(good) / len(seen)
    mark = Span("✓ ", "good") if attained >= 0.9 else Span("✗ ", "bad")
    tokens = sum(done.output_tokens for done in good) / span
    rows: list[Line] = [
        as_fits(
            line(mark, Span(f"{len(good) / span:.2f} req/s", "strong")),
            f"  {tokens:.0f} tok/s",
            width,
        ),
        as_fits(line(Span(f"{attained * 100:.0f} % inside", "dim")), " both targets", width, "dim"),
    ]
    if height >= 4:
        told = [f"{len(seen)} ended"]
        for outcome, word in OUTCOMES.items():
            count = sum(done.outcome == outcome for done in seen)
            told += [f"{count} {word}"] if count else []
        bad = any(done.outcome in ("failed", "rejected") for done in seen)
        rows.append(line(Span(", ".join(told), "bad" if bad else "dim")))
    if height >= 4 and not good:
        rows.append(line(Span("t", "key"), Span(" sets fitting targets", "dim")))
    elif height >= 4:
        rows.append((*bar(attained, min(width, 30), "good"),))
    return tuple(crop(row, width) for row in rows)


def latest_fault(engine: Engine, now_s: float, window_s: float) -> Line | None:
    """The newest fault that the window shows, or its end, in words."""
    found = [fault for fault in engine.faults if fault.at_s > now_s - window_s]
    if not found:
        return None
    # What a lost router had to tell comes late.
    newest = max(found, key=lambda fault: fault.at_s)
    mark = Span("✓ ", "good") if newest.kind == MENDED else Span("✗ fault ", "bad")
    return line(mark, clean(newest.sentence))


# ----------------------------------------------------------------------------- status


def headline(state: RunState, width: int) -> Line:
    """Mode, model, load and whether a network is measured, in one line."""
    setting = state.engine.setting
    deployment = state.deployment
    if deployment is None and setting is None:
        if state.stage("demo").status == "running" or state.stage("model").status == "running":
            return line(Span(" Starting: the model is loaded once on each worker.", "dim"))
        return line(Span(" Nothing is running: 3 deploys.", "dim"))
    load = (Span("  load ", "dim"), _load_words(state))
    ways = [
        line(Span(" mode ", "dim"), *_setting(state, label, style), *load)
        for label in ONE_MACHINE
        for style in _styles(state)
    ]
    told = next((way for way in ways if width_of(way) <= width), ways[-1])
    model = f"  {clean(deployment.model)}" if deployment is not None else ""
    return crop(as_fits(told, model, width, "dim"), width)


ONE_MACHINE = (" one machine: measures no network ", " one machine ")
"""What a run over loopback is told to be, and where there is no room for that."""


def _load_words(state: RunState) -> Span:
    named = state.choices.load_rate_requests_per_s
    rate = numbers.per_second(named, " req") if named else "l fits it to the boxes"
    return Span(f"● {rate}", "good") if state.load.running else Span(f"○ off ({rate})", "dim")


def _styles(state: RunState) -> tuple[str, ...]:
    """How prompts are read, from the longest way to say it to none."""
    setting = state.engine.setting
    if setting is None or setting.prefill != "chunked":
        return "whole prefill", ""
    chunks = f"chunks of {setting.chunk_tokens}"
    return f"prefill in {chunks}", chunks, ""


def _setting(state: RunState, label: str, style: str) -> Line:
    setting, deployment = state.engine.setting, state.deployment
    if setting is None:
        return ()
    loopback = deployment is not None and deployment.loopback
    return (
        Span(f" {setting.mode} ", "!key"),
        *((Span(label, "warn"),) if loopback else ()),
        *_setting_words(setting, style),
    )


def _setting_words(setting: ModeSetting, style: str) -> Line:
    mode = setting.mode
    if mode == "split" and setting.prefill_box and setting.decode_box:
        return (
            Span(f" {setting.prefill_box} reads", "prefill"),
            Span(" ━▶ ", "handoff"),
            Span(f"{setting.decode_box} writes", "decode"),
            Span(f"  {style}" if style else "", "dim"),
        )
    if mode == "colocated" and setting.decode_box:
        return (Span(f" on {setting.decode_box}"), Span(f"  {style}" if style else "", "dim"))
    return (Span(f" {style}", "dim"),)


def box_names(state: RunState) -> tuple[str, ...]:
    """The boxes of the deployment, the one that reads first; else whoever has told steps."""
    setting = state.engine.setting
    if state.deployment is not None:
        names = tuple(box.box for box in state.deployment.boxes)
    else:
        names = tuple(sorted({*state.engine.offsets, *state.engine.statuses}))
    if setting is not None and setting.mode == "split" and setting.prefill_box in names:
        rest = tuple(name for name in names if name != setting.prefill_box)
        return (setting.prefill_box, *rest) if setting.prefill_box else names
    return names


def box_lines(state: RunState, moves: Moves, width: int, now_s: float) -> Lines:
    """Each box's queue, KV in use and power, a line each; then the link's use."""
    names = box_names(state)
    if not names:
        return (line(Span("No worker has told its state yet.", "dim")),)
    uses = link_use(state, moves, names, now_s)
    return (*(_box_line(state, name, width) for name in names), *link_lines(uses, width))


def _box_line(state: RunState, name: str, width: int) -> Line:
    head = fit(line(Span(clean(name), "strong")), 10)
    if name in state.engine.lost:
        return crop((*head, Span("✗ does not answer; the others carry on", "bad")), width)
    status = state.engine.statuses.get(name)
    if status is None:
        return crop((*head, Span("no status yet", "dim")), width)
    used = 1 - status.blocks_free / status.blocks_total if status.blocks_total else 0.0
    told = (
        *head,
        *fit(line(f"{status.running} running, {status.waiting} waiting"), 24),
        Span("KV ", "dim"),
        *bar(used, max(min(width - 70, 24), 6), "decode"),
        Span(f" {used * 100:3.0f} % used  "),
    )
    return crop(_with_power(told, status, width), width)


def _with_power(told: Line, status: WorkerStatus, width: int) -> Line:
    if status.power_w is not None:
        return (*told, Span(numbers.watts(status.power_w)))
    why = f" ({clean(status.power_why or 'not told')})"
    return as_fits((*told, Span("power not measured", "dim")), why, width, "dim")
