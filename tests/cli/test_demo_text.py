"""The tables of `homesplit demo --headless`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homesplit.cli.main import run
from homesplit.core.demo_result import DemoMode, DemoResult, demo_settings
from tests.core.test_verdict import QUICK, runs


def test_every_arrangement_has_its_percentiles_and_the_end_says_that_no_network_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (made,) = runs("split", [QUICK] * 24).runs
    modes = [DemoMode(setting=setting, result=made, different=()) for setting in demo_settings()]

    async def outcome(*_: Any, **__: Any) -> DemoResult:
        return DemoResult(
            modes=tuple(modes[:3]), compared_prompts=24, kv_bytes_per_token=8, kv_dtype="fp32"
        )

    # The demo itself needs the model and minutes; what is printed of its outcome does not.
    monkeypatch.setattr("homesplit.cli.demo.run_demo", outcome)
    monkeypatch.setenv("HOMESPLIT_HOME", str(tmp_path))
    assert run(["demo", "--headless"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert [line for line in lines if len(line) > 80 and "one machine" not in line.lower()] == []
    for name in ("colocated:whole", "colocated:chunked", "replica"):
        assert any(line.split()[:1] == [name] and "24 of 24" in line for line in lines)
    assert shown.count("p50") == 5 and "500 ms" in shown
    assert "Text over 24 prompts: identical. One machine over loopback" in lines[-1]
