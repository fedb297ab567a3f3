"""A comparison of modes over the same requests: figures by mode, texts, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from homesplit_engine.records import ModeSetting
from msgspec import Struct

from homesplit.core.bench_result import (
    BenchResult,
    energy_document,
    figures_document,
    seconds_against,
    seconds_text,
)
from homesplit.core.bootstrap import Z, interval, mean, paired_difference
from homesplit.core.divergence import Divergence, lossy
from homesplit.core.entry import LOOPBACK_LABEL, labelled
from homesplit.core.measured import RequestLog, timeline
from homesplit.core.predict_run import Predicted
from homesplit.core.say import counted, listed, rate, seconds_span, span
from homesplit.core.served import (
    WORTH_A_WORD_CORES,
    Background,
    ServerSide,
    background_words,
)
from homesplit.core.summary import RunSummary, inside, unjudged
from homesplit.core.workload import Targets

SIMPLER = ("colocated", "replica", "split", "auto")
"""A tie goes to the arrangement that stands first: one box before two, replicas before split.

What a person would otherwise run stands before all of them."""
UNEVEN_CORES = 0.25
"""From so much of a core between two modes on, the comparison says that it was not a fair one."""
LEAST_PAIRS = 20
"""Fewer requests in common than this tell nothing apart."""
SLICES = 20
"""Slices of a run in a closed loop, over which its goodput is compared."""


class ModeRuns(Struct, frozen=True, kw_only=True):
    """One mode's runs, pooled: every figure is over the requests of all repeats."""

    setting: ModeSetting | None
    """None for another server, which has no modes."""
    runs: tuple[BenchResult, ...]
    pooled: RunSummary
    predicted: Predicted | None = None
    url: str | None = None
    """Where the other server is, None for a mode of the boxes compared."""
    predicted_why: str | None = None
    """Why there is no prediction, None when there is one."""

    @property
    def name(self) -> str:
        """`colocated:whole`, `split`, `split:int8` where KV is sent so, or the other's address."""
        return column_name(self.setting, self.url)


def column_name(setting: ModeSetting | None, url: str | None) -> str:
    """How a column of a comparison is called: a mode of the boxes, or the other server at `url`."""
    if setting is None:
        return f"other server {url}"
    told = setting.mode == "colocated" or setting.prefill == "whole"
    prefill = (setting.prefill,) if told else ()
    wire = (setting.kv_wire,) if lossy(setting) else ()
    return ":".join((setting.mode, *prefill, *wire))


class Verdict(Struct, frozen=True, kw_only=True):
    """Which mode won by goodput; `mode` None where there is no difference or no data.

    `low` to `high` is the 95 % bootstrap interval of the winner's (or leader's) goodput less
    the next one's, requests per second.
    """

    mode: str | None
    sentence: str
    low: float | None
    high: float | None
    about: tuple[str, ...] = ()
    """The modes that the sentence speaks of."""


class CompareResult(Struct, frozen=True, kw_only=True):
    """The whole comparison."""

    modes: tuple[ModeRuns, ...]
    verdict: Verdict
    identical_text: bool | None
    """Of the modes that lose no precision; None where no prompt was answered in every mode."""
    compared_prompts: int
    repeats: int
    seed: int
    loopback: bool | None
    notes: tuple[str, ...] = ()
    learnt: tuple[str, ...] = ()
    """What the measured steps and hand-offs changed in what the plan goes by."""
    divergences: tuple[Divergence, ...] = ()
    """How far the texts of each mode whose hand-offs lose precision stray."""
    trade: str | None = None
    """What the split cost and took away against one box alone, in a sentence."""
    sentence: str = ""
    """All of it in one: the verdict, begun with the trade where both are about the same modes."""
    ended: bool = True
    entry: str | None = None


