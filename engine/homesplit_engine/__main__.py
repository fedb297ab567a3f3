"""`python -m homesplit_engine worker|router --config FILE [--supervised]`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one process of the engine; returns its exit code (2 for wrong usage)."""
    parser = argparse.ArgumentParser(prog="homesplit_engine", description=__doc__)
    parser.add_argument("process", choices=("worker", "router"))
    parser.add_argument("--config", required=True, metavar="FILE", help="its settings (JSON)")
    parser.add_argument("--supervised", action="store_true", help="start it again whenever it dies")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process is gone")
    parser.add_argument("--farewell", type=int, nargs=2, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument("--after", metavar="WORDS", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    # Imported here: the router must not load torch, nor the worker an HTTP server.
    if chosen.supervised:
        from homesplit_engine.supervise import main as supervise

        return supervise(chosen.process, chosen.config)
    if chosen.process == "worker":
        from homesplit_engine.worker.process import main as run_worker

        return run_worker(chosen.config, chosen.parent)
    from homesplit_engine.router.server import main as run_router

    return run_router(chosen.config, chosen.parent, farewell=chosen.farewell, after=chosen.after)


def _leave(code: int) -> NoReturn:
    """Ends the process at once: what it had open is closed, its threads have ended.

    Taking apart what torch and transformers built costs over a second of a core, many when
    the cores are busy, and gives nothing that the end of the process does not give.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
