"""Starting, knowing and ending engine processes, on this machine's own `sh` with a home apart."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from homesplit.errors import DeployError, UnreachableError
from homesplit.io import remote_process
from homesplit.io.box_facts import read_facts
from homesplit.io.local_box import LocalBox
from homesplit.io.remote_process import EnginePlace
from homesplit.io.running import Output
from tests.engine.router_kit import until

_STAND_IN = """
import json, os, pathlib, signal, sys, time
config = json.loads(pathlib.Path(sys.argv[-1]).read_text())
if config.get("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if config.get("dies"):
    sys.exit("the port is taken")
pathlib.Path(config["ready"]).write_text(json.dumps({"pid": os.getpid()}))
time.sleep(120)
"""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalBox:
    """This machine as a box whose home is a fresh folder with a blank and a quote in its name."""
    home = tmp_path / "o'wner home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return LocalBox("localhost")


@pytest_asyncio.fixture
async def place(box: LocalBox) -> AsyncGenerator[EnginePlace]:
    """A root with an interpreter and a stand-in engine; whatever runs is ended afterwards."""
    root = (await read_facts(box)).root
    _lay_out(Path(root))
    made = EnginePlace(root=root, env="e", engine="c")
    await remote_process.write_launcher(box, made)
    yield made
    await remote_process.stop(box, root)


def _lay_out(root: Path) -> None:
    python = root / "env/e/bin/python"
    package = root / "engine/c/homesplit_engine"
    for folder in (python.parent, package, root / "run"):
        folder.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_STAND_IN)


async def _start(box: LocalBox, place: EnginePlace, extra: str = "") -> None:
    ready = f"{place.run}/worker.ready"
    await box.write(f"{place.run}/worker.json", f'{{"ready": "{ready}"{extra}}}'.encode())
    await remote_process.start(box, place, "worker")


def _is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


async def test_a_started_worker_is_running_with_its_pid_and_leads_its_own_session(
    box: LocalBox, place: EnginePlace
) -> None:
    await _start(box, place)
    ready = await remote_process.wait_ready(box, place, "worker")
    state = (await remote_process.states(box, place.root))["worker"]
    assert (state.state, f'{{"pid": {state.pid}}}') == ("running", ready)
    assert state.pid is not None
    assert os.getsid(state.pid) == state.pid


class _CutOff(LocalBox):
    """Ends the whole process group of a script as soon as it has run, as a lost login may."""

    async def run(
        self, script: str, *, input: bytes | None = None, timeout_s: float = 30.0
    ) -> Output:
        return await super().run(f"{script}\nkill -TERM 0", input=input, timeout_s=timeout_s)


async def test_a_worker_outlives_the_group_of_the_script_that_started_it(
    box: LocalBox, place: EnginePlace
) -> None:
    ready = f"{place.run}/worker.ready"
    await box.write(f"{place.run}/worker.json", f'{{"ready": "{ready}"}}'.encode())
    with pytest.raises(UnreachableError, match="ended before it was through"):
        await remote_process.start(_CutOff("localhost"), place, "worker")
    assert await remote_process.wait_ready(box, place, "worker")


async def test_a_process_that_never_noted_its_pid_is_given_up_with_the_log(
    box: LocalBox, place: EnginePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "_PID_S", 0.25)
    await box.write(f"{place.run}/worker.log", b"no such interpreter\n")
    with pytest.raises(DeployError, match="no such interpreter"):
        await remote_process.wait_ready(box, place, "worker")


async def test_a_process_whose_desk_is_lost_before_all_is_started_ends_itself(
    box: LocalBox, place: EnginePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "_GUARD_S", 2)
    await remote_process.write_launcher(box, place)
    run = Path(place.run)
    # The pid file goes with the process, maybe before anyone has looked: a copy of it stays.
    launch = (run / "launch").read_text().replace("(guard <", 'cp "$role.pid" was\n(guard <')
    (run / "launch").write_text(launch)
    await box.write(f"{place.run}/worker.keys", b"secret")
    await _start(box, place)
    await until(lambda: not (run / "worker.keys").exists())
    assert _is_gone(int((run / "was").read_text().split()[0]))
    said = (run / "worker.log").read_text().splitlines()
    assert "ended again: the desk was lost before all was started" in said
    assert not (run / "worker.pid").exists()


def _watchers(place: EnginePlace) -> list[str]:
    """What still watches over a start from this root."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            found += [path.parent.name] if f"{place.run}/launch".encode() in words else []
    return found


class _KeptAtOnce(LocalBox):
    """Marks what a script started as kept before that script has even ended."""

    async def run(
        self, script: str, *, input: bytes | None = None, timeout_s: float = 30.0
    ) -> Output:
        kept = f'{script}\n: >"$run/worker.kept"'
        return await super().run(kept, input=input, timeout_s=timeout_s)


async def test_a_kept_process_lives_on_without_the_desk(
    box: LocalBox, place: EnginePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "_GUARD_S", 60)
    await remote_process.write_launcher(box, place)
    ready = f"{place.run}/worker.ready"
    await box.write(f"{place.run}/worker.json", f'{{"ready": "{ready}"}}'.encode())
    await remote_process.start(_KeptAtOnce("localhost"), place, "worker")
    await remote_process.wait_ready(box, place, "worker")
    # Whoever watched over the start ends once it sees that it is kept, or has ended the worker.
    await until(lambda: not _watchers(place))
    assert (await remote_process.states(box, place.root))["worker"].state == "running"


_SYSTEMD_RUN = """#!/bin/sh
printf '%s\\n' "$@" >"$HOME/asked"
[ -e "$HOME/broken" ] && exit 1
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
setsid "$@" </dev/null >/dev/null 2>&1 &
"""


@pytest.fixture
def systemd(box: LocalBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for systemd-run that starts what it is given; returns the home."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "systemd-run").write_text(_SYSTEMD_RUN)
    (folder / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Path(os.environ["HOME"])


def _asked(home: Path) -> list[str]:
    return (home / "asked").read_text().splitlines()


async def test_where_systemd_keeps_user_units_a_transient_one_starts_the_worker(
    box: LocalBox, place: EnginePlace, systemd: Path
) -> None:
    await _start(box, replace(place, unit=True))
    await remote_process.wait_ready(box, place, "worker")
    asked = _asked(systemd)
    assert asked[-3:] == ["/bin/sh", f"{place.run}/launch", "worker"]
    assert set(asked[:-3]) == {"--user", "--quiet", "--collect", "--unit=homesplit-worker"}


async def test_where_systemd_refuses_the_worker_starts_in_its_own_session(
    box: LocalBox, place: EnginePlace, systemd: Path
) -> None:
    (systemd / "broken").touch()
    await _start(box, replace(place, unit=True))
    assert await remote_process.wait_ready(box, place, "worker")
    assert _asked(systemd)


async def test_without_lingering_units_none_is_asked_for(
    box: LocalBox, place: EnginePlace, systemd: Path
) -> None:
    assert not (await read_facts(box)).unit
    await _start(box, place)
    await remote_process.wait_ready(box, place, "worker")
    assert "asked" not in os.listdir(systemd)


async def test_a_script_leaves_no_pipe_and_no_process_behind(box: LocalBox) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    await box.run("true")
    gc.collect()  # what earlier tests left to it is not to go meanwhile
    before = descriptors()
    await box.run("sleep 5 & exit 0")
    async with box.start("sleep 60"):
        pass
    await until(lambda: descriptors() <= before)


async def test_stop_ends_it_and_leaves_no_pid_file(box: LocalBox, place: EnginePlace) -> None:
    await _start(box, place)
    await remote_process.wait_ready(box, place, "worker")
    pid = (await remote_process.states(box, place.root))["worker"].pid
    await remote_process.stop(box, place.root)
    assert (await remote_process.states(box, place.root))["worker"].state == "none"
    assert pid is not None
    assert _is_gone(pid)


async def test_a_killed_worker_is_told_as_crashed_with_its_last_words(
    box: LocalBox, place: EnginePlace
) -> None:
    await _start(box, place)
    await remote_process.wait_ready(box, place, "worker")
    pid = (await remote_process.states(box, place.root))["worker"].pid
    assert pid is not None
    await box.write(f"{place.run}/worker.log", b"out of memory\n")
    os.kill(pid, signal.SIGKILL)
    await box.run(
        f"n=0; while kill -0 {pid} 2>/dev/null && [ $n -lt 400 ]; do n=$((n+1)); sleep 0.05; done"
    )
    state = (await remote_process.states(box, place.root))["worker"]
    assert (state.state, state.said) == ("crashed", "out of memory")


async def test_another_process_under_a_stale_pid_is_neither_seen_as_ours_nor_killed(
    box: LocalBox, place: EnginePlace
) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        await box.write(f"{place.run}/worker.pid", f"{stranger.pid}\nsome-boot 12345\n".encode())
        assert (await remote_process.states(box, place.root))["worker"].state == "rebooted"
        await remote_process.stop(box, place.root)
        assert stranger.returncode is None
        os.kill(stranger.pid, 0)
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_worker_that_dies_at_its_start_is_told_with_the_reason(
    box: LocalBox, place: EnginePlace
) -> None:
    await _start(box, place, ', "dies": true')
    with pytest.raises(DeployError, match="the worker ended at once: the port is taken"):
        await remote_process.wait_ready(box, place, "worker")


async def test_clearing_the_run_folder_keeps_only_the_logs(
    box: LocalBox, place: EnginePlace
) -> None:
    for name in ("worker.keys", "owner.json", "api.key", ".hidden", "worker.log"):
        await box.write(f"{place.run}/{name}", b"x")
    await remote_process.clear_run(box, place.root)
    assert os.listdir(place.run) == ["worker.log"]