def verdict(modes: Sequence[ModeRuns], loopback: bool | None) -> Verdict:
    """The winner by goodput with its interval over paired requests, or "no difference"."""
    able = ranked(modes)
    if not able:
        served = any(mode.pooled.no_data is None for mode in modes)
        lumps = "No verdict: all answers came at one moment each, and so have no TPOT to be judged."
        sentence = lumps if served else "No data: no mode served."
        return Verdict(mode=None, sentence=sentence, low=None, high=None)
    best, *others = able
    if not others:
        sentence = f"Only {best.name} served so that it can be judged: nothing to compare it with."
        return Verdict(mode=None, sentence=labelled(sentence, loopback), low=None, high=None)
    second = others[0]
    difference = _paired(best, second)
    if difference is None:
        lumps = _lump_words(best, second)
        sentence = f"Too few requests in common to tell {best.name} from {second.name}{lumps}."
        return Verdict(mode=None, sentence=labelled(sentence, loopback), low=None, high=None)
    low, high = difference
    if high < 0.0 and not _closed(best):
        # Of the requests that can be judged in both, the other had more inside.
        best, second, low, high = second, best, -high, -low
    won = low > 0.0
    alone = won or _untellable(best, second)
    near = [best, second] if alone else [best, *(m for m in others if _untold(best, m))]
    told = _won(best, second, low, high) if won else _no_winner(near, second, low, high)
    words = f"{told}; {_latency_words(near)}{_lump_words(best, second)}"
    rest = [mode for mode in modes if all(mode is not named for named in near)]
    differences = [_paired(best, mode) if _has_goodput(mode) else None for mode in rest]
    for mode, apart in zip(rest, differences, strict=True):
        words += f"; {_rest_words(best, mode, apart)}"
    if any(differences):
        words += "; each comparison is at 95 % by itself, not all of them together"
    words += "."
    return Verdict(
        mode=best.name if won else None,
        sentence=labelled(words, loopback),
        low=low,
        high=high,
        about=tuple(mode.name for mode in near),
    )


def _won(best: ModeRuns, second: ModeRuns, low: float, high: float) -> str:
    return (
        f"{best.name} had the most goodput, by {span(low, high, 'requests/s')} over "
        f"{second.name} (95 % interval)"
    )


def _no_winner(near: Sequence[ModeRuns], second: ModeRuns, low: float, high: float) -> str:
    best, named = near[0], listed([mode.name for mode in near])
    within = f"95 % interval {span(low, high, 'requests/s', signed=True)}"
    if _untellable(best, second):
        return f"It can't be told whether {best.name} or {second.name} had more goodput ({within})"
    of_which = f", {best.name} less {second.name}" if len(near) > 2 else ""
    simple = min(near, key=_simplicity)
    return (
        f"No difference in goodput between {named} ({within}{of_which}): take the simpler, "
        f"{simple.name}"
    )


def _rest_words(best: ModeRuns, mode: ModeRuns, difference: tuple[float, float] | None) -> str:
    """How a mode did of which the verdict does not speak, by its goodput."""
    found, good = mode.pooled, mode.pooled.figures.goodput_requests_per_s
    if good is None:
        return f"{mode.name} {'served nobody' if found.no_data else 'cannot be judged'}"
    if difference is None:
        return f"{mode.name} has too few requests in common to be judged"
    low, high = difference
    if low <= 0.0:
        return f"nothing tells {mode.name} from {best.name}"
    share = 1.0 - good / _goodput(best) if _goodput(best) > good else 0.0
    by = f"{share:.0%}, " if share >= 0.005 else ""
    return f"{mode.name} is behind by {by}{span(low, high, 'requests/s')}"


def unended(modes: Sequence[ModeRuns], *, repeats: int, runs: int, seed: int) -> CompareResult:
    """What a comparison has measured that goes on, or was broken off: figures, and no verdict.

    `runs` is how many there were to be in all.
    """
    done = sum(len(mode.runs) for mode in modes)
    loopback = modes[0].runs[0].loopback
    so_far = "; ".join(_so_far(mode) for mode in modes)
    sentence = f"Comparison, not ended: {done} of {counted(runs, 'run')} done. {so_far}."
    nothing = Verdict(mode=None, sentence=labelled(sentence, loopback), low=None, high=None)
    return CompareResult(
        modes=tuple(modes),
        verdict=nothing,
        identical_text=None,
        compared_prompts=0,
        repeats=repeats,
        seed=seed,
        loopback=loopback,
        notes=tuple(background_notes(modes)),
        ended=False,
    )


