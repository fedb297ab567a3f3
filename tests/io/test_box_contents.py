"""What lies on a box after a deployment that was broken off, on this machine's own `sh`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import quote

import pytest

from homesplit.core.brought import Brought, Piece
from homesplit.errors import DeployError
from homesplit.io import remote_env
from homesplit.io.box_contents import parse_contents, read_contents
from homesplit.io.box_facts import ROOT, read_facts
from homesplit.io.deploy_store import DeployStore
from homesplit.io.local_box import LocalBox
from homesplit.view.brought import brought_lines

MIB = 1 << 20
LIMIT_S = 120.0
"""A limit, not a wait: on a busy computer everything takes many times as long."""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBox:
    """This machine as a box whose home is a fresh folder with a blank and a quote in its name."""
    home = tmp_path / "o'wner home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return LocalBox("atlas")


@pytest.fixture
def root(box: LocalBox) -> Path:
    """The one folder, with a run folder as `up` makes it."""
    folder = Path(os.environ["HOME"]) / ROOT
    (folder / "run").mkdir(parents=True)
    return folder


def put(folder: Path, size: int = MIB, *, whole: bool) -> None:
    """A folder with one file, marked as complete or not."""
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(os.urandom(size))
    if whole:
        (folder / ".complete").touch()
        later = (folder / "data").stat().st_mtime + 1
        os.utime(folder / ".complete", (later, later))


async def test_a_box_that_nothing_was_brought_to_has_no_folder(box: LocalBox) -> None:
    assert await read_contents(box) == Brought(box="atlas")


async def test_whole_and_half_made_parts_are_told_apart_with_their_sizes(
    box: LocalBox, root: Path
) -> None:
    put(root / "env/cpu", 3 * MIB, whole=False)
    put(root / "models/abc", 2 * MIB, whole=True)
    put(root / "engine/e1", whole=True)
    changed = root / "engine/e1/data"
    later = changed.stat().st_mtime + 9
    os.utime(changed, (later, later))
    put(root / "wheelhouse", whole=False)
    seen = await read_contents(box)
    parts = {(p.kind, p.name): (p.whole, round((p.bytes or 0) / MIB)) for p in seen.pieces}
    assert parts == {
        ("environment", "cpu"): (False, 3),
        ("weights", "abc"): (True, 2),
        ("engine", "e1"): (False, 1),
        ("packages", ""): (True, 1),
        ("settings and logs", ""): (True, 0),
    }
    assert (seen.folder, seen.installing, seen.is_half) == (str(root), False, True)
    assert round((seen.bytes or 0) / MIB) == 7


async def an_installation(root: Path, work: str = "exec sleep 60") -> asyncio.subprocess.Process:
    """A process that has noted itself as the one that makes the environment."""
    note = remote_env.WHO + 'run=$1; printf "%s\\n%s\\n" $$ "$(token $$)" >"$run/maker.pid"'
    made = await asyncio.create_subprocess_exec(
        *("sh", "-c", f"{note}; echo noted; {work}", "sh", str(root / "run")),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert made.stdout is not None
    assert await made.stdout.readline() == b"noted\n"
    return made


async def test_an_installation_that_a_lost_desk_left_at_work_is_told_and_the_next_one_ends_it(
    box: LocalBox, root: Path
) -> None:
    put(root / "env/cpu", whole=False)
    maker = await an_installation(root)
    try:
        assert (await read_contents(box)).installing
        assert not await remote_env.settle(box, str(root), "cpu")
        assert await asyncio.wait_for(maker.wait(), LIMIT_S) != 0
        assert not (await read_contents(box)).installing
    finally:
        if maker.returncode is None:
            maker.kill()
            await maker.wait()


async def test_what_an_installation_started_writes_no_more_once_it_is_ended(
    box: LocalBox, root: Path, tmp_path: Path
) -> None:
    late, program = root / "env/cpu/late", tmp_path / "program"
    # Deaf to TERM, as one that is deep in copying seems to be; it ends by itself in the end.
    program.write_text(
        "trap '' TERM; n=0\nwhile [ $n -lt 2000 ]; do\n"
        'n=$((n + 1)); mkdir -p "$(dirname "$1")"; echo x >>"$1"; sleep 0.01\ndone\n'
    )
    maker = await an_installation(root, f"sh {quote(str(program))} {quote(str(late))} & wait")
    async with asyncio.timeout(LIMIT_S):
        while not late.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.01)
    assert not await remote_env.settle(box, str(root), "cpu")
    assert await asyncio.wait_for(maker.wait(), LIMIT_S) != 0
    shutil.rmtree(late.parent)
    await box.run("sleep 0.3")
    assert not late.parent.exists()


async def test_an_installation_that_ended_well_meanwhile_is_used_and_its_remains_are_cleared(
    box: LocalBox, root: Path
) -> None:
    put(root / "env/cpu", whole=True)
    for remains in ("wheelhouse", "uv-cache"):
        put(root / remains, whole=False)
    assert await remote_env.settle(box, str(root), "cpu")
    assert [p.kind for p in (await read_contents(box)).pieces] == [
        "environment",
        "settings and logs",
    ]


async def test_a_half_made_environment_keeps_the_packages_that_it_was_to_be_made_from(
    box: LocalBox, root: Path
) -> None:
    put(root / "env/cpu", whole=False)
    put(root / "wheelhouse", whole=False)
    assert not await remote_env.settle(box, str(root), "cpu")
    assert (root / "wheelhouse/data").exists()
    assert (await read_facts(box)).envs == frozenset()


@pytest.mark.parametrize("text", ["", "\n", "noise\npiece=strange|whole|1|x\n", "total=?\n"])
def test_an_answer_that_makes_no_sense_invents_nothing(text: str) -> None:
    assert parse_contents(text, "b") == Brought(box="b")


def test_a_size_that_the_box_does_not_tell_is_unknown() -> None:
    (piece,) = parse_contents("root=/r\npiece=env|half||e\n", "b").pieces
    assert piece == Piece(kind="environment", name="e", bytes=None, whole=False)


def test_lines_tell_each_box_and_what_can_be_done() -> None:
    half = Piece(kind="environment", name="cpu", bytes=5 * 10**6, whole=False)
    weights = Piece(kind="weights", name="abc", bytes=10**6, whole=True)
    boxes = (
        Brought(box="atlas", folder="/h/box", bytes=6 * 10**6, pieces=(half, weights)),
        Brought(box="borea", why="no answer"),
        Brought(box="corvo"),
    )
    assert brought_lines(boxes) == [
        "atlas: 6.00 MB in /h/box",
        "  environment cpu: 5.00 MB, half made",
        "  weights abc: 1.00 MB",
        "borea can't be looked at: no answer",
        "corvo: nothing of homesplit lies there.",
        "To go on: repeat the same `homesplit up`; what is whole is kept.",
        "To delete it: homesplit remove atlas",
    ]
    whole = Brought(box="atlas", folder="/h/box", bytes=10**6, pieces=(weights,))
    assert "`homesplit up` starts from what is there." in brought_lines([whole])
    assert brought_lines(()) == []


def test_while_a_command_is_at_work_nobody_is_told_to_repeat_or_to_delete_it() -> None:
    half = Piece(kind="weights", name="1e", bytes=5_000_000, whole=False)
    box = Brought(box="atlas", folder="/home/a", bytes=5_000_000, pieces=(half,), installing=True)
    assert brought_lines([box], at_work=True) == [
        "atlas: 5.00 MB in /home/a",
        "  weights 1e: 5.00 MB, half made",
    ]


def test_boxes_stay_noted_until_they_are_removed_and_outlive_the_deployment(
    tmp_path: Path,
) -> None:
    store = DeployStore(tmp_path / "deployments")
    assert store.brought_to() == ()
    store.note_brought(("atlas", "borea"))
    store.note_brought(("borea", "corvo"))
    store.forget()
    assert store.brought_to() == ("atlas", "borea", "corvo")
    store.note_removed("borea")
    store.note_removed("nowhere")
    assert DeployStore(store.folder).brought_to() == ("atlas", "corvo")
    (store.folder / "boxes.json").write_text("{")
    with pytest.raises(DeployError, match=r"boxes\.json: The list .* Delete that file"):
        store.brought_to()


def test_status_tells_what_an_up_that_was_broken_off_left_though_nothing_is_deployed(
    tmp_path: Path,
) -> None:
    home, own = tmp_path / "home", tmp_path / "own"
    put(home / ROOT / "env/cpu", whole=False)
    DeployStore(own / "data/deployments").note_brought(("localhost",))
    environment = {**os.environ, "HOME": str(home), "HOMESPLIT_HOME": str(own)}

    def status(*words: str) -> str:
        command = [sys.executable, "-m", "homesplit", "status", *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(status("--json"))
    assert told["deployment"] is None
    (there,) = told["brought"]
    assert (there["box"], there["pieces"][0]["whole"]) == ("localhost", False)
    text = status("localhost")
    assert "environment cpu: 1.0" in text
    assert "To delete it: homesplit remove localhost" in text
