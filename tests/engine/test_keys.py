"""Keys of a deployment: who lets in whom, and whose eyes they are for."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from homesplit_engine.config import ConfigError
from homesplit_engine.keys import make_keys, read_keys, write_keys


def test_each_process_lets_in_all_the_others_and_no_one_else() -> None:
    keys = make_keys(["a", "b"])
    assert set(keys) == {"router", "a", "b"}
    assert keys["a"].allowed == {"router": keys["router"].public, "b": keys["b"].public}
    assert len({one.secret for one in keys.values()}) == 3


def test_keys_are_made_afresh() -> None:
    assert make_keys(["a"])["a"].secret != make_keys(["a"])["a"].secret


def test_names_must_differ_and_none_be_the_routers() -> None:
    for boxes in (["a", "a"], ["router"]):
        with pytest.raises(ConfigError, match="name of its own"):
            make_keys(boxes)


def test_a_key_file_is_its_owners_alone_and_reads_back(tmp_path: Path) -> None:
    keys = make_keys(["a"])["a"]
    path = tmp_path / "a.keys"
    write_keys(path, keys)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == keys
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_keys(path)
