"""`homesplit probe BOX [BOX]`: measures boxes and the link between them."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import msgspec

from homesplit.cli.output import add_json, command_context, print_json
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.reading import Reading
from homesplit.stages.probe import probe


def add_parser(subparsers: Any) -> None:
    """Adds `probe` to the command line."""
    parser = subparsers.add_parser("probe", help="measure boxes and the link between them")
    parser.add_argument("boxes", nargs="+", metavar="BOX", help="a name or [user@]host[:port]")
    parser.add_argument("--link", action="store_true", help="only the link between two boxes")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, save and print."""
    result = asyncio.run(probe(command_context(), args.boxes, only_link=args.link))
    if args.json:
        boxes = [_document(box) for box in result.boxes]
        print_json({"boxes": boxes, "link": result.link, "kept": result.kept})
        return 0
    for box in result.boxes:
        _print_box(box)
    if result.link:
        _print_link(result.link)
    for sentence in result.kept:
        print(f"  ! {sentence}")
    return 0


def _document(box: BoxProfile) -> dict[str, Any]:
    """The profile with its memory as a plain number of bytes, its reading beside it."""
    memory = box.memory_bytes
    value = None if memory.value is None else int(memory.value)
    return {**msgspec.to_builtins(box), "memory_bytes": value, "memory": memory}


def _text(reading: Reading, divisor: float, unit: str) -> str:
    if reading.value is None:
        return f"unknown: {reading.why}"
    spread = f", ±{reading.spread / 2:.0%}" if reading.spread is not None else ""
    return f"{reading.value / divisor:.3g} {unit} ({reading.method}{spread})"


def _print_box(box: BoxProfile) -> None:
    print(f"{box.name}: {box.cpu or 'unknown CPU'}, {box.cores or '?'} cores, {box.os or '?'}")
    for gpu in box.accelerators:
        print(f"  GPU           {gpu.name}")
    print(f"  memory        {_text(box.memory_bytes, 2**30, 'GiB')}")
    print(f"  reading it    {_text(box.memory_bytes_per_s, 1e9, 'GB/s')}")
    for dtype, rate in box.flops_per_s.items():
        print(f"  {dtype:<13} {_text(rate, 1e9, 'GFLOP/s')}")
    print(f"  disk free     {_text(box.disk_free_bytes, 2**30, 'GiB')}")
    for port in box.rdma_devices:
        print(f"  RDMA          {port} (not used: bytes go by TCP)")
    print(f"  power, load   {_text(box.load_w, 1, 'W')}")
    for warning in box.warnings:
        print(f"  ! {warning}")


def _print_link(link: LinkProfile) -> None:
    print(f"{link.a} to {link.b} ({link.interface_a or '?'}, {link.address_b or '?'})")
    for name, reading in (
        ("there", link.a_to_b),
        ("back", link.b_to_a),
        ("encrypted", link.encrypted_a_to_b),
        ("while busy", link.busy_a_to_b),
    ):
        print(f"  {name:<13} {_text(reading, 1e9 / 8, 'Gbit/s')}")
    print(f"  round trip    {_text(link.latency_s.p50, 1e-3, 'ms')}")
    for warning in link.warnings:
        print(f"  ! {warning}")
