"""The app without a terminal says so at once and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("argv", [(), ("app",), ("demo",)])
def test_the_app_without_a_terminal_is_wrong_usage(tmp_path: Path, argv: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "homesplit", *argv],
        env={**os.environ, "HOMESPLIT_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "needs a terminal" in done.stderr and "--help" in done.stderr
