"""Figures as words for sentences: seconds, bytes, rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_MS_BELOW_S = 0.09995
"""Times below are told in ms."""
_FINEST = 6
"""Places after the point at most: a time is not known below a microsecond."""


def seconds(value: float) -> str:
    """`85 ms`, `1.4 s`, `3.2 min`."""
    if value < 0.0995:
        return f"{value * 1000:.3g} ms"
    if value < 9.95:
        return f"{value:.2f} s".replace(".00 s", " s")
    return f"{value:.0f} s" if value < 180 else f"{value / 60:.1f} min"


def size(value: float) -> str:
    """`46 KB`, `1.07 GB` (decimal)."""
    for least, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:.0f} B"


def bit_rate(bytes_per_s: float) -> str:
    """`2.35 Gbit/s` from bytes per second."""
    bits = bytes_per_s * 8.0
    for least, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= least:
            return f"{bits / least:.3g} {unit}"
    return f"{bits:.0f} bit/s"


def percent(share: float) -> str:
    """`93 %`."""
    return f"{100 * share:.0f} %"


def request_rate(value: float, what: str = "request") -> str:
    """`0.42 requests/s`, or per minute or hour where that reads better."""
    if value >= 0.2 or value <= 0:
        return f"{value:.2g} {what}s/s"
    if value >= 0.01:
        return f"{value * 60:.2g} {what}s/min"
    return f"{value * 3600:.2g} {what}s/h"


def offered_rate(requests_per_s: float, turns: int) -> str:
    """The same of a load, whose rate is one of conversations where these have several turns."""
    said = request_rate(requests_per_s)
    if turns == 1:
        return said
    return f"{said} ({request_rate(requests_per_s / turns, 'conversation')} of {turns} turns)"


def counted(count: int, what: str) -> str:
    """`1 request`, `2 requests`; `what` in the singular."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def rate(value: float, what: str = "request") -> str:
    """`1 request/s`, `0.5 requests/s`, with three figures."""
    said = f"{value:.3g}"
    return f"{said} {what}/s" if said == "1" else f"{said} {what}s/s"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def by_names(told: Iterable[tuple[str, str]]) -> list[str]:
    """Each thing that is told once, with all of whom it is told before it."""
    names: dict[str, list[str]] = {}
    for name, text in told:
        names.setdefault(text, []).append(name)
    return [f"{listed(list(dict.fromkeys(of)))}: {text}" for text, of in names.items()]


def span(low: float, high: float, unit: str, *, signed: bool = False, figures: int = 3) -> str:
    """`0.181 to 0.223 requests/s`: three figures of the larger end, or as many as asked for.

    More where it takes them to tell the ends apart or one of them from 0.
    """
    told = f" {unit}" if unit else ""
    ends = ("", "")
    for places in range(_places(max(abs(low), abs(high)), figures), _FINEST + 1):
        ends = _plain(low, places, signed), _plain(high, places, signed)
        gone = (low != 0 and ends[0] == "0") or (high != 0 and ends[1] == "0")
        if ends[0] != ends[1] and not gone:
            break
    return f"{ends[0]}{told} at both ends" if ends[0] == ends[1] else f"{' to '.join(ends)}{told}"


def seconds_span(low: float, high: float) -> str:
    """`181 to 223 ms`, `0.98 to 1.2 s`: both ends in the unit that suits the larger one."""
    if max(abs(low), abs(high)) < _MS_BELOW_S:
        return span(low * 1000, high * 1000, "ms")
    return span(low, high, "s")


def _places(top: float, figures: int) -> int:
    """After the point, so that `top` has so many figures."""
    return max(0, min(_FINEST, figures - 1 - math.floor(math.log10(top)))) if top > 0 else 0


def _plain(value: float, places: int, signed: bool) -> str:
    said = f"{value:+.{places}f}" if signed else f"{value:.{places}f}"
    said = said.rstrip("0").rstrip(".") if "." in said else said
    return "0" if said in ("-0", "+0") else said
