"""The probes' figures beside those of tools that everybody knows, as ratios of one run.

    python -m tests.bench.probes [--rounds N] [--only links,latency,gemm,memory,core]
        [--rates 50mbit,1gbe,2.5gbe,normal] [--json]

Everybody has a turn, one behind the other, in every round; a ratio is taken within a round and
the median of the rounds' ratios is told, with the smallest and the largest. Of arithmetic and
memory the fastest repetition on each side is compared, as STREAM does: other work on the machine
only slows; `best` compares the fastest of all rounds, which comes closest to a machine at rest.
Needs root (the lab), iperf3, gcc for the memory test, torch for the arithmetic. The
load average stands beside the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from homesplit_probes import compute, memory
from homesplit_probes.methods import usable_cores

from tests.lab.api import CORE_EACH, RunningLab, running_lab
from tests.lab.measure import round_trip_ms
from tests.lab.road import Road

STREAM = Path(__file__).with_name("stream.c")
PAIR = ("atlas", "borea")
RATES = ("50mbit", "1gbe", "2.5gbe", "normal")
DELAYS_MS = ("2", "10", "40")
Ratios = dict[str, list[float]]
_MORE_ROUNDS = 4
"""Turns of arithmetic and memory are short: so many for each round that was asked for."""


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.probes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated")
    parser.add_argument("--rates", default=",".join(RATES), help="of links, comma-separated")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ratios: Ratios = {}
    loads = [os.getloadavg()[0]]
    for part in args.only.split(","):
        PARTS[part](args, ratios)
        loads.append(os.getloadavg()[0])
    if args.json:
        print(json.dumps({"load_average": loads, "ratios": ratios, "best": _best}))
    else:
        print("\n".join(_table(ratios, loads)))
    return 0


def _table(ratios: Ratios, loads: list[float]) -> list[str]:
    lines = ["| ratio | median | smallest | largest | rounds |", "|---|---|---|---|---|"]
    for name, values in ratios.items():
        middle = statistics.median(values)
        row = f"| {name} | {middle:.3f} | {min(values):.3f} | {max(values):.3f} | {len(values)} |"
        lines.append(row)
    told = ", ".join(f"{load:.1f}" for load in loads)
    for name, (own, other) in _best.items():
        lines.append(f"| {name}, best | {own / other:.3f} | | | of {len(ratios[name])} |")
    return [*lines, "", f"Load average before and after each part: {told}."]


_best: dict[str, tuple[float, float]] = {}
"""The fastest of all rounds on each side."""


def _add_rates(ratios: Ratios, name: str, own: float, other: float) -> None:
    """A round's fastest repetition of the probe and of the other."""
    before = _best.get(name, (0.0, 0.0))
    _best[name] = (max(before[0], own), max(before[1], other))
    _add(ratios, name, own / other)


def _add(ratios: Ratios, name: str, value: float) -> None:
    print(f"{name}: {value:.3f}", file=sys.stderr, flush=True)
    ratios.setdefault(name, []).append(value)


def links(args: argparse.Namespace, ratios: Ratios) -> None:
    """The link probe beside iperf3, one stream each, both ways, at each rate."""
    with running_lab(2, "loopback", cpu=CORE_EACH) as lab, tempfile.TemporaryDirectory() as folder:
        road = Road(lab, Path(folder))
        for rate in args.rates.split(","):
            lab.set_rate(rate)
            for _ in range(args.rounds):
                before = lab.iperf_bits_per_s(*PAIR, seconds=2)
                link = _probed_link(road)
                after = lab.iperf_bits_per_s(*PAIR, seconds=2)
                value = link["a_to_b"]["value"] * 8 / statistics.mean((before, after))
                shown = "unshaped" if rate == "normal" else rate
                _add(ratios, f"link probe / iperf3, {shown}", value)


def latency(args: argparse.Namespace, ratios: Ratios) -> None:
    """The probe's round trip, less that without delay, beside the delay that was set."""
    with running_lab(2, "1gbe") as lab, tempfile.TemporaryDirectory() as folder:
        road = Road(lab, Path(folder))
        for _ in range(min(args.rounds, 2)):
            lab.fault("borea", "latency", "0")
            bare_ms, bare_ping_ms = _round_trips(road)
            print(f"without delay: {bare_ms:.3f} ms, ping {bare_ping_ms:.3f} ms", file=sys.stderr)
            for delay in DELAYS_MS:
                lab.fault("borea", "latency", delay)
                probe_ms, ping_ms = _round_trips(road)
                added = (probe_ms - bare_ms) / float(delay)
                pinged = (ping_ms - bare_ping_ms) / float(delay)
                _add(ratios, f"added round trip / set delay of {delay} ms", added)
                _add(ratios, f"ping's added round trip / set delay of {delay} ms", pinged)


