"""What must be known beside the figures of a run: estimates, lumps, cut prompts, cached ones."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.words import Figures, Timeline, at_once

from homesplit.core import say
from homesplit.core.measured import RequestLog, joined_chunks
from homesplit.core.window import Window

DRAINED_SHARE = 0.1
"""Above this share of counted answers that ended after the offering, a reader must be told."""
HELD_BACK_SHARE = 0.1
"""Above this share of chunks that came with the one before, a reader must be told."""
CUT_SHARE = 0.8
"""Below this share of the prompt tokens asked for, a prompt was not read whole."""


def run_notes(
    counted: Sequence[RequestLog], lines: Sequence[Timeline], whole: Figures, seen: Window
) -> tuple[str, ...]:
    """What a reader of a run's figures must know, a line each; `lines` are of `counted`."""
    return (*_drained(counted, seen), *_of_answers(counted), *_at_once(lines, whole))


def _of_answers(counted: Sequence[RequestLog]) -> tuple[str, ...]:
    """Estimates, reasoning, answers in one piece, cached prompts."""
    done = [log for log in counted if log.outcome == "completed"]
    estimated = sum(uncounted(log) for log in done)
    shared = sum(bundled(log) for log in done)
    reasoning = sum(log.reasoning for log in done)
    whole = sum(not log.streamed for log in done)
    single = sum(log.output_tokens == 1 and not uncounted(log) for log in done)
    bad = [log for log in counted if log.outcome in ("failed", "rejected")]
    notes: list[str] = []
    if estimated:
        notes.append(
            f"token counts are estimated in {estimated} of {_answers(len(done))} "
            "(one a chunk): the server sent no usage. TPOT, ITL, tokens/s and whether a "
            "request kept the TPOT target are then estimates; TTFT and stalls are not"
        )
    if shared:
        notes.append(
            f"{_answers(shared)} with several tokens in a chunk: TPOT is over the tokens after "
            "the first chunk, whose own are estimated by length of text; ITL and stalls are as "
            "text came, without a gap between the tokens of one chunk"
        )
    if held := _held_back(done):
        notes.append(held)
    if reasoning:
        notes.append(f"{_answers(reasoning)} with reasoning, which counts as content")
    if single:
        notes.append(
            f"{_answers(single)} of one token: no TPOT, ITL or stall, and judged by TTFT alone"
        )
    if whole:
        notes.append(f"{_answers(whole)} in one piece: TTFT is the whole answer's time there")
    if bad:
        notes.append(f"not served: {most_frequent([log.error or log.outcome for log in bad])}")
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
        "back on the way (a proxy's buffer, or a reader kept from reading). All times are what a "
        "reader sees, not when the server wrote: tokens of a lump have no gap between them, and "
        "the wait before it is a stall where it is beyond the target"
    )


def _cached_note(done: Sequence[RequestLog]) -> tuple[str, ...]:
    known = [log for log in done if log.cached_tokens is not None and log.prompt_tokens]
    cached = sum(log.cached_tokens or 0 for log in known)
    total = sum(log.prompt_tokens or 0 for log in known)
    if not total or cached / total < 0.01:
        return ()
    return (f"{cached / total:.0%} of the prompt tokens came from the server's prefix cache",)


def _drained(counted: Sequence[RequestLog], seen: Window) -> tuple[str, ...]:
    """What to know where answers ended when nothing was offered any more."""
    ends = [log.ended_s for log in counted if log.outcome == "completed" and log.ended_s]
    late = sum(end > seen.offered_s for end in ends)
    if not ends or late / len(ends) <= DRAINED_SHARE:
        return ()
    return (
        f"{late} of {_answers(len(ends))} ended after the offering, when the load was falling: "
        "the server was behind, or the run is short for such answers",
    )


def _at_once(lines: Sequence[Timeline], whole: Figures) -> tuple[str, ...]:
    """What to know where answers had no TPOT, though they had several tokens."""
    count = sum(line.outcome == "completed" and at_once(line) for line in lines)
    if not count:
        return ()
    judged = (
        f"; {whole.unjudged} of them can't be judged by the TPOT target and count neither way: "
        f"attainment is over the other {say.counted(whole.judged, 'request')}, goodput a lower "
        "bound"
        if whole.unjudged
        else ""
    )
    return (
        f"{_answers(count)} of several tokens came all at one moment and so have no TPOT{judged}",
    )


def _answers(count: int) -> str:
    return say.counted(count, "answer")


def most_frequent(reasons: Sequence[str]) -> str:
    """The three reasons that were given most often, each with how often."""
    counts = {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}
    top = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{say.counted(count, 'time')}: {reason}" for reason, count in top)


def uncounted(log: RequestLog) -> bool:
    """Whether the server told no token count of this answer, so that its own is an estimate."""
    return log.tokens_from in ("one a chunk", "estimated")


def bundled(log: RequestLog) -> bool:
    """Whether several tokens came with a chunk, and only their sum was told."""
    return log.tokens_from == "usage" and max(log.arrival_tokens, default=1) > 1
