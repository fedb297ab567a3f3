"""What the advice would be elsewhere, as a value: a curve and a map, filled cell by cell."""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

NOBODY = "none"
"""In a cell where no mode has anyone inside the targets, so that none wins."""


class CurvePoint(Struct, frozen=True, kw_only=True):
    """A prompt's prefill beside the hand-off of its KV, seconds.

    `handoff_s` is the KV alone on the link; `exposed_s` what of it is left when it leaves
    layer by layer while the prompt is read.
    """

    prompt_tokens: int
    prefill_s: float
    handoff_s: float
    exposed_s: float


class RateCurve(Struct, frozen=True, kw_only=True):
    """A mode's goodput at rising offered rates, requests per second."""

    mode: str
    rates_requests_per_s: tuple[float, ...]
    goodput_requests_per_s: tuple[float, ...]


class PlanMap(Struct, frozen=True, kw_only=True):
    """Which mode wins by prompt length (columns) and one other quantity (rows)."""

    other: str
    """`users`, `requests/s` or `bytes/s` of the link."""
    prompt_tokens: tuple[int, ...]
    others: tuple[float, ...]
    here_prompt: float
    here_other: float
    cells: tuple[tuple[str | None, ...], ...] = ()
    """A row for each of `others`: who wins, or NOBODY; None where it can't be told, or not yet."""
    curve: tuple[CurvePoint, ...] = ()
    """Over prompt lengths; empty where no split is possible."""
    curve_boxes: tuple[str, str] | None = None
    """Who reads and who writes on the curve."""
    rates: tuple[RateCurve, ...] = ()
    """The best arrangement of each mode."""
    here_rate: float | None = None
    """Requests per second as asked; None where the users set the pace."""

    @property
    def crossings(self) -> tuple[float, ...]:
        """The prompt lengths at which hand-off and prefill take equally long.

        There may be two: short prompts are held up by what each step takes, and the arithmetic of
        attention makes long ones slower than the link.
        """
        found: list[float] = []
        for before, after in pairwise(self.curve):
            a = before.handoff_s - before.prefill_s
            b = after.handoff_s - after.prefill_s
            if a * b < 0:
                share = a / (a - b)
                apart = after.prompt_tokens - before.prompt_tokens
                found.append(before.prompt_tokens + share * apart)
        return tuple(found)
