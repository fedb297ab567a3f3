"""`python -m tests.lab`, or this file by its path from anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
