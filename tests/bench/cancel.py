"""Cancel soak against real workers: 1,000 requests a mode with a third cancelled, 200 in flight.

    python -m tests.bench.cancel [--requests 1000] [--in-flight 200] [--full]

With `--full` the boxes have so few KV blocks that one which is to write often refuses.

Prints one JSON document; fails when a block stays held or another request's text changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.engine.cancels import (
    BLOCKS,
    FEW_BLOCKS,
    MODES,
    cancel_a_third,
    cancel_in_flight,
    live,
)


async def soak(requests: int, in_flight: int, kv_blocks: int) -> dict[str, dict[str, int]]:
    """Every mode in turn, then the cancels between the first and the last frame."""
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with live(Path(folder), kv_blocks) as running:
            for seed, (name, setting) in enumerate(MODES.items()):
                found[name] = await cancel_a_third(running, setting, requests, seed)
                print(name, found[name], file=sys.stderr, flush=True)
            if in_flight:
                found["in flight"] = await cancel_in_flight(running, in_flight)
    return found


def main() -> int:
    """Run and print; 1 when a text differed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cancel", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=200)
    parser.add_argument("--full", action="store_true", help="boxes with few KV blocks")
    args = parser.parse_args()
    blocks = FEW_BLOCKS if args.full else BLOCKS
    found = asyncio.run(soak(args.requests, args.in_flight, blocks))
    print(json.dumps(found, indent=2))
    return int(any(part["different"] for part in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
