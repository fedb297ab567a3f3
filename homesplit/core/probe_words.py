"""A probe in one sentence, as the notebook tells it."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit.core import say
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile


def probe_words(names: Sequence[str], boxes: Sequence[BoxProfile], link: LinkProfile | None) -> str:
    """What was measured: each box's two rates, then the link; what is missing is said to be."""
    told = [*(_box(box) for box in boxes), *([_link(link)] if link else [])]
    nothing = f"nothing of {' and '.join(names)} was measured"
    said = "; ".join(told) or nothing
    return f"{said[0].upper() if not boxes else said[0]}{said[1:]}."


def _box(box: BoxProfile) -> str:
    rates = {dtype: read.value for dtype, read in box.flops_per_s.items() if read.value is not None}
    reads = box.memory_bytes_per_s.value
    memory = "memory not measured" if reads is None else f"memory read at {reads / 1e9:.3g} GB/s"
    best = max(rates, key=lambda dtype: rates[dtype], default=None)
    if best is None:
        return f"{box.name}: {memory}, arithmetic not measured"
    return f"{box.name}: {memory}, {rates[best] / 1e9:.3g} GFLOP/s in {best}"


def _link(link: LinkProfile) -> str:
    there, back = link.a_to_b.value, link.b_to_a.value
    trip = link.latency_s.p50.value
    if there is None or back is None:
        return f"the link from {link.a} to {link.b} was not measured ({link.a_to_b.why})"
    there_and_back = f"{say.bit_rate(there)} there and {say.bit_rate(back)} back"
    late = "" if trip is None else f", round trip {trip * 1e3:.2g} ms"
    return f"the link from {link.a} to {link.b} carries {there_and_back}{late}"
