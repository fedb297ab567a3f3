"""Tiny models that all of the engine's tests share: each is made, loaded and asked once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.engine.engine_kit import Models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """On the CPU."""
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tiny models: on a busy machine several threads mostly wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
