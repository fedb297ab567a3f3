"""One lab for the tests that only look, and the interpreter that runs the product on its desk."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

from tests.lab.api import RunningLab, running_lab


@pytest.fixture(scope="session")
def lab() -> Generator[RunningLab]:
    """Two boxes on 1 Gbit/s, the second slower; tests put back what they change."""
    with running_lab(2, "1gbe", cpu=["atlas=1", "borea=0.5"]) as running:
        yield running


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter with the project's dependencies."""
    return sys.executable