def _round_trips(road: Road) -> tuple[float, float]:
    """The probe's median and ping's, milliseconds."""
    median = _probed_link(road)["latency_s"]["p50"]
    if median["value"] is None:
        raise SystemExit(f"the link probe gave no round trip: {median['why']}")
    return median["value"] * 1e3, round_trip_ms(road.lab.lab, *PAIR)


def _probed_link(road: Road) -> dict[str, Any]:
    link: dict[str, Any] = road.json("probe", *PAIR, "--link")["link"]
    return link


_LONG_S = 2.0
"""So long is a product of a type that the processor has no instructions for."""


def gemm(args: argparse.Namespace, ratios: Ratios) -> None:
    """The probe's matrix rate beside torch's own timer, same size and dtype."""
    import torch
    from torch.utils.benchmark import Timer

    for _ in range(_MORE_ROUNDS * args.rounds):
        for dtype, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            left = torch.randn(2048, 2048).to(kind)
            names = {"left": left, "torch": torch}
            timer = Timer("torch.mm(left, left)", globals=names, num_threads=usable_cores())
            before = _fastest(timer)
            figure = compute._torch_rate(torch, "cpu", dtype, 0.8)  # pyright: ignore[reportPrivateUsage]
            own = 2 * 2048**3 / min(before, _fastest(timer))
            name = f"GEMM {dtype}, probe / torch's own timer"
            _add_rates(ratios, name, max(figure["samples"]), own)


def _fastest(timer: Any) -> float:
    """Seconds of the fastest of four single runs by torch's timer, of one where it takes long."""
    first = timer.timeit(1).mean
    return first if first > _LONG_S else min(timer.timeit(1).mean for _ in range(4))


def read_and_copy(args: argparse.Namespace, ratios: Ratios) -> None:
    """The probe's read and copy rates beside a C STREAM over as many bytes."""
    caches = memory.last_level_caches()
    size = memory.buffer_bytes(max(caches), sum(caches), 1 << 40)
    assert size is not None
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "stream"
        build = ["gcc", "-Ofast", "-march=native", "-fopenmp", str(STREAM), "-o", str(program)]
        subprocess.run(build, check=True, timeout=60)
        command = [str(program), str(size)]
        for _ in range(_MORE_ROUNDS * args.rounds):
            before = _stream(command)
            figures = memory.measure_memory(_MEMORY_S, 1 << 40, lambda _: None)
            after = _stream(command)
            for name in ("read", "copy"):
                own, stream = max(figures[name]["samples"]), max(before[name], after[name])
                _add_rates(ratios, f"memory {name}, probe / C STREAM", own, stream)


_MEMORY_S = 2.4
"""A quarter for each of the four ways: as many repetitions as STREAM has before and after."""
_LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""STREAM's arrays as the engine's weights lie, and as the probe's buffers do."""


def _stream(command: list[str]) -> dict[str, float]:
    env = {**os.environ, **_LARGE_PAGES}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=env)
    return json.loads(done.stdout)


def half_a_core(args: argparse.Namespace, ratios: Ratios) -> None:
    """A box with half a core beside one with a whole one."""
    with (
        running_lab(2, "1gbe", cpu=["atlas=1@0", "borea=0.5@1"]) as lab,
        tempfile.TemporaryDirectory() as folder,
    ):
        road = Road(lab, Path(folder))
        for _ in range(args.rounds):
            whole, half = (_probed_box(road, box) for box in PAIR)
            _add(ratios, "half a core / a whole one, GEMM fp32", half[0] / whole[0])
            _add(ratios, "half a core / a whole one, memory read", half[1] / whole[1])
            counted = [_counted(lab, box) for box in reversed(PAIR)]
            _add(ratios, "half a core / a whole one, counting", counted[0] / counted[1])


def _probed_box(road: Road, box: str) -> tuple[float, float]:
    found = road.json("probe", box)["boxes"][0]
    return max(found["flops_per_s"]["fp32"]["samples"]), max(found["memory_bytes_per_s"]["samples"])


def _counted(lab: RunningLab, box: str) -> float:
    from tests.lab.measure import cpu_counts

    return float(cpu_counts(lab.lab, box))


PARTS: dict[str, Callable[[argparse.Namespace, Ratios], None]] = {
    "links": links,
    "latency": latency,
    "gemm": gemm,
    "memory": read_and_copy,
    "core": half_a_core,
}

if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    sys.exit(code)
