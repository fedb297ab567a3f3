"""`python -m homesplit_engine worker|router --config FILE`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one process of the engine; returns its exit code (2 for wrong usage)."""
    parser = argparse.ArgumentParser(prog="homesplit_engine", description=__doc__)
    parser.add_argument("process", choices=("worker", "router"))
    parser.add_argument("--config", required=True, metavar="FILE", help="its settings (JSON)")
    chosen = parser.parse_args(arguments)
    # Imported here: the router must not load torch, nor the worker an HTTP server.
    if chosen.process == "worker":
        from homesplit_engine.worker import main as run_worker

        return run_worker(chosen.config)
    from homesplit_engine.router.server import main as run_router

    return run_router(chosen.config)


if __name__ == "__main__":
    sys.exit(main())
