"""What `status` says of a worker, on this machine's own `sh` with a home apart."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from homesplit.io.box_facts import ROOT, read_addresses, read_facts
from homesplit.io.deploy_store import BoxMemory
from homesplit.io.local_box import LocalBox
from homesplit.io.paths import Paths
from homesplit.io.remote_process import WHO, ProcessState, Role, states, stop
from homesplit.io.ssh import Connections
from homesplit.stages.context import AskNobody
from homesplit.stages.deploy_state import box_state, deployed_box


@contextlib.asynccontextmanager
async def a_process(run: Path, role: str) -> AsyncGenerator[None]:
    """A process that has noted itself as this one of ours."""
    note = f'printf "%s\\n%s\\n" $$ "$(token $$)" >"$1/{role}.pid"; echo noted; exec sleep 60'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", WHO + note, "sh", str(run)),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout and await process.stdout.readline() == b"noted\n"
    yield
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest.fixture
async def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """A box's folder in which a process is noted as the worker, and as ready."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    run = tmp_path / "home" / ROOT / "run"
    run.mkdir(parents=True)
    (run / "worker.ready").write_text("{}")
    async with a_process(run, "worker"):
        yield run.parent


@pytest.mark.parametrize(
    ("address", "state"), [("127.0.0.1", "running"), ("192.0.2.1", "unreachable")]
)
async def test_a_worker_at_an_address_that_its_box_has_no_more_serves_nobody_and_is_told_so(
    root: Path, tmp_path: Path, address: str, state: str
) -> None:
    part = BoxMemory(
        name="localhost",
        root=str(root),
        address=address,
        control_port=1,
        kv_port=2,
        env="e",
        engine="c",
        model="m",
    )
    paths = Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d")
    async with Connections(paths=paths, ask=AskNobody()) as connections:
        seen = await box_state(connections, part, "desk")
    assert seen.state == state, seen
    assert ("192.0.2.1, which the box has no more" in (seen.why or "")) == (state != "running")


@pytest.mark.parametrize(
    ("roles", "left"), [(("worker",), ["router"]), (("router",), ["worker"]), ((), [])]
)
async def test_only_the_named_processes_are_ended(
    root: Path, roles: tuple[Role, ...], left: list[str]
) -> None:
    async with a_process(root / "run", "router"):
        box = LocalBox("localhost")
        await stop(box, str(root), roles)
        seen = await states(box, str(root))
        assert [role for role, state in seen.items() if state.state == "running"] == left


def test_where_a_box_does_not_tell_its_addresses_nothing_is_concluded_from_them() -> None:
    process = ProcessState(state="running", pid=os.getpid(), ready="{}")
    assert deployed_box("b", "10.0.0.5", process, frozenset()).state == "running"
    assert deployed_box("b", "fe80::1%eth0", process, {"fe80::1"}).state == "running"


async def test_addresses_are_told_alike_alone_and_among_all_facts(root: Path) -> None:
    box = LocalBox("localhost")
    alone = await read_addresses(box)
    assert alone == (await read_facts(box)).addresses
    assert "127.0.0.1" in alone
