"""What was measured of boxes and of the link between them, as lines of text."""

from __future__ import annotations

from collections.abc import Callable

from homesplit.core.link import LinkProfile, Way
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading
from homesplit.view.numbers import arithmetic, bandwidth, link_rate, seconds, size, watts

_LABEL_CELLS = 14


def box_lines(box: BoxProfile) -> list[str]:
    """One box: who it is, what it can do, what is doubtful."""
    cores = f"{box.cores or '?'} cores"
    if box.cores_allowed is not None:
        cores += f" ({box.cores_allowed:g} allowed)"
    lines = [f"{box.name}: {box.cpu or 'unknown CPU'}, {cores}, {box.os or 'unknown OS'}"]
    for gpu in box.accelerators:
        driver = f", driver {gpu.driver}" if gpu.driver else ""
        lines.append(_line("GPU", f"{gpu.name}, {_told(gpu.memory_bytes, size)}{driver}"))
    lines.append(_line("memory free", _told(box.memory_bytes, size)))
    lines.append(_line("memory", _told(box.memory_total_bytes, size)))
    lines.append(_line("reading it", _told(box.memory_bytes_per_s, bandwidth)))
    lines.append(_line("copying it", _told(box.memory_copy_bytes_per_s, bandwidth)))
    for dtype, rate in box.flops_per_s.items():
        lines.append(_line(dtype, _told(rate, arithmetic)))
    lines.append(_line("disk free", _told(box.disk_free_bytes, size)))
    lines += [_line("RDMA", f"{port} (not used: bytes go by TCP)") for port in box.rdma_devices]
    lines.append(_line("power, idle", _told(box.idle_w, watts)))
    lines.append(_line("power, load", _told(box.load_w, watts)))
    return [*lines, *(f"  ! {warning}" for warning in box.warnings)]


def link_lines(link: LinkProfile) -> list[str]:
    """The link: the way that was taken, its rates and round trip, the other ways."""
    ends = f"{link.interface_a or '?'} to {link.interface_b or '?'}, {link.address_b or '?'}"
    lines = [f"{link.a} to {link.b} ({ends})"]
    for name, reading in (
        ("there", link.a_to_b),
        ("back", link.b_to_a),
        ("4 streams", link.streams_a_to_b),
        ("encrypted", link.encrypted_a_to_b),
        ("while busy", link.busy_a_to_b),
    ):
        lines.append(_line(name, _told(reading, link_rate)))
    trips = (_told(link.latency_s.p50, seconds), _told(link.latency_s.p99, seconds))
    lines += [_line("round trip", trips[0]), _line("slow ones", trips[1])]
    label = link_rate(link.label_bytes_per_s) if link.label_bytes_per_s else "not told"
    lines.append(_line("label", f"{label}; MTU {link.mtu_a or '?'} and {link.mtu_b or '?'}"))
    if len(link.ways) > 1:
        lines += [_line("way", _way(way)) for way in link.ways]
    return [*lines, *(f"  ! {warning}" for warning in link.warnings)]


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_CELLS}}{text}"


def _way(way: Way) -> str:
    ends = f"{way.address_b} ({way.interface_a or '?'} to {way.interface_b or '?'})"
    if way.why:
        return f"{ends}: {way.why}"
    return f"{ends}: {link_rate(way.bytes_per_s)}{', taken' if way.used else ''}"


def _told(reading: Reading, show: Callable[[float | None], str]) -> str:
    """The figure with its method, repetitions and spread, or the reason why there is none."""
    if reading.value is None:
        return f"unknown: {reading.why}"
    about = [reading.method] if reading.method else []
    if len(reading.samples) > 1:
        about.append(f"{len(reading.samples)} times")
    if reading.spread is not None:
        about.append(f"±{reading.spread / 2:.0%}")
    about += reading.warnings
    value = show(reading.value)
    return f"{value} ({', '.join(about)})" if about else value
