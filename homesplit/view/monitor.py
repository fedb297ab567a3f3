"""The Monitor screen's figures: panels against targets, the ledger of requests, the boxes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from homesplit_engine.records import RequestRecord, WorkerStatus
from homesplit_engine.words import percentiles
from msgspec import Struct

from homesplit.core.state import Done, Engine, RunState
from homesplit.core.workload import Targets
from homesplit.view import numbers
from homesplit.view.history import figure
from homesplit.view.link_use import Moves, link_lines, link_use
from homesplit.view.plan import LEDGER_PARTS, stacked
from homesplit.view.prompt_classes import PromptClass, place_by_length
from homesplit.view.spans import (
    Line,
    Lines,
    Span,
    bar,
    clean,
    crop,
    fit,
    line,
    sparkline,
    width_of,
    wrap,
)
from homesplit.view.watch import LATE_S

SPAN_S = 60.0
"""What `now` means on the panels: the requests that ended in the last minute."""
NOTHING_SERVED = (
    "No request has been served yet. l starts a small load of short and long prompts; "
    "c lets you chat with the model yourself."
)


class Panel(Struct, frozen=True, kw_only=True):
    """One figure over the last minute, against its target."""

    title: str
    target_s: float | None
    p50: float | None
    p90: float | None
    by_class: tuple[tuple[str, float | None], ...]
    history: tuple[float | None, ...]
    """The p50 of each of the last 30 ten-second slots, newest last."""


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


def span_words(engine: Engine, now_s: float) -> str:
    """Which requests the figures are of."""
    since = switched_s(engine)
    if since is None or now_s - since >= SPAN_S:
        return "last 60 s"
    mode = engine.setting.mode if engine.setting else "the switch"
    return f"{max(now_s - since, 0):.0f} s of {mode}"


def inside(done: Done, targets: Targets) -> bool:
    """Whether a request completed within both targets, as `words.inside_targets` says."""
    if done.outcome != "completed":
        return False
    if targets.ttft_s is not None and (done.ttft_s is None or done.ttft_s > targets.ttft_s):
        return False
    return targets.tpot_s is None or done.tpot_s is None or done.tpot_s <= targets.tpot_s


def panel(
    seen: Sequence[Done],
    which: str,
    targets: Targets,
    classes: Sequence[PromptClass],
    history: tuple[float | None, ...] = (),
) -> Panel:
    """TTFT (`ttft`), TPOT (`tpot`) or longest gap (`gap`) of the requests `seen` of late."""
    known: list[float] = []
    apart: list[list[float]] = [[] for _ in classes]
    place = place_by_length(classes)
    for done in seen:
        value = figure(done, which) if done.outcome == "completed" else None
        if value is not None:
            known.append(value)
            apart[place(done.prompt_tokens)].append(value)
    whole = percentiles(known)
    return Panel(
        title={"ttft": "TTFT", "tpot": "TPOT", "gap": "longest wait"}[which],
        target_s=targets.ttft_s if which == "ttft" else targets.tpot_s,
        p50=whole.p50,
        p90=whole.p90,
        by_class=tuple(
            (one.name, percentiles(values).p50) for one, values in zip(classes, apart, strict=True)
        ),
        history=history,
    )


def panel_lines(found: Panel, width: int, height: int, source: str = "") -> Lines:
    """A panel as lines: figure and tick, target and its source, classes, history."""
    if found.p50 is None:
        return wrap("no answers yet in this mode", width, "dim")
    target = found.target_s
    ok = target is None or found.p50 <= target
    mark = Span("✓ ", "good") if ok else Span("✗ ", "bad")
    head = _as_fits(
        line(mark, Span(numbers.seconds(found.p50), "strong")),
        f"  p90 {numbers.seconds(found.p90)}",
        width,
    )
    rows: list[Line] = [head]
    goal = f"target {numbers.seconds(target)}" if target is not None else "no target"
    rows.append(line(Span(f"{goal} = {source}" if source else goal, "dim")))
    classes = [(name, value) for name, value in found.by_class if value is not None]
    if height >= 4:
        rows.append(line(Span(_class_words(classes, width), "dim")))
    if height >= 4:
        known = [value for value in found.history if value is not None]
        top = max([*known, target or 0.0], default=1.0)
        rows.append(sparkline(found.history, min(width, 30), "decode", top))
    return tuple(crop(row, width) for row in rows)


LEAST_NAME = 3


def _class_words(classes: Sequence[tuple[str, float | None]], width: int) -> str:
    """Each class with its figure, the names shortened so far that all figures are seen."""
    longest = max((len(name) for name, _ in classes), default=0)
    told = ""
    for most in range(longest, LEAST_NAME - 1, -1):
        told = "  ".join(
            f"{name if len(name) <= most else name[: most - 1] + '…'} {numbers.seconds(value)}"
            for name, value in classes
        )
        if len(told) <= width:
            break
    return told


def _as_fits(head: Line, more: str, width: int, role: str = "") -> Line:
    """`head`, with `more` behind it where there is room for all of it."""
    whole = (*head, Span(more, role))
    return whole if width_of(whole) <= width else head


def goodput_lines(
    state: RunState, seen: Sequence[Done], now_s: float, width: int, height: int
) -> Lines:
    """Goodput and attainment of the requests `seen` of late, and what became of the misses."""
    engine = state.engine
    if not seen:
        return wrap("no answers yet in this mode", width, "dim")
    good = [done for done in seen if inside(done, state.choices.targets)]
    began = max((t for t in (switched_s(engine), engine.first_s) if t is not None), default=None)
    since = now_s - began if began is not None else SPAN_S
    span = max(min(SPAN_S, since), 1.0)
    attained = len(good) / len(seen)
    mark = Span("✓ ", "good") if attained >= 0.9 else Span("✗ ", "bad")
    tokens = sum(done.output_tokens for done in good) / span
    rows: list[Line] = [
        _as_fits(
            line(mark, Span(f"{len(good) / span:.2f} req/s", "strong")),
            f"  {tokens:.0f} tok/s",
            width,
        ),
        _as_fits(
            line(Span(f"{attained * 100:.0f} % inside", "dim")), " both targets", width, "dim"
        ),
    ]
    if height >= 4:
        told = [f"{len(seen)} ended"]
        for outcome, word in (
            ("failed", "failed"),
            ("rejected", "refused"),
            ("cancelled", "cancelled"),
        ):
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
    """The newest fault that the window shows, in words."""
    found = [fault for fault in engine.faults if fault.at_s > now_s - window_s]
    if not found:
        return None
    return line(Span("✗ fault ", "bad"), clean(found[-1].sentence))


# ----------------------------------------------------------------------------- status


def headline(state: RunState, width: int) -> Line:
    """Mode, model, load and whether a network is measured, in one line."""
    setting = state.engine.setting
    deployment = state.deployment
    if deployment is None and setting is None:
        if state.stage("demo").status == "running" or state.stage("model").status == "running":
            return line(Span(" Starting: the model is loaded once on each worker.", "dim"))
        return line(Span(" Nothing is running: 3 deploys.", "dim"))
    parts: list[Span] = [Span(" mode ", "dim")]
    if setting is not None:
        parts.append(Span(f" {setting.mode} ", "!key"))
        if deployment is not None and deployment.loopback:
            # Here, where no width cuts it off.
            parts.append(Span(" one machine: measures no network ", "warn"))
        parts.extend(_setting_words(setting.mode, state, short=width < 100))
    load = state.load
    named = state.choices.load_rate_requests_per_s
    rate = numbers.per_second(named, " req") if named else "l fits it to the boxes"
    parts.append(Span("  load ", "dim"))
    parts.append(Span(f"● {rate}", "good") if load.running else Span(f"○ off ({rate})", "dim"))
    if deployment is not None:
        parts.append(Span(f"  {clean(deployment.model)}", "dim"))
    return crop(tuple(parts), width)


def _setting_words(mode: str, state: RunState, *, short: bool) -> Line:
    setting = state.engine.setting
    if setting is None:
        return ()
    chunks = (
        f"chunks of {setting.chunk_tokens}"
        if short
        else (f"prefill in chunks of {setting.chunk_tokens}")
    )
    style = chunks if setting.prefill == "chunked" else "whole prefill"
    if mode == "split" and setting.prefill_box and setting.decode_box:
        return (
            Span(f" {setting.prefill_box} reads", "prefill"),
            Span(" ━▶ ", "handoff"),
            Span(f"{setting.decode_box} writes", "decode"),
            Span(f"  {style}", "dim"),
        )
    if mode == "colocated" and setting.decode_box:
        return (Span(f" on {setting.decode_box}", ""), Span(f"  {style}", "dim"))
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
    return crop(
        (
            *head,
            *fit(line(f"{status.running} running, {status.waiting} waiting"), 24),
            Span("KV ", "dim"),
            *bar(used, max(min(width - 70, 24), 6), "decode"),
            Span(f" {used * 100:3.0f} % used  "),
            *_power_spans(status),
        ),
        width,
    )


def _power_spans(status: WorkerStatus) -> Line:
    if status.power_w is not None:
        return (Span(numbers.watts(status.power_w)),)
    return (Span(f"power – ({clean(status.power_why or 'not told')})", "dim"),)


# ----------------------------------------------------------------------------- ledger


def ledger_legend() -> str:
    """What the glyphs of the ledger's bars stand for."""
    return "  ".join(f"{glyph} {name}" for name, _, _, glyph in LEDGER_PARTS)


