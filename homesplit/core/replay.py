"""Offered requests from a recorded trace: its times, lengths and shared prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from homesplit.core.load import LoadPlan, OfferedRequest, PromptPart
from homesplit.core.prng import Prng
from homesplit.core.say import counted
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens for which one hash id stands in Mooncake's traces (FAST25-release README)."""


CLASSES = ("short", "medium", "long")
REPLAY = "trace"
"""Source of a workload that is a recorded load."""


class TraceRow(Struct, frozen=True, kw_only=True):
    """One request of a trace: when, how long, and which blocks of its prompt have been seen."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """Equal ids are equal prompt blocks of `block_tokens`; empty shares nothing."""


class Trace(Struct, frozen=True, kw_only=True):
    """A recorded load; `bucket_s` is the grid that its times were rounded down to, 0 for none."""

    name: str
    rows: tuple[TraceRow, ...]
    bucket_s: float = 0.0
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    notes: tuple[str, ...] = ()


def replay(
    trace: Trace,
    *,
    seed: int,
    speed: float = 1.0,
    limit: int | None = None,
    seconds: float | None = None,
    max_context_tokens: int | None = None,
    max_output_tokens: int | None = None,
) -> LoadPlan:
    """The trace as a plan: `speed` times as fast, cut to `limit` rows and `seconds`.

    With `max_context_tokens` all lengths are scaled down by one factor so that the longest
    request fits; the notes name the factor. Raises ValueError for an empty or impossible replay.
    """
    if not speed > 0:
        raise ValueError("the speed of a replay must be above 0")
    rng = Prng(seed)
    times = _spread(trace, rng.fork(1))
    rows = [(t / speed, row) for t, row in zip(times, trace.rows, strict=True)]
    rows = [(t, row) for t, row in sorted(rows, key=_by_time) if seconds is None or t < seconds]
    rows = rows[:limit] if limit is not None else rows
    if not rows:
        raise ValueError(f"trace {trace.name} has no request in the part asked for")
    scale = _scale([row for _, row in rows], max_context_tokens)
    requests = tuple(
        _offered(index, moment, row, trace.block_tokens, scale, max_output_tokens, rng)
        for index, (moment, row) in enumerate(rows)
    )
    told = counted(len(rows), "request")
    notes = (*trace.notes, f"replay of {told} of {trace.name} at {pace_words(speed)}")
    if scale < 1:
        notes = (*notes, f"all lengths scaled by {scale:.3g} to fit {max_context_tokens} tokens")
    length_s = seconds if seconds is not None else rows[-1][0] + 1e-3
    return LoadPlan(
        workload=trace.name,
        seed=seed,
        seconds=length_s,
        closed=False,
        requests=requests,
        notes=notes,
        speed=speed,
    )


def pace_words(speed: float) -> str:
    """How fast a trace is replayed."""
    return "its own speed" if speed == 1 else f"{speed:g} times its speed"


def recorded(plan: LoadPlan, targets: Targets) -> Workload:
    """The workload that a replay amounts to: its classes as they came out, its mean rate."""
    count = len(plan.requests)
    names = [name for name in CLASSES if any(r.class_ == name for r in plan.requests)]
    return Workload(
        name=plan.workload,
        classes=tuple(
            _recorded_class(name, [r for r in plan.requests if r.class_ == name], count)
            for name in names
        ),
        arrivals=Arrivals(rate_requests_per_s=count / plan.seconds),
        targets=targets,
        description="; ".join(plan.notes),
        source=REPLAY,
        speed=plan.speed,
    )


def _recorded_class(name: str, requests: Sequence[OfferedRequest], count: int) -> LengthClass:
    prompts = [request.prompt_tokens for request in requests]
    outputs = [request.output_tokens for request in requests]
    return LengthClass(
        name=name,
        share=len(requests) / count,
        prompt_tokens_low=min(prompts),
        prompt_tokens_high=max(prompts),
        output_tokens_low=min(outputs),
        output_tokens_high=max(outputs),
    )


def _by_time(item: tuple[float, TraceRow]) -> float:
    return item[0]


def _spread(trace: Trace, rng: Prng) -> list[float]:
    """Times from 0; rows of one bucket are spread inside it, else they would all come at once."""
    start = min((row.at_s for row in trace.rows), default=0.0)
    if trace.bucket_s <= 0:
        return [row.at_s - start for row in trace.rows]
    return [row.at_s - start + rng.uniform() * trace.bucket_s for row in trace.rows]


def _scale(rows: Sequence[TraceRow], max_context_tokens: int | None) -> float:
    if max_context_tokens is None:
        return 1.0
    longest = max(row.prompt_tokens + row.output_tokens for row in rows)
    return min(1.0, max_context_tokens / longest)


def _offered(
    index: int,
    moment: float,
    row: TraceRow,
    block_tokens: int,
    scale: float,
    max_output_tokens: int | None,
    rng: Prng,
) -> OfferedRequest:
    output_tokens = max(1, int(row.output_tokens * scale))
    if max_output_tokens is not None:
        output_tokens = min(output_tokens, max_output_tokens)
    return OfferedRequest(
        id=index,
        class_=length_class(row.prompt_tokens),
        prompt=_blocks(row, index, block_tokens, scale, rng),
        output_tokens=output_tokens,
        send_at_s=moment,
        shared_group=row.hash_ids[0] if row.hash_ids else None,
    )


def _blocks(
    row: TraceRow, index: int, block_tokens: int, scale: float, rng: Prng
) -> tuple[PromptPart, ...]:
    """A part per hash id, so that equal ids give equal text; the rest is the row's own."""
    left = max(1, int(row.prompt_tokens * scale))
    # Rounded where they end: rounding each by itself would share less than was recorded.
    ends = [int(place * block_tokens * scale) for place in range(len(row.hash_ids) + 1)]
    parts: list[PromptPart] = []
    for hash_id, start, end in zip(row.hash_ids, ends, ends[1:], strict=False):
        if (tokens := min(end - start, left)) > 0:
            parts.append(PromptPart(seed=rng.fork(2, hash_id).bits(), tokens=tokens))
            left -= tokens
    if left > 0:
        parts.append(PromptPart(seed=rng.fork(3, index).bits(), tokens=left))
    return tuple(parts)


def length_class(prompt_tokens: int) -> str:
    """`short` below 512 prompt tokens of the recorded row, `medium` below 4,096, else `long`."""
    if prompt_tokens < 512:
        return CLASSES[0]
    return CLASSES[1] if prompt_tokens < 4096 else CLASSES[2]
