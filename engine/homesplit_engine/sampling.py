"""Logits to tokens. What is drawn depends on (seed, index of the output token) and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from msgspec import Struct

from homesplit_engine.wire.messages import SamplingParams

_DRAWS_ON = ("cpu", "cuda")
"""Tokens are drawn with double precision, which MPS has not; that one's memory is the CPU's too."""


class Choice(Struct, frozen=True, kw_only=True):
    """One chosen token, with log-probabilities where they were asked for."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class Row(Struct, frozen=True, kw_only=True):
    """How one row of logits is to be sampled."""

    params: SamplingParams
    token_ids: Sequence[int]
    """Every token so far, the prompt first."""
    prompt_tokens: int


def uniform(seed: int, index: int) -> float:
    """The one number in [0, 1) that output token `index` is drawn with under `seed`."""
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> list[Choice | None]:
    """One token a row of `logits` (rows x vocabulary, float); None where it is not finite."""
    if logits.device.type not in _DRAWS_ON:
        logits = logits.cpu()
    greedy, finite = _best(logits)
    return [
        (_choose_row(logits[at], row, greedy[at]) if finite[at] else None)
        for at, row in enumerate(rows)
    ]


def _best(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """The first largest logit of each row, and whether it is a finite number (NaN is largest)."""
    if logits.device.type == "cpu":
        # numpy's argmax is vectorised: several times quicker than torch's over a vocabulary.
        values = logits.numpy()
        best = values.argmax(axis=-1)
        largest = values[np.arange(len(best)), best]
        return best.tolist(), np.isfinite(largest).tolist()
    most, at = logits.max(dim=-1)
    return at.tolist(), torch.isfinite(most).tolist()


def _choose_row(logits: torch.Tensor, row: Row, best: int) -> Choice:
    params = row.params
    if _plain_greedy(params):
        token_id = best
    else:
        adjusted = _penalised(logits, row)
        token_id = int(adjusted.argmax()) if params.temperature <= 0.0 else _drawn(adjusted, row)
    if params.top_logprobs is None:
        return Choice(token_id=token_id)
    return _with_logprobs(logits, token_id, params.top_logprobs)


def _plain_greedy(params: SamplingParams) -> bool:
    return (
        params.temperature <= 0.0
        and params.repetition_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
    )


def _penalised(logits: torch.Tensor, row: Row) -> torch.Tensor:
    """Repetition over prompt and output; presence and frequency over the output (as in vLLM)."""
    params = row.params
    adjusted = logits.clone()
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(row.token_ids)), device=logits.device)
        values = adjusted[seen]
        adjusted[seen] = torch.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    output = row.token_ids[row.prompt_tokens :]
    if output and (params.presence_penalty or params.frequency_penalty):
        ids, counts = torch.tensor(output, device=logits.device).unique(return_counts=True)
        adjusted[ids] -= params.presence_penalty + params.frequency_penalty * counts
    return adjusted


def _drawn(logits: torch.Tensor, row: Row) -> int:
    """Inverse of the cumulative distribution, most likely first, at this token's number."""
    # Below the greatest, so that however low the temperature is nothing becomes infinite.
    cooled = (logits.double() - logits.max()) / row.params.temperature
    # A GPU sorts all of them at once, and would have to be waited for to say how many are likely.
    for within in _LIKELY_NATS if cooled.device.type == "cpu" else ():
        # In the order of their numbers, as the whole vocabulary would be.
        ids = (cooled >= -within).nonzero().squeeze(-1)
        token_id = _drawn_among(cooled, ids, row)
        if token_id is not None:
            return token_id
    everything = torch.arange(len(cooled), device=cooled.device)
    token_id = _drawn_among(cooled, everything, row)
    assert token_id is not None, "the drawn token is among all"
    return token_id


_LIKELY_NATS = (8.0, 16.0)
"""The likeliest tokens, by what they lie below the first at most: sorting the others, which are
nearly all, takes longer than a small model's step."""


def _drawn_among(cooled: torch.Tensor, ids: torch.Tensor, row: Row) -> int | None:
    """The drawn token, if it is among `ids`, which are the likeliest; None where it may not be."""
    params, index = row.params, len(row.token_ids) - row.prompt_tokens
    values, order = torch.sort(cooled[ids], descending=True, stable=True)
    kept = len(values)
    ends = kept == len(cooled)
    if 0 < params.top_k <= kept:
        values, kept, ends = values[: params.top_k], params.top_k, True
    weights = values.exp()
    whole = weights.sum() if ends else cooled.exp().sum()
    if params.top_k > 0 and not ends:
        return None  # how much they all weigh is not known
    probabilities = weights / whole
    cumulative = probabilities.cumsum(-1)
    if params.top_p < 1.0:
        before = cumulative - probabilities
        ends = ends or float(cumulative[-1]) >= params.top_p
        kept = min(kept, max(1, int((before < params.top_p).sum())))
    if params.min_p > 0.0:
        likely = int((probabilities >= params.min_p * probabilities[0]).sum())
        ends = ends or likely < len(values)
        kept = min(kept, max(1, likely))
    if not ends and (params.top_p < 1.0 or params.min_p > 0.0):
        return None
    at = uniform(params.seed, index) * (float(cumulative[kept - 1]) if ends else 1.0)
    if not ends and at >= float(cumulative[-1]):
        return None
    place = int(torch.searchsorted(cumulative[:kept], at, right=True))
    return int(ids[order[min(kept - 1, place)]])


def _with_logprobs(logits: torch.Tensor, token_id: int, count: int) -> Choice:
    """Log-probabilities of the model itself, before temperature and penalties."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = float(logprobs[token_id])
    top: tuple[tuple[int, float], ...] = ()
    if count > 0:
        values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        top = tuple((int(i), float(v)) for i, v in pairs)
    return Choice(
        token_id=token_id,
        logprob=chosen if math.isfinite(chosen) else None,
        top_logprobs=tuple((i, v) for i, v in top if math.isfinite(v)),
    )