def _so_far(mode: ModeRuns) -> str:
    if mode.pooled.no_data:
        return f"{mode.name}: {mode.pooled.no_data}"
    found = mode.pooled.figures
    good = found.goodput_requests_per_s
    told = "no data" if good is None else rate(good)
    return f"{mode.name}: goodput {told}, TTFT p50 {seconds_text(found.ttft_s.p50)}"


def near_best(modes: Sequence[ModeRuns]) -> list[ModeRuns]:
    """The best mode by goodput and those that nothing tells from it, the simplest first.

    Empty where no mode was inside the targets, or too few requests are in common to tell.
    """
    served = ranked(modes)
    if len(served) < 2 or _goodput(served[0]) <= 0:
        return []
    best, *others = served
    if any(_paired(best, other) is None for other in others):
        return []
    return sorted([best, *(m for m in others if _untold(best, m))], key=_simplicity)


def ranked(modes: Sequence[ModeRuns]) -> list[ModeRuns]:
    """Those with a goodput by it, the most first; the simpler first where it is the same.

    Who served nobody has none, nor who gave every answer at one moment where TPOT is judged.
    """
    return sorted(filter(_has_goodput, modes), key=_order)


def _has_goodput(mode: ModeRuns) -> bool:
    return mode.pooled.figures.goodput_requests_per_s is not None


def _untold(best: ModeRuns, other: ModeRuns) -> bool:
    difference = _paired(best, other)
    return difference is not None and difference[0] <= 0.0


def _goodput(mode: ModeRuns) -> float:
    return mode.pooled.figures.goodput_requests_per_s or 0.0


def _simplicity(mode: ModeRuns) -> int:
    return -1 if mode.setting is None else SIMPLER.index(mode.setting.mode)


def _order(mode: ModeRuns) -> tuple[float, int]:
    """By goodput, where answers that can't be judged are taken to be as good as the others."""
    found = mode.pooled.figures
    share = (found.judged + found.unjudged) / found.judged if found.judged else 1.0
    return -_goodput(mode) * share, _simplicity(mode)


def _closed(mode: ModeRuns) -> bool:
    return any(run.workload.arrivals.kind == "closed" for run in mode.runs)


def _untellable(best: ModeRuns, second: ModeRuns) -> bool:
    """Whether more goodput may be hidden in answers that can't be judged."""
    return _closed(best) and bool(_lump_words(best, second))


def _lump_words(*modes: ModeRuns) -> str:
    """What to know where answers can't be judged, as a clause; empty where all can."""
    told = [
        f"{mode.pooled.figures.unjudged} of {mode.name}'s"
        for mode in modes
        if mode.pooled.figures.unjudged
    ]
    if not told:
        return ""
    how = (
        "their goodput is only known to be at least what is told"
        if _closed(modes[0])
        else "only requests are compared that can be judged in both"
    )
    return f"; answers that came at one moment can't be judged ({', '.join(told)}): {how}"


def _paired(one: ModeRuns, other: ModeRuns) -> tuple[float, float] | None:
    """Interval of the goodput difference over the requests that both modes were offered.

    Users who wait for their answers send more where these come sooner, so that in a closed loop
    the difference lies in how many there are: there it is taken over slices of time.
    """
    left, right = _inside_by_request(one), _inside_by_request(other)
    if _closed(one):
        return _by_slices(one, other) if min(len(left), len(right)) >= LEAST_PAIRS else None
    keys = sorted(left.keys() & right.keys())
    if len(keys) < LEAST_PAIRS:
        return None
    found = paired_difference([left[key] for key in keys], [right[key] for key in keys])
    if found is None:
        return None
    each_s = one.pooled.figures.offered / one.pooled.figures.window_s
    return found.low * each_s, found.high * each_s


def _by_slices(one: ModeRuns, other: ModeRuns) -> tuple[float, float] | None:
    """By how much `one` has more goodput at least: what can't be judged is for the other."""
    left, right = _rates_by_slice(one), _rates_by_slice(other, with_unjudged=True)
    pairs = zip(left, right, strict=False)  # a server that was not asked as often has fewer
    found = interval([a - b for a, b in pairs], mean)
    if found is None or found.low < found.high:
        return None if found is None else (found.low, found.high)
    # No slice differs: then each count could still have come out otherwise by chance (Poisson).
    window_s = one.pooled.figures.window_s
    counted = sum(each.pooled.figures.inside for each in (one, other))
    counted += other.pooled.figures.unjudged
    width = Z * math.sqrt(counted + 1) / window_s
    return found.value - width, found.value + width


