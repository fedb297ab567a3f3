"""The requests that calibrate a box: each kind of step the engine makes, in a minute or less.

Prompts read whole and alone (some after a cached beginning), answers written in batches that
shrink from eight to one, and prompts read in chunks beside answers; then both boxes at once, and
hand-offs, to a box that rests and to one that writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import PrefillStyle
from msgspec import Struct

from homesplit.core.load import LoadPlan, OfferedRequest, PromptPart
from homesplit.core.prng import mix

FIRST_LENGTHS = (16, 192, 48, 96)
"""A first look, in this order: short enough for the slowest box."""
BATCH = 8
ANSWER_STEP = 5
"""The batch's answers are so many tokens longer one than the other, so that it shrinks."""
TOGETHER_TOKENS = 32
LATER_HANDOFFS = 6
CHUNKS = (32, 128)
PHASE_S = 300.0
"""No request of a phase is sent later than this after its first."""
LONGEST_READ_S = 3.0
"""No single prompt is to take longer to read than about this."""


class Phase(Struct, frozen=True, kw_only=True):
    """Requests offered under one prefill style."""

    name: str
    prefill: PrefillStyle
    chunk_tokens: int = 256
    plan: LoadPlan


def first_look(seed: int) -> Phase:
    """A few short prompts, one after the other: tells how fast the box reads."""
    return Phase(
        name="short prompts", prefill="whole", plan=_in_turn([(n,) for n in FIRST_LENGTHS], seed)
    )


def later_phases(seed: int, *, longest: int) -> tuple[Phase, ...]:
    """Everything else, with prompts of up to `longest` tokens."""
    longest = max(longest, 2 * FIRST_LENGTHS[0])
    half, quarter = longest // 2, longest // 4
    # The second of each pair begins as the first does, so that its beginning is cached.
    prompts = [(longest,), (half,), (half, 64), (3 * longest // 4,), (quarter,), (quarter, 16)]
    context = max(16, min(quarter, 384))
    return (
        Phase(name="whole prompts", prefill="whole", plan=_in_turn(prompts, seed + 1)),
        Phase(name="batches", prefill="whole", plan=_batch(24, seed + 2)),
        Phase(name="batches over longer contexts", prefill="whole", plan=_batch(context, seed + 3)),
        *(
            Phase(
                name=f"chunks of {chunk} beside answers",
                prefill="chunked",
                chunk_tokens=chunk,
                plan=_beside(half, chunk, seed + 4 + chunk),
            )
            for chunk in CHUNKS
        ),
    )


def handoffs(seed: int, *, longest: int) -> LoadPlan:
    """Prompts one after the other, each handed over to the other box for its second token."""
    wanted = (
        longest // 2,
        longest // 4,
        *FIRST_LENGTHS,
        *(tokens + 20 for tokens in FIRST_LENGTHS),
    )
    # Of equal lengths the second would be cached already, and nothing of it be handed over.
    lengths = dict.fromkeys(max(2, min(tokens, longest)) for tokens in wanted)
    return _in_turn([(tokens,) for tokens in lengths], seed)


def while_writing(seed: int, *, longest: int) -> LoadPlan:
    """Prompts at once, read one after the other: later ones are handed over while answers of the
    earlier ones are written."""
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="calibration",
            prompt=(PromptPart(seed=mix(seed + 307 * number), tokens=max(2, longest // 2)),),
            output_tokens=TOGETHER_TOKENS,
            send_at_s=0.0,
        )
        for number in range(LATER_HANDOFFS)
    )
    return _plan(requests, seed)


def together(seed: int) -> LoadPlan:
    """Requests for both boxes at the same time, to see whether they slow each other down."""
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="calibration",
            prompt=(PromptPart(seed=mix(seed + 211 * number), tokens=FIRST_LENGTHS[3]),),
            output_tokens=TOGETHER_TOKENS,
            send_at_s=0.0,
        )
        for number in range(BATCH)
    )
    return _plan(requests, seed)


def longest_prompt(tokens_per_s: float, *, max_context: int, kv_tokens: int) -> int:
    """Prompt tokens that the box reads in bearable time and has room for, batches included."""
    room = min(max_context - 64, kv_tokens // 4)
    return max(32, min(room, int(tokens_per_s * LONGEST_READ_S), 4096))


def _in_turn(prompts: Sequence[tuple[int, ...]], seed: int) -> LoadPlan:
    """One request after the other; equal lengths first in a prompt are equal text."""
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="calibration",
            prompt=tuple(
                PromptPart(
                    # Only a beginning may be shared, so later parts get a seed of their own.
                    seed=mix(seed + (tokens if place == 0 else 7919 * (number + 1))),
                    tokens=tokens,
                )
                for place, tokens in enumerate(parts)
            ),
            output_tokens=3,
            send_at_s=0.0 if number == 0 else None,
            after=number - 1 if number else None,
        )
        for number, parts in enumerate(prompts)
    )
    return _plan(requests, seed)


def _batch(prompt: int, seed: int) -> LoadPlan:
    """Eight requests at once whose answers end one after the other."""
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="calibration",
            prompt=(
                PromptPart(seed=mix(seed), tokens=max(1, prompt - 8)),
                PromptPart(seed=mix(seed + 31 * (number + 1)), tokens=8),
            ),
            output_tokens=ANSWER_STEP * (number + 1),
            send_at_s=0.0,
        )
        for number in range(BATCH)
    )
    return _plan(requests, seed)


def _beside(prompt: int, chunk: int, seed: int) -> LoadPlan:
    """Three answers under way, and prompts read in chunks beside them."""
    tokens = max(chunk, min(prompt, 6 * chunk))
    writers = [(24, 24 + 8 * number, 0.0) for number in range(3)]
    readers = [(tokens, 2, 0.2), (tokens, 2, 0.2)]
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="calibration",
            prompt=(PromptPart(seed=mix(seed + 101 * number), tokens=length),),
            output_tokens=output,
            send_at_s=when,
        )
        for number, (length, output, when) in enumerate([*writers, *readers])
    )
    return _plan(requests, seed)


def _plan(requests: tuple[OfferedRequest, ...], seed: int) -> LoadPlan:
    # Closed: it ends with its last answer; its time only has to be enough for the slowest box.
    return LoadPlan(
        workload="calibration", seed=seed, seconds=PHASE_S, closed=True, requests=requests
    )
