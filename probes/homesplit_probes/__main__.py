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
from typing import Any, Dict

from homesplit_probes import blas_file, facts
from homesplit_probes.report import SCHEMA


def say(sentence: str) -> None:
    """Progress goes to standard error."""
    print(sentence, file=sys.stderr, flush=True)


def gather_facts() -> Dict[str, Any]:
    """All facts of this machine."""
    separator = secrets.token_hex(16)
    done = subprocess.run(
        ["sh", "-c", facts.script(separator)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    return facts.parse(done.stdout.decode(errors="replace"), separator)


def measure_box(seconds: float, available_bytes: int, blas: str) -> Dict[str, Any]:
    """Compute and memory rates within about `seconds`."""
    from homesplit_probes import compute, memory, power

    device = compute.device_name()
    if not available_bytes:
        available_bytes = (gather_facts()["memory"] or {}).get("available_bytes") or 0
    rates = memory.measure_memory(seconds * 0.25, available_bytes, say)
    meter = power.Meter(device)
    idle = meter.idle()
    with meter:
        flops = compute.measure_compute(seconds * 0.75, blas or None, say)
    return {
        "schema": SCHEMA,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "device": device,
        "flops_per_s": flops,
        "memory": rates,
        "idle_w": idle,
        "load_w": meter.under_load(),
    }


def _box_with_blas(args: argparse.Namespace) -> Dict[str, Any]:
    """Measure the box; a BLAS that came along lives only as long as that."""
    with tempfile.TemporaryDirectory() as folder:
        blas = args.blas
        if args.blas_bytes:
            blas = os.path.join(folder, "blas.whl")
            with open(blas, "wb") as file:
                file.write(sys.stdin.buffer.read(args.blas_bytes))
        if blas.endswith(".whl"):
            blas = blas_file.unpack(blas, folder) or ""
        return measure_box(args.seconds, args.available_bytes, blas)


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
        print(json.dumps(_box_with_blas(args)))
    else:
        from homesplit_probes import link

        told = _input_line()
        token = told["token"].encode()
        if args.what == "listen":
            link.listen(told["addresses"], token, args.seconds)
        else:
            print(json.dumps(link.drive([tuple(p) for p in told["peers"]], token, say)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