def ledger_header(width: int) -> Line:
    """The names of the ledger's columns."""
    text = f"{'request':<11}{'prompt':>7}{'answer':>7}  {'TTFT':>8} {'2nd tok':>8} {'TPOT':>8}"
    rest = "  where the time to the second token went" if width >= 90 else ""
    return crop(line(Span(text + rest, "dim")), width)


def ledger_rows(
    records: Sequence[RequestRecord], dones: dict[str, Done], width: int
) -> tuple[tuple[str, Line], ...]:
    """The last requests, newest first: id and row of each."""
    newest = list(reversed(records))
    tops = [sum(part or 0.0 for part in _parts(record)) for record in newest]
    top = max(tops, default=1.0) or 1.0
    return tuple(
        (record.request_id, _ledger_row(record, dones.get(record.request_id), top, width))
        for record in newest
    )


def _parts(record: RequestRecord) -> tuple[float | None, ...]:
    return (
        record.queue_s,
        record.tokenise_s,
        record.prefill_s,
        record.handoff_exposed_s,
        record.first_decode_s,
    )


def _outcome_role(record: RequestRecord) -> str:
    return "" if record.outcome == "completed" else "bad"


def _ledger_row(record: RequestRecord, done: Done | None, top: float, width: int) -> Line:
    head = line(
        Span(f"{clean(record.request_id)[-10:]:<11}", _outcome_role(record)),
        f"{numbers.count(record.prompt_tokens):>7}{numbers.count(record.output_tokens):>7}  ",
    )
    if record.outcome != "completed":
        why = record.error or record.finish_reason or ""
        return crop((*head, Span(f"{record.outcome} {clean(why)}", "bad")), width)
    figures = (done.ttft_s, done.ttst_s, done.tpot_s) if done is not None else (None, None, None)
    told = line(" ".join(f"{numbers.seconds(value):>8}" for value in figures))
    if width < 90:
        return crop((*head, *told), width)
    room = width - 55
    return crop((*head, *told, Span("  "), *stacked(_parts(record), top, room)), width)


