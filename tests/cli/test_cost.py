"""The bare answer of the cost model: its keys, its formats, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homesplit.cli.main import run

ASKED = ("cost", "--box", "rtx-4090", "--model", "llama-3.1-8b", "--json")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMESPLIT_HOME", str(tmp_path))


def test_the_answer_names_the_formats_it_reckons_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED, "--prompt-tokens", "512"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["weights_dtype"], found["kv_dtype"]) == ("bf16", "bf16")
    assert found["weights_bytes"] == 16_060_522_496
    for key in ("prefill_s", "decode_step_s"):
        assert 0 < found[key]["low"] < found[key]["mid"] < found[key]["high"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompt-tokens", "0"), "--prompt-tokens is 0"),
        (("--prompt-tokens", "200000000"), "between 1 and 100,000,000"),
        (("--prompt-tokens", "10", "--cached", "20"), "--cached is more"),
        (("--prompt-tokens", "10", "--batch", "0"), "--batch is 0"),
        (("--prompt-tokens", "10", "--context", "-1"), "--context is -1"),
    ],
)
def test_what_nobody_can_ask_is_refused_by_its_option(
    options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASKED, *options]) == 2
    assert said in json.loads(capsys.readouterr().out)["error"]["what"]
