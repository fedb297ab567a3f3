"""Figures as words for sentences: seconds, bytes, rates."""

from __future__ import annotations


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


def request_rate(value: float) -> str:
    """`0.42 requests/s`, or per minute or hour where that reads better."""
    if value >= 0.2 or value <= 0:
        return f"{value:.2g} requests/s"
    if value >= 0.01:
        return f"{value * 60:.2g} requests/min"
    return f"{value * 3600:.2g} requests/h"


def counted(count: int, what: str) -> str:
    """`1 request`, `2 requests`; `what` in the singular."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def rate(value: float, what: str = "request") -> str:
    """`1 request/s`, `0.5 requests/s`, with three figures."""
    said = f"{value:.3g}"
    return f"{said} {what}/s" if said == "1" else f"{said} {what}s/s"
