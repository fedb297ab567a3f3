"""The package tools of this machine, old ones included."""

from __future__ import annotations

import subprocess

import pytest

from homesplit.io.python_tools import pip_command, pip_progress, pip_tells_progress


@pytest.mark.parametrize(
    ("version", "tells"),
    [("23.2.1", False), ("24.0", False), ("24.1", True), ("24.1b1", True), ("26", True)],
)
def test_only_a_pip_that_knows_raw_progress_is_asked_for_it(version: str, tells: bool) -> None:
    assert pip_tells_progress(version) is tells


def test_the_pip_of_this_machine_takes_the_progress_option() -> None:
    done = subprocess.run(
        [*pip_command(), "download", *pip_progress(), "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