def _rates_by_slice(mode: ModeRuns, *, with_unjudged: bool = False) -> list[float]:
    """Requests per second inside both targets, by the slice of each run in which they were sent.

    With those that may have been inside as well, where that is asked for.
    """
    slice_s = mode.pooled.figures.window_s / len(mode.runs) / SLICES
    counts = [0] * (SLICES * len(mode.runs))
    for repeat, run in enumerate(mode.runs):
        for log in run.logs:
            at = int((log.due_s - run.summary.window.warm_up_s) / slice_s)
            counted = run.summary.window.counts(log.due_s)
            if counted and _good(log, run.workload.targets, with_unjudged):
                counts[repeat * SLICES + min(at, SLICES - 1)] += 1
    return [count / slice_s for count in counts]


def _good(log: RequestLog, targets: Targets, with_unjudged: bool) -> bool:
    line = timeline(log)
    if inside(line, targets):
        return True
    return with_unjudged and log.outcome == "completed" and unjudged(line, targets)


def _inside_by_request(mode: ModeRuns) -> dict[tuple[int, int], float]:
    """1 or 0 for each counted (repeat, request) that can be judged."""
    return {
        (repeat, log.id): float(inside(timeline(log), run.workload.targets))
        for repeat, run in enumerate(mode.runs)
        for log in run.logs
        if run.summary.window.counts(log.due_s)
        and not unjudged(timeline(log), run.workload.targets)
    }


def _latency_words(modes: Sequence[ModeRuns]) -> str:
    """The modes' TTFT, TPOT and stalls: of two side by side, of more from which to which."""
    found = [mode.pooled.figures for mode in modes]
    told = (
        ("TTFT p50", [each.ttft_s.p50 for each in found]),
        ("TPOT p50", [each.tpot_s.p50 for each in found]),
        ("stalled p90", [each.stall_s.p90 for each in found]),
    )
    return ", ".join(f"{name} {_beside_words(values)}" for name, values in told)


def _beside_words(values: Sequence[float | None]) -> str:
    if len(values) == 2:
        return seconds_against(*values)
    known = [value for value in values if value is not None]
    if len({seconds_text(value) for value in known}) < 2:
        return f"{seconds_text(known[0])} in all" if known else "no data"
    return seconds_span(min(known), max(known))


def compare_document(result: CompareResult) -> dict[str, Any]:
    """What `compare --json` prints."""
    label = {"label": LOOPBACK_LABEL} if result.loopback else {}
    return {
        "modes": [_mode_document(mode) for mode in result.modes],
        "identical_text": result.identical_text,
        "compared_prompts": result.compared_prompts,
        "divergences": [divergence_document(each) for each in result.divergences],
        "verdict": msgspec.to_builtins(result.verdict),
        "sentence": result.sentence or result.verdict.sentence,
        "trade": result.trade,
        "repeats": result.repeats,
        "seed": result.seed,
        "loopback": result.loopback,
        "notes": list(result.notes),
        "learnt": list(result.learnt),
        "ended": result.ended,
        "entry": result.entry,
        **label,
    }


def divergence_document(found: Divergence) -> dict[str, Any]:
    """One mode's divergence with its sentence, as documents and the notebook hold it."""
    return {**msgspec.to_builtins(found), "sentence": found.sentence}


def _mode_document(mode: ModeRuns) -> dict[str, Any]:
    sides = [run.server for run in mode.runs if run.server is not None]
    boxes = _boxes(mode)
    return {
        "mode": mode.setting.mode if mode.setting else "other",
        "prefill": mode.setting.prefill if mode.setting else None,
        "url": mode.url,
        "model": mode.runs[0].model,
        "loopback": mode.runs[0].loopback,
        "setting": msgspec.to_builtins(mode.setting),
        **figures_document(mode.pooled),
        "predicted": msgspec.to_builtins(mode.predicted),
        "predicted_why": mode.predicted_why,
        "goodput_per_box_requests_per_s": _goodput(mode) / boxes if boxes else None,
        **as_asked_document(sides),
        "handoffs": sum(side.handoffs for side in sides),
        "handoff_bytes": sum(side.handoff_bytes for side in sides),
        "handoff_tokens": sum(side.handoff_tokens for side in sides),
        "stall_causes": summed_counts([side.stall_causes for side in sides]),
        "background_cores": mean_background(mode),
        **energy_document(mode.runs),
        "server": [msgspec.to_builtins(side) for side in sides],
    }


