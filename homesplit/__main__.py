"""`homesplit` and `python -m homesplit`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; the terminal app is imported only when it is asked for."""
    from homesplit.cli.main import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
