"""From raw request records to the figures of one run, by the measuring words."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine import words
from homesplit_engine.words import Figures, Timeline, figures, inside_targets, tpot_s, ttft_s
from msgspec import Struct, structs

from homesplit.core import say
from homesplit.core.bootstrap import Interval, interval, quantile, share_interval
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog, joined_chunks, timeline
from homesplit.core.workload import Targets

WARM_UP_SHARE = 0.1
WARM_UP_MOST_S = 5.0
HELD_BACK_SHARE = 0.1
"""Above this share of chunks that came with the one before, a reader must be told."""
CUT_SHARE = 0.8
"""Below this share of the prompt tokens asked for, a prompt was not read whole."""
_BY_TOKENS = ("ttst_s", "itl_s", "stall_s")
"""Figures that need to know which tokens came with which chunk."""
_BY_COUNT = ("tpot_s", "goodput_tokens_per_s", "throughput_tokens_per_s")
"""Figures that need to know how many tokens an answer had."""


def window_rule(warm_up_s: float) -> str:
    """What of a run counts, in a sentence."""
    begun = (
        f"Requests due in the first {warm_up_s:.3g} s warm the server up and are left out"
        if warm_up_s > 0
        else "No request is left out as warm-up"
    )
    return (
        f"{begun}; requests are offered until the end of the run, those on their way are waited "
        "for, and the window ends with the last counted answer."
    )


class RunSummary(Struct, frozen=True, kw_only=True):
    """The figures of one run overall and by class, with intervals and what to know about them."""

    figures: Figures
    by_class: dict[str, Figures]
    intervals: dict[str, Interval | None]
    left_out: int
    """Requests of the warm-up, not counted anywhere."""
    warm_up_s: float
    lateness_p99_s: float | None
    """How late the generator itself was with sending."""
    notes: tuple[str, ...]
    no_data: str | None = None
    """Why there is no figure at all, None when there are figures."""
    estimated: tuple[str, ...] = ()
    """Names of the figures that rest on counts of tokens which the server did not tell."""


def warm_up_s(seconds: float) -> float:
    """The length of the warm-up of a run, by rule."""
    return min(WARM_UP_MOST_S, WARM_UP_SHARE * seconds)


def summarise(
    plan: LoadPlan,
    logs: Sequence[RequestLog],
    targets: Targets,
    *,
    warm_up: float | None = None,
) -> RunSummary:
    """The figures of `logs`; `warm_up` in seconds overrides the rule (0 counts everything)."""
    start = warm_up_s(plan.seconds) if warm_up is None else warm_up
    counted = [log for log in logs if log.due_s >= start]
    window_s = _window_end_s(plan, counted) - start
    lines = [timeline(log) for log in counted]
    whole = _figures(lines, targets, window_s)
    no_data = _no_data(counted, whole, len(logs) - len(counted))
    known = _rates_unknown if no_data else _as_they_are
    names = sorted({line.class_name for line in lines})
    return RunSummary(
        figures=known(whole),
        by_class={
            name: known(_figures([x for x in lines if x.class_name == name], targets, window_s))
            for name in names
        },
        intervals=_intervals(lines, known(whole), window_s),
        left_out=len(logs) - len(counted),
        warm_up_s=start,
        lateness_p99_s=_p99([log.lateness_s for log in counted]),
        notes=(*plan.notes, *_notes(counted)),
        no_data=no_data,
        estimated=_estimated(counted, targets),
    )


def _estimated(counted: Sequence[RequestLog], targets: Targets) -> tuple[str, ...]:
    """Which figures are estimates: without a usage record all that counts tokens.

    With one, what hangs on single tokens where these came in lumps.
    """
    done = [log for log in counted if log.outcome == "completed"]
    if not any(_uncounted(log) for log in done):
        if _held_back(done):
            return ("tpot_s", *_BY_TOKENS)
        return _BY_TOKENS if any(_bundled(log) for log in done) else ()
    judged = ("attainment", "goodput_requests_per_s") if targets.tpot_s is not None else ()
    return (*_BY_COUNT, *_BY_TOKENS, *judged)


def _uncounted(log: RequestLog) -> bool:
    return log.tokens_from in ("one a chunk", "estimated")


def _bundled(log: RequestLog) -> bool:
    """Whether several tokens came with a chunk, and only their sum was told."""
    return log.tokens_from == "usage" and max(log.arrival_tokens, default=1) > 1


def _as_they_are(found: Figures) -> Figures:
    return found


def _rates_unknown(found: Figures) -> Figures:
    """Counts alone: what served nobody has no goodput that another's could be held against."""
    return structs.replace(
        found,
        attainment=None,
        goodput_requests_per_s=None,
        goodput_tokens_per_s=None,
        throughput_tokens_per_s=None,
    )


def _window_end_s(plan: LoadPlan, counted: Sequence[RequestLog]) -> float:
    """The end of offering or the last completed answer, whichever is later."""
    ends = [log.ended_s for log in counted if log.outcome == "completed" and log.ended_s]
    last_s = max(ends, default=plan.seconds)
    exhausted = plan.closed and len(counted) >= len(plan.requests)
    return last_s if exhausted else max(plan.seconds, last_s)


def _figures(lines: Sequence[Timeline], targets: Targets, window_s: float) -> Figures:
    return figures(
        lines, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s, window_s=window_s
    )


def inside(line: Timeline, targets: Targets) -> bool:
    """Whether a request was completed inside both targets."""
    return inside_targets(line, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s)


