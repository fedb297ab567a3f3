"""`homesplit info` tells where files lie and which versions run."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from homesplit.cli.info import gather
from homesplit.cli.main import run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where all of homesplit's files are to lie."""
    monkeypatch.setenv("HOMESPLIT_HOME", str(tmp_path))
    return tmp_path


def test_every_place_of_this_machine_lies_in_the_chosen_home(home: Path) -> None:
    places = gather()["places"]
    here = {name: at for name, at in places.items() if not name.endswith("on_a_box")}
    assert all(at and Path(at).is_relative_to(home) for at in here.values()), here


def test_it_tells_versions_as_one_json_document_and_makes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["versions"]["asyncssh"] == version("asyncssh")
    assert told["places"]["on_a_box"] == "~/.local/share/homesplit/box"
    assert list(home.iterdir()) == []


def test_a_part_that_is_not_installed_is_told_as_such(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.cli.info._PARTS", ("no-such-package",))
    assert run(["info"]) == 0
    assert "no-such-package  not installed" in capsys.readouterr().out
