"""`python3 probes.pyz WHAT`: one JSON object on standard output, progress on standard error.

WHAT is `facts`, `box`, `listen` or `drive`. The last two read one JSON line from standard
input: {token, addresses} and {token, peers}.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict

from homesplit_probes import blas_file, facts
from homesplit_probes.budget import OVER, Budget
from homesplit_probes.report import SCHEMA, unknown

_FACTS_S = facts.ANSWER_S + 5


def say(sentence: str) -> None:
    """Progress goes to standard error."""
    print(sentence, file=sys.stderr, flush=True)


def gather_facts() -> Dict[str, Any]:
    """All facts of this machine; what lies behind one that hangs stays unknown."""
    separator = secrets.token_hex(16)
    try:
        told = subprocess.run(
            ["sh", "-c", facts.script(separator)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_FACTS_S,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        told = error.output or b""
    return facts.parse(told.decode(errors="replace"), separator)


def measure_box(
    seconds: float, available_bytes: int, blas: str, tell: Callable[[Dict[str, Any]], None]
) -> None:
    """Compute and memory rates within `seconds`; tells all that is known after each part.

    What is told first says of the rest that its time was over, so that the last word counts
    even if the box stalls and the desk stops waiting.
    """
    from homesplit_probes import compute, memory, methods, power, throttle

    methods.bound_threads()
    budget, before = Budget(seconds), throttle.counts()
    device = compute.device_name()
    if not available_bytes:
        available_bytes = (gather_facts()["memory"] or {}).get("available_bytes") or 0
    answer: Dict[str, Any] = {
        "schema": SCHEMA,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "device": device,
        "gpu": compute.gpu_name(device),
        "flops_per_s": dict((dtype, unknown(OVER)) for dtype in compute.DTYPES),
        "memory": memory.measure_memory(budget.left() * 0.25, available_bytes, say),
        "idle_w": unknown(OVER),
        "load_w": unknown(OVER),
        "warnings": [],
    }
    tell(answer)
    meter = power.Meter(device)
    answer["idle_w"] = meter.idle()
    with meter:
        answer["flops_per_s"] = compute.measure_compute(budget, blas or None, say)
        # Told before a driver is asked again, which may hang.
        tell(answer)
        answer["warnings"] = throttle.warnings(before, throttle.counts())
    answer["load_w"] = meter.under_load()
    tell(answer)


def _print(value: Dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def _box_with_blas(args: argparse.Namespace) -> None:
    """Measure the box; a BLAS that came along lives only as long as that."""
    with tempfile.TemporaryDirectory() as folder:
        blas = args.blas
        if args.blas_bytes:
            blas = os.path.join(folder, "blas.whl")
            with open(blas, "wb") as file:
                file.write(sys.stdin.buffer.read(args.blas_bytes))
        if blas.endswith(".whl"):
            blas = blas_file.unpack(blas, folder) or ""
        measure_box(args.seconds, args.available_bytes, blas, _print)


def _input_line() -> Dict[str, Any]:
    return json.loads(sys.stdin.readline(1 << 20))


def main() -> int:
    """Do what was asked and print one JSON object."""
    parser = argparse.ArgumentParser(prog="probes.pyz")
    parser.add_argument("what", choices=("facts", "box", "listen", "drive"))
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--available-bytes", type=int, default=0)
    parser.add_argument("--blas", default="", help="a BLAS library, or a wheel that holds one")
    parser.add_argument("--blas-bytes", type=int, default=0, help="read that wheel from stdin")
    args = parser.parse_args()
    if args.what == "facts":
        print(json.dumps(gather_facts()))
    elif args.what == "box":
        _box_with_blas(args)
    else:
        from homesplit_probes import link

        told = _input_line()
        token = told["token"].encode()
        if args.what == "listen":
            link.listen(told["addresses"], token, args.seconds)
        else:
            peers = [tuple(p) for p in told["peers"]]
            print(json.dumps(link.drive(peers, token, say, args.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