def left_inside(line: Timeline, targets: Targets) -> bool:
    """Whether its user left a request that was still inside both targets."""
    return words.left_inside(line, ttft_target_s=targets.ttft_s, tpot_target_s=targets.tpot_s)


def _intervals(
    lines: Sequence[Timeline], whole: Figures, window_s: float
) -> dict[str, Interval | None]:
    done = [line for line in lines if line.outcome == "completed"]
    first = [value for line in done if (value := ttft_s(line)) is not None]
    each = [value for line in done if (value := tpot_s(line)) is not None]
    told = whole.attainment is not None
    share = share_interval(whole.inside, whole.judged) if told else None
    return {
        "ttft_s_p50": interval(first, quantile(0.5)),
        "ttft_s_p90": interval(first, quantile(0.9)),
        "tpot_s_p50": interval(each, quantile(0.5)),
        "tpot_s_p90": interval(each, quantile(0.9)),
        "attainment": share,
        "goodput_requests_per_s": _scaled(share, whole.judged / window_s) if window_s > 0 else None,
    }


def _scaled(share: Interval | None, factor: float) -> Interval | None:
    if share is None:
        return None
    return Interval(
        value=share.value * factor,
        low=share.low * factor,
        high=share.high * factor,
        count=share.count,
    )


def _p99(values: Sequence[float]) -> float | None:
    return quantile(0.99)(values) if values else None


def _no_data(counted: Sequence[RequestLog], whole: Figures, left_out: int) -> str | None:
    if not counted and left_out:
        return (
            f"no data: every request ({left_out}) began in the warm-up; "
            "take a longer run (--seconds), or count all of it (--warm-up 0)"
        )
    if not counted:
        return "no data: no request was offered"
    if whole.completed:
        return None
    reasons = _most_frequent([log.error or log.outcome for log in counted])
    return f"no data: none of {say.counted(whole.offered, 'request')} was completed ({reasons})"


def _answers(count: int) -> str:
    return say.counted(count, "answer")


def _most_frequent(reasons: Sequence[str]) -> str:
    counts = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    top = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{say.counted(count, 'time')}: {reason}" for reason, count in top)


def _notes(counted: Sequence[RequestLog]) -> tuple[str, ...]:
    """What a reader must know: estimates, reasoning, answers in one piece, cached prompts."""
    done = [log for log in counted if log.outcome == "completed"]
    estimated = sum(_uncounted(log) for log in done)
    shared = sum(_bundled(log) for log in done)
    reasoning = sum(log.reasoning for log in done)
    whole = sum(not log.streamed for log in done)
    bad = [log for log in counted if log.outcome in ("failed", "rejected")]
    notes: list[str] = []
    if estimated:
        notes.append(
            f"token counts are estimated in {estimated} of {_answers(len(done))} "
            "(one a chunk): the server sent no usage. TPOT, ITL, stalls, tokens/s and whether a "
            "request kept the TPOT target are then estimates; TTFT is not"
        )
    if shared:
        notes.append(
            f"{_answers(shared)} with several tokens in a chunk: TPOT counts tokens by the "
            "server's usage; tokens of each chunk, and so ITL and stalls, are estimated by length "
            "of text"
        )
    if held := _held_back(done):
        notes.append(held)
    if reasoning:
        notes.append(f"{_answers(reasoning)} with reasoning, which counts as content")
    if whole:
        notes.append(f"{_answers(whole)} in one piece: TTFT is the whole answer's time there")
    if bad:
        notes.append(f"not served: {_most_frequent([log.error or log.outcome for log in bad])}")
    return (*notes, *_shorter(done), *_cached_note(done))


def _shorter(done: Sequence[RequestLog]) -> tuple[str, ...]:
    """What to know where a server did less than it was asked, and says nothing of it.

    Ollama, for one, passes over `ignore_eos` and cuts prompts to its own context.
    """
    ended = sum(
        log.output_tokens is not None
        and log.tokens_from in ("usage", "per-chunk usage")
        and log.output_tokens < log.output_tokens_asked
        for log in done
    )
    told = [log for log in done if log.prompt_tokens]
    cut = [log for log in told if (log.prompt_tokens or 0) < CUT_SHARE * log.prompt_tokens_asked]
    notes: list[str] = []
    if ended:
        notes.append(
            f"{ended} of {_answers(len(done))} ended before the length asked for: the server did "
            "less work than one that goes on to it"
        )
    if cut:
        notes.append(
            f"the server counted fewer prompt tokens than were sent in {len(cut)} of {len(told)} "
            "requests: it cuts prompts to its context, or leaves out what it had cached"
        )
    return tuple(notes)


def _held_back(done: Sequence[RequestLog]) -> str | None:
    """What to know where text came in lumps; None where chunks came one by one."""
    chunks = sum(len(log.arrival_s) for log in done)
    joined = sum(joined_chunks(log) for log in done)
    if not chunks or joined / chunks < HELD_BACK_SHARE:
        return None
    return (
        f"{joined / chunks:.0%} of the chunks came together with the one before: text was held "
        "back on the way (a proxy's buffer, or a reader kept from reading). TTFT is what a reader "
        "sees, not when the server wrote; TPOT, ITL and stalls are estimates: the tokens of a lump "
        "are spread evenly over the time since the one before"
    )


def _cached_note(done: Sequence[RequestLog]) -> tuple[str, ...]:
    known = [log for log in done if log.cached_tokens is not None and log.prompt_tokens]
    cached = sum(log.cached_tokens or 0 for log in known)
    total = sum(log.prompt_tokens or 0 for log in known)
    if not total or cached / total < 0.01:
        return ()
    return (f"{cached / total:.0%} of the prompt tokens came from the server's prefix cache",)
