"""The far end of SSH connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.io.far_end import Lab, far_end


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A server known as `box` to a desk whose home is the test's folder."""
    async with far_end(tmp_path, monkeypatch) as made:
        yield made
