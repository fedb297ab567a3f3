"""The result of one load run: figures, raw records, the server's side, and how it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from homesplit_engine.records import ModeSetting
from homesplit_engine.words import Figures
from msgspec import Struct, field

from homesplit.core.entry import LOOPBACK_LABEL, labelled
from homesplit.core.load_words import load_words, targets_words
from homesplit.core.measured import CUT, RequestLog, timeline
from homesplit.core.say import counted, rate
from homesplit.core.served import Background, ServerSide, Timed
from homesplit.core.summary import RunSummary, inside
from homesplit.core.workload import Workload


class BenchResult(Struct, frozen=True, kw_only=True):
    """One run. `logs` are the raw records from which every figure can be computed again."""

    workload: Workload
    seconds: float
    seed: int
    salt: int
    model: str
    api: str
    summary: RunSummary
    server: ServerSide | None
    """None where the server is not homesplit's own router or told nothing."""
    setting: ModeSetting | None = None
    fingerprint: str | None = None
    loopback: bool | None = None
    """Whether all of it was on one machine; None where it isn't known."""
    boxes: tuple[str, ...] = ()
    started_at: str
    lag_p99_s: float | None = None
    stopped: bool = False
    logs: tuple[RequestLog, ...] = ()
    trace: str | None = None
    url: str | None = None
    """Where a foreign server is; None for homesplit's own router."""
    beside: tuple[str, ...] = ()
    """What the figures don't show: the server's ways, a late generator, others' load."""
    gathered: tuple[str, ...] = ()
    """Those of `beside` that a comparison tells of all its runs together."""
    late: bool = False
    """Whether the generator's own lateness is worth a word."""
    price_per_kwh: float | None = None
    """What the user pays for a kilowatt-hour, in the user's own currency."""
    entry: str | None = None
    """Id of the notebook's entry, None when nothing was kept."""
    meanwhile: dict[str, Background] = field(default_factory=dict[str, Background])
    """By box, what other programs took of the boxes compared while another server was measured,
    that server among them where it runs there."""
    timed: Timed | None = None
    """What the router told of the boxes' steps meanwhile; None where nobody listened."""


def figures_document(summary: RunSummary) -> dict[str, Any]:
    """The figures with the keys that `bench`, `compare` and `demo` print."""
    document = {
        **_figures_document(summary.figures),
        "by_class": {
            name: {
                **_figures_document(each),
                "intervals": msgspec.to_builtins(summary.class_intervals.get(name, {})),
            }
            for name, each in summary.by_class.items()
        },
        "estimated": list(summary.estimated),
        "intervals": msgspec.to_builtins(summary.intervals),
        "left_out": summary.left_out,
        "warm_up_s": summary.window.warm_up_s,
        "drain_s": summary.window.drain_s,
        "offered_s": summary.window.offered_s,
        "lateness_p99_s": summary.lateness_p99_s,
        "notes": list(summary.notes),
        "window_rule": summary.window.rule,
    }
    return {**document, "no_data": summary.no_data} if summary.no_data else document


def _figures_document(found: Figures) -> dict[str, Any]:
    return {**msgspec.to_builtins(found), "judged": found.judged}


def energy_document(runs: Sequence[BenchResult]) -> dict[str, Any]:
    """Joules of some runs, and for each 1,000 tokens of requests inside the targets.

    Whole runs with their warm-up are counted on both sides; None comes with its reason. The
    cost is that of the energy alone, idle included, at the user's price of a kilowatt-hour.
    """
    told = [run.server.energy for run in runs if run.server is not None]
    lacking = next((e.why or "no reading" for e in told if e.joules is None), None)
    if len(told) < len(runs) or not told:
        lacking = "the server tells no power"
    good = sum(_good_tokens(run) for run in runs)
    whole = None if lacking else sum(e.joules or 0.0 for e in told)
    rest_why = lacking or next((e.idle_why for e in told if e.idle_why), None)
    above = None if rest_why else sum(e.above_idle_joules or 0.0 for e in told)
    each = _per_thousand(whole, good)
    price = next((run.price_per_kwh for run in runs if run.price_per_kwh is not None), None)
    return {
        "joules": whole,
        "joules_above_idle": above,
        "good_tokens": good,
        "joules_per_1000_good_tokens": each,
        "joules_above_idle_per_1000_good_tokens": _per_thousand(above, good),
        "goodput_requests_per_watt_hour": _per_watt_hour(whole, runs),
        "cost_per_1000_good_tokens": None if each is None or price is None else each / _KWH * price,
        "energy_why": lacking,
        "idle_why": rest_why,
        "cost_why": _why_no_cost(lacking, good, price),
    }


_KWH = 3.6e6


def _why_no_cost(lacking: str | None, good: int, price: float | None) -> str | None:
    if price is None:
        return "no price of a kilowatt-hour was given (--price-per-kwh)"
    return lacking or (None if good else "no token was inside the targets")


def _per_watt_hour(joules: float | None, runs: Sequence[BenchResult]) -> float | None:
    """Requests inside the targets for each watt-hour."""
    if not joules:
        return None
    good = sum(inside(timeline(log), run.workload.targets) for run in runs for log in run.logs)
    return good / (joules / 3600.0)


def _good_tokens(run: BenchResult) -> int:
    lines = [timeline(log) for log in run.logs]
    return sum(line.tokens for line in lines if inside(line, run.workload.targets))


def _per_thousand(joules: float | None, tokens: int) -> float | None:
    return joules / tokens * 1000.0 if joules is not None and tokens else None


