"""The one folder on a box: claimed, filled by hash, and gone again without a trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote

import msgspec
import pytest

from homesplit.errors import DeployError
from homesplit.io import model_store, remote_files, remote_root
from homesplit.io.box_facts import read_facts
from homesplit.io.bundle import make_bundle
from homesplit.io.local_box import LocalBox
from homesplit.io.remote_root import Owner

_OURS = Owner(desk="aaaa", who="ann@desk", deployment="d1", since="today")
_THEIRS = Owner(desk="bbbb", who="bob@desk", deployment="d2", since="today")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The box's home."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def box(home: Path) -> LocalBox:
    """This machine's `sh` with that home."""
    return LocalBox("atlas")


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def _listing(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*")}


@pytest.mark.parametrize(
    "before", [(), (".local",), (".local/share/other",), (".local/share/homesplit/notebook",)]
)
async def test_remove_leaves_the_home_as_it_was(
    box: LocalBox, home: Path, before: tuple[str, ...]
) -> None:
    for name in before:
        (home / name).mkdir(parents=True)
    was = _listing(home)
    await remote_root.claim(box, _OURS, take_over=False)
    await box.write((await read_facts(box)).root + "/models/m/weights", b"x")
    await remote_root.remove_root(box)
    assert _listing(home) == was


async def test_what_another_program_put_beside_it_stays(box: LocalBox, home: Path) -> None:
    await remote_root.claim(box, _OURS, take_over=False)
    (home / ".local/share/other").mkdir()
    await remote_root.remove_root(box)
    assert _listing(home) == {".local", ".local/share", ".local/share/other"}


async def test_a_second_desk_is_told_who_holds_the_box(box: LocalBox) -> None:
    await remote_root.claim(box, _OURS, take_over=False)
    with pytest.raises(DeployError, match="held by ann@desk since today"):
        await remote_root.claim(box, _THEIRS, take_over=False)


async def test_the_same_desk_may_claim_again_and_another_only_by_taking_over(
    box: LocalBox,
) -> None:
    await remote_root.claim(box, _OURS, take_over=False)
    again = msgspec.structs.replace(_OURS, deployment="d3")
    await remote_root.claim(box, again, take_over=False)
    assert remote_root.read_owner((await read_facts(box)).owner) == again
    await remote_root.claim(box, _THEIRS, take_over=True)
    assert remote_root.read_owner((await read_facts(box)).owner) == _THEIRS


async def test_secrets_lie_in_files_that_only_the_user_reads(box: LocalBox, home: Path) -> None:
    await remote_root.claim(box, _OURS, take_over=False)
    root = Path((await read_facts(box)).root)
    modes = [_mode(path) for path in (root, root / "run", root / "run/owner.json")]
    assert modes == [0o700, 0o700, 0o600]


async def test_the_model_arrives_whole_once_and_only_what_is_wrong_is_sent_again(
    box: LocalBox, home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"w" * 3_000_000)
    manifest = model_store.describe(folder)
    root = f"{home}/root"
    await remote_files.push_model(box, root, folder, manifest, lambda _d, _t: None)
    there = Path(root, "models", manifest.hash[:16])
    assert (there / "model.safetensors").read_bytes() == b"w" * 3_000_000
    kept = (there / "config.json").stat().st_ino
    (there / "model.safetensors").write_bytes(b"x" * 3_000_000)
    await remote_files.push_model(box, root, folder, manifest, lambda _d, _t: None)
    assert (there / "model.safetensors").read_bytes() == b"w" * 3_000_000
    assert (there / "config.json").stat().st_ino == kept


async def test_a_file_changed_after_it_was_marked_whole_is_not_counted_as_there(
    box: LocalBox, home: Path
) -> None:
    root = Path((await read_facts(box)).root)
    for name in ("good", "half", "changed"):
        (root / "models" / name).mkdir(parents=True)
        (root / "models" / name / "weights").write_text("w")
    for name in ("good", "changed"):
        (root / "models" / name / ".complete").touch()
    later = (root / "models/changed/.complete").stat().st_mtime + 10
    os.utime(root / "models/changed/weights", (later, later))
    assert (await read_facts(box)).models == {"good"}


async def test_what_the_running_engine_compiles_does_not_make_it_look_changed(
    box: LocalBox, home: Path
) -> None:
    engine = Path((await read_facts(box)).root) / "engine/e1"
    (engine / "homesplit_engine/__pycache__").mkdir(parents=True)
    (engine / ".complete").touch()
    later = (engine / ".complete").stat().st_mtime + 10
    for name in ("few.cpython-311.pyc", "few.rows-51.py311.nbi", "few.rows-51.py311.1.nbc"):
        compiled = engine / "homesplit_engine/__pycache__" / name
        compiled.touch()
        os.utime(compiled, (later, later))
    assert (await read_facts(box)).engines == {"e1"}
    changed = engine / "homesplit_engine/words.py"
    changed.touch()
    os.utime(changed, (later, later))
    assert (await read_facts(box)).engines == frozenset()


async def test_the_engine_is_unpacked_under_its_hash_and_runs_from_there(
    box: LocalBox, home: Path
) -> None:
    bundle = make_bundle()
    assert make_bundle() == bundle
    await remote_files.push_engine(box, f"{home}/root", sys.executable, bundle)
    folder = home / "root/engine" / bundle.hash
    shown = await box.run(
        f"PYTHONPATH={quote(str(folder))} {quote(sys.executable)} -c "
        "'import homesplit_engine.words as w; print(w.__file__)'"
    )
    assert shown.stdout.startswith(str(folder))


async def test_what_an_earlier_version_left_goes_and_what_runs_now_stays(
    box: LocalBox, home: Path
) -> None:
    await remote_root.claim(box, _OURS, take_over=False)
    root = (await read_facts(box)).root
    compiled = "homesplit_engine/compiled/__pycache__/compiled-1/kernel"
    for path in (
        *("env/new/bin/python", "env/new.txt", "env/old/bin/python", "env/half made/x"),
        *(f"engine/e2/{compiled}", f"engine/e1/{compiled}"),
        *("models/m/weights", "run/worker.log"),
    ):
        await box.write(f"{root}/{path}", b"x")
    await remote_files.clear_superseded(box, root, env="new", engine="e2")
    left = {path.partition("/homesplit/box/")[2] for path in _listing(home)}
    files = {path for path in left if not any(other.startswith(f"{path}/") for other in left)}
    assert files - {"", "made-parents", "run/owner.json"} == {
        *("env/new/bin/python", "env/new.txt", f"engine/e2/{compiled}"),
        *("models/m/weights", "run/worker.log"),
    }
    await remote_root.remove_root(box)
    assert _listing(home) == set()
