"""What a router may ask of a worker, and the request that it becomes. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection

from homesplit_engine.request import Request
from homesplit_engine.scheduler import Refusal
from homesplit_engine.wire.messages import (
    HandoffTarget,
    Refused,
    Reserve,
    SamplingParams,
    Submit,
)


def request_of(
    message: Submit | Reserve,
    *,
    now_s: float,
    chunk_tokens: int | None,
    eos_token_ids: Collection[int],
) -> Request:
    """The request that a message asks for; it must have been found right."""
    sampling = message.sampling
    stops = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        stops |= set(eos_token_ids)
    return Request(
        request_id=message.request_id,
        tokens=message.token_ids,
        prompt_tokens=message.prompt_tokens,
        max_tokens=sampling.max_tokens,
        arrived_s=now_s,
        deadline_s=now_s + message.deadline_s,
        chunk_tokens=chunk_tokens,
        stop_ids=frozenset(stops),
        sampling=sampling,
    )


def wrong_with(message: Submit | Reserve, vocab_size: int) -> Refusal | None:
    """What a message asks for that can't be, None when nothing."""
    what = _wrong_tokens(message, vocab_size) or _wrong_handoff(message)
    what = what or _wrong_sampling(message.sampling)
    return None if what is None else Refusal(kind="bad_request", what=what)


def wrong_range(target: HandoffTarget, tokens: int) -> str | None:
    """Why this part of a prompt can't be handed over, None when it can."""
    if 0 <= target.cached_tokens < tokens:
        return None
    return f"a hand-off from token {target.cached_tokens} of {tokens}"


def refused(request_id: str, refusal: Refusal) -> Refused:
    """A refusal as the router is told it."""
    return Refused(
        request_id=request_id,
        kind=refusal.kind,
        what=refusal.what,
        retry_after_s=refusal.retry_after_s,
    )


def _wrong_tokens(message: Submit | Reserve, vocab_size: int) -> str | None:
    tokens = message.token_ids
    if not tokens or not 1 <= message.prompt_tokens <= len(tokens):
        return "an empty prompt"
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        return f"a token id outside the vocabulary of {vocab_size}"
    if len(tokens) - message.prompt_tokens >= message.sampling.max_tokens:
        return "no token is left to write"
    if not math.isfinite(message.deadline_s):
        return f"a deadline in {message.deadline_s} seconds"
    return None


def _wrong_handoff(message: Submit | Reserve) -> str | None:
    if not isinstance(message, Submit):
        return None
    if message.chunk_tokens is not None and message.chunk_tokens < 1:
        return "a chunk of no tokens"
    target = message.handoff
    return None if target is None else wrong_range(target, len(message.token_ids))


def _wrong_sampling(sampling: SamplingParams) -> str | None:
    numbers = {
        "temperature": (sampling.temperature, 0.0, 100.0),
        "top_p": (sampling.top_p, 0.0, 1.0),
        "min_p": (sampling.min_p, 0.0, 1.0),
        "repetition_penalty": (sampling.repetition_penalty, 1e-3, 1e3),
        "presence_penalty": (sampling.presence_penalty, -100.0, 100.0),
        "frequency_penalty": (sampling.frequency_penalty, -100.0, 100.0),
    }
    for name, (value, low, high) in numbers.items():
        if not math.isfinite(value) or not low <= value <= high:
            return f"{name} {value} is not between {low:g} and {high:g}"
    return None