def mean_background(mode: ModeRuns) -> dict[str, float]:
    """Cores of each box that other programs took while the mode ran, where the box tells."""
    told: dict[str, list[float]] = {}
    for run in mode.runs:
        for box, seen in _background(run).items():
            if seen.mean_cores is not None:
                told.setdefault(box, []).append(seen.mean_cores)
    return {box: sum(cores) / len(cores) for box, cores in told.items()}


def background_notes(modes: Sequence[ModeRuns]) -> list[str]:
    """A sentence for each box that others used (from which mode's mean to which) or may have."""
    by_box: dict[str, list[float]] = {}
    own = [mode for mode in modes if mode.setting is not None]
    for mode in own:
        for box, cores in mean_background(mode).items():
            by_box.setdefault(box, []).append(cores)
    said = [
        f"{box}: other programs took {_cores_words(cores)}"
        for box, cores in sorted(by_box.items())
        if max(cores) >= WORTH_A_WORD_CORES
    ]
    silent = {
        box: words
        for mode in own
        for run in mode.runs
        for box, seen in _background(run).items()
        if box not in by_box and (words := background_words(box, seen))
    }
    others = [_meanwhile(mode) for mode in modes if mode.setting is None]
    return [*said, *silent.values(), *uneven_background(own), *others]


def _cores_words(cores: Sequence[float]) -> str:
    low, high = f"{min(cores):.1f}", f"{max(cores):.1f}"
    return f"{low} cores in each mode" if low == high else f"{low} to {high} cores, by mode"


def _background(run: BenchResult) -> dict[str, Background]:
    return run.server.background if run.server else run.meanwhile


def _meanwhile(mode: ModeRuns) -> str:
    """What is known of the boxes while another server had its turn."""
    seen = mean_background(mode)
    told = [f"{cores:.1f} cores of {box}" for box, cores in sorted(seen.items())]
    known = (
        f"programs other than homesplit took {listed(told)} meanwhile, its own work among it where "
        "it runs there"
        if told
        else "what ran on the boxes meanwhile is not known, they told nothing"
    )
    return f"{mode.name}: {known}; another machine is not watched"


def uneven_background(modes: Sequence[ModeRuns]) -> list[str]:
    """A sentence for each box that was clearly busier with other work in one mode than another."""
    by_mode = [(mode.name, mean_background(mode)) for mode in modes]
    said: list[str] = []
    for box in sorted({box for _, seen in by_mode for box in seen}):
        known = [(seen[box], name) for name, seen in by_mode if box in seen]
        (least, quiet), (most, busy) = min(known), max(known)
        if most - least >= UNEVEN_CORES:
            said.append(
                f"{box} was not equally free: other programs took {most:.1f} cores of it during "
                f"{busy} and {least:.1f} during {quiet}"
            )
    return said


def _boxes(mode: ModeRuns) -> int | None:
    """How many boxes the mode uses; None for another server, which doesn't tell."""
    if mode.setting is None:
        return None
    if mode.setting.mode == "colocated":
        return 1
    return max(1, max((len(run.boxes) for run in mode.runs), default=1))


def as_asked_document(sides: Sequence[ServerSide]) -> dict[str, Any]:
    """What share of some runs was served the way the mode says, and what became of the rest."""
    to_serve = sum(side.to_serve for side in sides)
    missed = summed_counts([side.not_as_asked for side in sides])
    share = (to_serve - sum(missed.values())) / to_serve if to_serve else None
    return {"served_as_asked": share, "to_serve": to_serve, "not_as_asked": missed}


def summed_counts(each: Sequence[dict[str, int]]) -> dict[str, int]:
    """By name over all of them."""
    names = sorted({name for counts in each for name in counts})
    return {name: sum(counts.get(name, 0) for counts in each) for name in names}