def bench_document(result: BenchResult) -> dict[str, Any]:
    """What `bench --json` prints: the figures, then what they rest on; no raw records."""
    about = msgspec.to_builtins(result)
    for key in ("summary", "logs", "workload", "timed", "gathered", "late"):
        del about[key]
    label = {"label": LOOPBACK_LABEL} if result.loopback else {}
    return {
        **figures_document(result.summary),
        "workload": result.workload.name,
        "targets": msgspec.to_builtins(result.workload.targets),
        "arrivals": msgspec.to_builtins(result.workload.arrivals),
        **about,
        **energy_document([result]),
        **label,
        "sentence": bench_sentence(result),
    }


def bench_sentence(result: BenchResult) -> str:
    """The run in one plain sentence, with its label where it measured no network."""
    summary = result.summary
    if summary.no_data:
        early = f" ({stopped_words(summary.window.offered_s, result.seconds, result.logs)})"
        told = f"{_where(result)}: {summary.no_data}{early if result.stopped else ''}."
        return labelled(told, result.loopback)
    figures = summary.figures
    targets = targets_words(result.workload.targets) or "no target set"
    parts = [
        f"{_where(result)}, {_completed(figures)}{_left_out(summary)}",
        f"{marked('attainment', summary, share_text(figures.attainment))} inside the targets "
        f"({targets})",
        _latencies(summary),
    ]
    good = figures.goodput_requests_per_s
    if good is not None:
        parts.append(f"goodput {marked('goodput_requests_per_s', summary, rate(good))}")
    if result.stopped:
        parts.append(stopped_words(summary.window.offered_s, result.seconds, result.logs))
    return labelled("; ".join(parts) + ".", result.loopback)


def _left_out(summary: RunSummary) -> str:
    """How many are not among them."""
    count = summary.left_out
    return f" ({count} more in warm-up and drain left out)" if count else ""


def stopped_words(offered_s: float, seconds: float, logs: Sequence[RequestLog]) -> str:
    """That a run did not come to its end, and how far it came."""
    if offered_s >= seconds:
        cut = sum(log.error == CUT for log in logs)
        waited = "answer was" if cut == 1 else f"{cut:,} answers were"
        return f"stopped while the last {waited} waited for"
    return f"stopped after {offered_s:.3g} of {seconds:.3g} s, so only a part of the run"


def _completed(figures: Figures) -> str:
    """How many were completed, and how many of the others their users gave up."""
    verb = "was" if figures.offered == 1 else "were"
    said = f"{figures.completed} of {counted(figures.offered, 'request')} {verb} completed"
    return f"{said}, {figures.cancelled} given up by their users" if figures.cancelled else said


def _where(result: BenchResult) -> str:
    return where_words(result.workload, result.setting, result.model)


def where_words(workload: Workload, setting: ModeSetting | None, model: str) -> str:
    """The beginning of a run's sentence: which load, and against what."""
    load = load_words(workload)
    if setting is None:
        return f"{load} against {model}"
    return f"{load} in mode {setting.mode} ({setting.prefill} prefill)"


def share_text(value: float | None) -> str:
    """A share of one as per cent; "no data" where there is none."""
    return "no data" if value is None else f"{value:.0%}"


def marked(key: str, summary: RunSummary, text: str) -> str:
    """The text of a figure, with `~` before it where the figure is an estimate."""
    return f"~{text}" if key in summary.estimated and text != "no data" else text


def _latencies(summary: RunSummary) -> str:
    figures = summary.figures
    first, each, stall = figures.ttft_s, figures.tpot_s, figures.stall_s
    pace = marked("tpot_s", summary, seconds_text(each.p50))
    return (
        f"TTFT {seconds_text(first.p50)} at p50 and {seconds_text(first.p90)} at p90, "
        f"TPOT {pace} at p50, stalled {seconds_text(stall.p90)} at p90"
    )


def late_words(lag_p99_s: float) -> str:
    """What the generator must say of itself where its lateness could colour the figures."""
    return (
        f"the load generator's own event loop woke {lag_p99_s * 1000:.0f} ms late (p99): "
        "single gaps may be off by as much, means are not"
    )


def energy_words(found: Mapping[str, Any]) -> str:
    """What an energy document says, whole and less what the boxes draw at rest."""
    whole, each = found.get("joules"), found.get("joules_per_1000_good_tokens")
    if whole is None:
        return f"not measured ({found.get('energy_why') or 'no reading'})"
    if each is None:
        return f"{whole:.3g} J, idle included, and no token was inside the targets"
    cost = found.get("cost_per_1000_good_tokens")
    above = found.get("joules_above_idle_per_1000_good_tokens")
    money = "" if cost is None else f", {cost:.3g} in money"
    rest = f"not known: {found.get('idle_why')}" if above is None else f"{above:.3g} J"
    return f"{each:.3g} J for 1,000 good tokens with idle{money}; above idle {rest}"


def seconds_text(value: float | None) -> str:
    """A time with three figures, in ms below 0.1 s; "no data" where there is none."""
    if value is None:
        return "no data"
    if value == 0:
        return "0 s"
    return f"{value * 1000:.3g} ms" if value < 0.09995 else f"{value:.3g} s"


def seconds_against(one: float | None, other: float | None) -> str:
    """`0.2 s against 0.3 s`, or `0.2 s in both` where they read alike; `70 ms against 110 ms`."""
    told = [seconds_text(value) for value in (one, other)]
    if one and other and min(one, other) < 0.09995 and max(one, other) < 0.9995:
        told = [f"{value * 1000:.3g} ms" for value in (one, other)]
    return f"{told[0]} in both" if told[0] == told[1] else f"{told[0]} against {told[1]}"
