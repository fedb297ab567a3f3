"""Watts by the tools of a machine: stand-ins print what the real ones print."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from homesplit_probes.power import Meter

GOLDEN = Path(__file__).parent / "golden"


def put(folder: Path, name: str, text: str) -> None:
    """A tool that prints this, whatever it is asked."""
    tool = folder / name
    tool.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(text)}\n")
    tool.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that alone is searched for tools."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("device", "tool", "text", "watts", "method"),
    [
        ("cuda", "nvidia-smi", "22.31\n11.17\n", 33.48, "nvidia-smi"),
        ("rocm", "amd-smi", "GPU: 0\n    POWER:\n        SOCKET_POWER: 36 W\n", 36, "amd-smi"),
    ],
)
def test_a_gpus_power_at_rest_and_under_load_comes_from_its_tool(
    tools: Path, device: str, tool: str, text: str, watts: float, method: str
) -> None:
    put(tools, tool, text)
    meter = Meter(device)
    idle = meter.idle()
    with meter:
        pass
    assert (idle["value"], idle["unit"]) == (pytest.approx(watts), "W")
    assert idle["method"].startswith(method)
    assert meter.under_load()["value"] == pytest.approx(watts)


@pytest.mark.parametrize(
    ("device", "tool", "text", "says"),
    [
        ("cuda", "nvidia-smi", "[N/A]\n", "NVIDIA driver does not tell"),
        ("cuda", "nvidia-smi", "22.31\n[Not Supported]\n", "NVIDIA driver does not tell"),
        ("rocm", "amd-smi", "GPU: 0\n    POWER:\n        SOCKET_POWER: N/A\n", "amd-smi does not"),
        ("rocm", "nothing", "", "amd-smi does not"),
    ],
)
def test_power_that_is_not_told_is_not_measured_and_never_0(
    tools: Path, device: str, tool: str, text: str, says: str
) -> None:
    put(tools, tool, text)
    meter = Meter(device)
    with meter:
        pass
    for told in (meter.idle(), meter.under_load()):
        assert told["value"] is None
        assert told["why"].startswith("power is not measured")
        assert says in told["why"]


def test_a_mac_tells_it_to_root_alone(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    put(tools, "powermetrics", "powermetrics must be invoked as the superuser\n")
    assert "powermetrics" in Meter("mps").idle()["why"]
    put(tools, "powermetrics", (GOLDEN / "powermetrics_apple.txt").read_text())
    told = Meter("mps").idle()
    assert (told["value"], told["method"][:12]) == (13.048, "powermetrics")
