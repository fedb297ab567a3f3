"""Keys of a deployment: who lets in whom, and whose eyes they are for."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from homesplit_engine.config import ConfigError, WorkerConfig
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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"allowed": {}}, "lets no router in"),
        ({"public": ""}, "the key of this process is not"),
        ({"secret": "~" * 40}, "this process's secret is not"),
        ({"secret": "\x01" * 40}, "this process's secret is not"),
        ({"allowed": {"router": "é" * 40}}, "the key of router is not"),
        ({"allowed": {"router": ""}}, "the key of router is not"),
    ],
    ids=["no router", "no key", "no Z85", "control characters", "not ASCII", "an empty key"],
)
def test_a_worker_without_the_keys_it_needs_is_not_started(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    path = tmp_path / "a.keys"
    write_keys(path, msgspec.structs.replace(make_keys(["a"])["a"], **changes))
    with pytest.raises(ConfigError, match=told):
        read_keys(path)


def test_no_worker_settings_go_without_a_key_file() -> None:
    """Whatever address it listens at: a worker's doors open with keys only."""
    needed = {field.name for field in msgspec.structs.fields(WorkerConfig) if field.required}
    assert "keys_file" in needed
