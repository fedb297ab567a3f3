"""`homesplit profiles`: what ships and what a person put beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from homesplit.cli.main import run

OWN = 'name = "My box"\naliases = ["old tower"]\nsource = "by hand"\n'


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose folder of own machines is empty."""
    monkeypatch.setenv("HOMESPLIT_HOME", str(tmp_path))
    folder = tmp_path / "config" / "profiles" / "hardware"
    folder.mkdir(parents=True)
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(["profiles", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_kind_is_listed_with_its_source(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys)
    assert list(found) == ["hardware", "links", "models", "workloads"]
    assert all(each["source"] and not each["own"] for rows in found.values() for each in rows)
    assert {"rtx-3090", "dgx-spark"} <= {each["name"] for each in found["hardware"]}


def test_a_persons_own_stand_first_and_hide_one_of_their_name(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own / "rtx-3090.toml").write_text(OWN)
    (own / "broken.toml").write_text("name =")
    rows = told(capsys, "hardware")["hardware"]
    assert [each["name"] for each in rows if each["own"]] == ["broken", "rtx-3090"]
    assert [each["full_name"] for each in rows if each["name"] == "rtx-3090"] == ["My box"]
    assert run(["profiles", "hardware"]) == 0
    said = capsys.readouterr().out
    assert "* rtx-3090" in said and "can't be used: is not valid TOML" in said


def test_names_are_found_by_any_part_of_them(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "tower.toml").write_text(OWN)
    for text in ("old-tower", "My Box", "tower"):
        rows = told(capsys, "hardware", "--find", text)["hardware"]
        assert [each["name"] for each in rows] == ["tower"]
