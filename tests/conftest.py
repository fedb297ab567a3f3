"""What tests need beyond Python: skipped by name where it is missing, a failure in CI."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

from homesplit.io.paths import user_paths
from tests.lab.needs import TO_START, missing

# How fast an example is found or tried is this computer's affair, and no property of ours.
settings.register_profile(
    "homesplit",
    settings.default,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("homesplit")

MODEL = "smollm2-135m"
LAB_TOOLS = (*TO_START, "ssh", "avahi-daemon", "iptables-restore", "iperf3", "ping")


def lab_needs() -> str | None:
    """Why no lab can be made here, or None."""
    return "; ".join(missing(LAB_TOOLS)) or None


def model_needs() -> str | None:
    """Why no real model can run here, or None."""
    folder = user_paths().models / MODEL
    if (folder / "config.json").exists():
        return None
    return f"{MODEL} is not at {folder}: run homesplit model get {MODEL}"


def gpu_needs() -> str | None:
    """Why no GPU test can run here, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    there = torch.cuda.is_available() or torch.backends.mps.is_available()
    return None if there else f"torch {torch.__version__} finds neither a CUDA nor an Apple GPU"


NEEDS: dict[str, Callable[[], str | None]] = {
    "lab": lab_needs,
    "model": model_needs,
    "gpu": gpu_needs,
}

MAY_LACK_IN_CI = {"gpu"}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose marker's need is not met; in CI fail it, so that none goes unseen."""
    for marker, needs in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        lack = needs()
        if lack and os.environ.get("CI") == "true" and marker not in MAY_LACK_IN_CI:
            pytest.fail(f"missing in CI: {lack}", pytrace=False)
        if lack:
            pytest.skip(lack)