def request_detail(record: RequestRecord, width: int) -> Lines:
    """Everything about one request, in the order in which it happened."""
    rows: list[Line] = [
        line(Span("request ", "dim"), Span(clean(record.request_id), "strong")),
        line(Span("outcome ", "dim"), record.outcome, f"  {record.finish_reason or ''}"),
    ]
    rows.extend(wrap(f"why here: {record.why}", width))
    if record.error:
        rows.extend(wrap(record.error, width, "bad"))
    served = f"{record.served}: read on {record.prefill_box}, written on {record.decode_box}"
    rows.extend(wrap(served, width))
    moved = record.handoff_bytes
    rows.append(line(Span("")))
    for (name, _, role, glyph), value in zip(LEDGER_PARTS, _parts(record), strict=True):
        rows.append(line(Span(f"{glyph} {name:<14}", role), f"{numbers.seconds(value):>10}"))
    if moved is not None:
        text = (
            f"hand-off in all {numbers.seconds(record.handoff_s)}, {numbers.size(moved)} "
            f"for {numbers.count(record.handoff_tokens)} tokens"
        )
        rows.extend(wrap(text, width, "handoff"))
    rows.append(line(Span("")))
    rows.extend(_gap_rows(record, width))
    return tuple(rows)


def _gap_rows(record: RequestRecord, width: int) -> Lines:
    gaps = [b - a for a, b in zip(record.token_s, record.token_s[1:], strict=False)]
    if not gaps:
        return (line(Span("It has no second token, so there are no gaps.", "dim")),)
    return (
        line(
            Span("gaps between tokens, longest ", "dim"),
            Span(numbers.seconds(max(gaps)), "strong"),
        ),
        sparkline(gaps, min(width, len(gaps)), "decode", max(gaps)),
    )
