"""`homesplit` and `python -m homesplit`."""

from __future__ import annotations

import gc
import sys

GARBAGE_EACH = 50_000
"""Objects made before garbage is looked for: imports make many, and none of them is any."""


def seldom_look_for_garbage() -> None:
    """Once in `GARBAGE_EACH` new objects."""
    gc.set_threshold(GARBAGE_EACH, 20, 20)


def main() -> int:
    """Run the command line; the terminal app is imported only when it is asked for."""
    seldom_look_for_garbage()
    from homesplit.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
