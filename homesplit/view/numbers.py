"""Figures in words that people read: seconds, bytes, rates; a missing figure keeps its reason."""

from __future__ import annotations

from collections.abc import Callable

from homesplit.core.reading import Reading

MISSING = "–"


def significant(value: float, digits: int = 3) -> str:
    """`value` with about `digits` significant digits and no exponent."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    places = digits - 1
    while size >= 10 and places > 0:
        size /= 10
        places -= 1
    return f"{value:.{places}f}"


def seconds(value: float | None) -> str:
    """A duration: `420 µs`, `12.3 ms`, `1.24 s`, `2 min 05 s`."""
    if value is None:
        return MISSING
    size = abs(value)
    if size == 0:
        return "0 s"
    if size < 0.9995e-3:
        return f"{significant(value * 1e6, 2)} µs"
    if size < 0.9995:
        return f"{significant(value * 1e3)} ms"
    if size < 100:
        return f"{significant(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def left(value: float) -> str:
    """How long something still takes, which nobody knows to the tenth: `7 s`, `2 min 05 s`."""
    return f"{max(round(value), 1)} s" if value < 99.5 else seconds(value)


def size(value: float | None) -> str:
    """Bytes in the decimal units that sentences use too: `36 MB`, `1.5 GB`."""
    if value is None:
        return MISSING
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(value) >= scale:
            return f"{significant(value / scale)} {unit}"
    return f"{value:.0f} B"


def _scaled(value: float, steps: tuple[tuple[str, float, float], ...]) -> str:
    """`value` in the first unit whose lower bound it reaches: (name, size, lower bound)."""
    for unit, scale, least in steps:
        if abs(value) >= least:
            return f"{significant(value / scale)} {unit}"
    unit, scale, _ = steps[-1]
    return f"{significant(value / scale)} {unit}"


def link_rate(value: float | None) -> str:
    """Bytes per second as the bit rate that links are sold by: `0.94 Gbit/s`."""
    if value is None:
        return MISSING
    return _scaled(value * 8, (("Gbit/s", 1e9, 0.1e9), ("Mbit/s", 1e6, 1e6), ("kbit/s", 1e3, 0.0)))


def bandwidth(value: float | None) -> str:
    """Bytes per second of memory: `9.8 GB/s`."""
    if value is None:
        return MISSING
    return _scaled(value, (("TB/s", 1e12, 1e12), ("GB/s", 1e9, 0.1e9), ("MB/s", 1e6, 0.0)))


def arithmetic(value: float | None) -> str:
    """Operations per second: `1.2 TFLOP/s`."""
    if value is None:
        return MISSING
    return _scaled(
        value,
        (
            ("TFLOP/s", 1e12, 0.5e12),
            ("GFLOP/s", 1e9, 0.5e9),
            ("MFLOP/s", 1e6, 0.0),
        ),
    )


def watts(value: float | None) -> str:
    """Power: `38.2 W`."""
    return MISSING if value is None else f"{significant(value)} W"


def share(value: float | None) -> str:
    """A share of one as per cent."""
    return MISSING if value is None else f"{value * 100:.0f} %"


def per_second(value: float | None, what: str = "") -> str:
    """A rate such as requests per second: `1.8/s`; a slow one by the minute: `2.4/min`."""
    if value is None:
        return MISSING
    if 0 < value < 0.1:
        return f"{significant(value * 60, 2)}{what}/min"
    return f"{significant(value, 2)}{what}/s"


def count(value: float | None) -> str:
    """A whole number with thousands apart."""
    return MISSING if value is None else f"{value:,.0f}"


def with_unit(value: float | None, unit: str) -> str:
    """A figure whose unit is only known by its name in a record (`s`, `bytes`, `1`, …)."""
    if value is None:
        return MISSING
    known: dict[str, Callable[[float | None], str]] = {
        "s": seconds,
        "seconds": seconds,
        "bytes": size,
        "B": size,
        "bytes/s": bandwidth,
        "share": share,
    }
    if unit in known:
        return known[unit](value)
    plain = significant(value) if value < 1e6 else f"{value:,.0f}"
    return plain if unit in ("", "1") else f"{plain} {unit}"


def reading(value: Reading, show: Callable[[float | None], str]) -> str:
    """A reading's figure, or the reason why there is none."""
    return show(value.value) if value.known else f"{MISSING} ({value.why or 'no reason given'})"


def age(seconds_ago: float | None) -> str:
    """How long ago in the coarsest useful unit: `just now`, `4 min ago`, `2 days ago`."""
    if seconds_ago is None:
        return "never"
    if seconds_ago < 45:
        return "just now"
    if seconds_ago < 5400:
        return f"{max(1, round(seconds_ago / 60))} min ago"
    if seconds_ago < 36 * 3600:
        return f"{round(seconds_ago / 3600)} h ago"
    return f"{round(seconds_ago / 86400)} days ago"
