"""What another shell deploys or stops is noticed by the record that it writes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from homesplit_engine.records import ModeSetting
from msgspec.structs import replace

from homesplit.core.deployment import DeployedBox, Deployment
from homesplit.errors import DeployError
from homesplit.io.deploy_store import DeployStore, Memory
from homesplit.io.paths import Paths
from homesplit.stages import deploy_watch
from homesplit.stages.context import Context
from homesplit.stages.deploy_watch import Record, is_same

HERE = Deployment(
    id="one",
    boxes=(DeployedBox(box="atlas", address="10.0.0.1", state="running"),),
    router_box="atlas",
    model="small",
    setting=ModeSetting(),
    router_port=4000,
)


@pytest.fixture
def store(tmp_path: Path) -> DeployStore:
    return DeployStore(tmp_path / "data" / "deployments")


@pytest.fixture
def record(store: DeployStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setattr(deploy_watch, "LOOK_EVERY_S", 0.001)
    paths = Paths(config=tmp_path, cache=tmp_path, data=tmp_path / "data")
    return Record(Context(paths=paths))


async def test_a_record_is_noticed_when_it_comes_and_when_it_goes(
    record: Record, store: DeployStore
) -> None:
    assert record.read() is None
    waiting = asyncio.create_task(record.changed())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    store.save(Memory(deployment=HERE, boxes=()))
    await waiting
    assert record.read() == HERE
    store.forget()
    await record.changed()
    assert record.read() is None


async def test_a_record_that_cant_be_read_is_told_once(record: Record, store: DeployStore) -> None:
    store.save(Memory(deployment=HERE, boxes=()))
    (store.folder / "current.json").write_text("{")
    await record.changed()
    with pytest.raises(DeployError):
        record.read()
    waiting = asyncio.create_task(record.changed())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()


def test_another_port_or_model_is_another_deployment_and_another_mode_is_not() -> None:
    assert not is_same(None, HERE)
    assert is_same(replace(HERE, setting=ModeSetting(mode="replica"), url="http://x"), HERE)
    assert not is_same(replace(HERE, router_port=4001), HERE)
    assert not is_same(replace(HERE, model="large"), HERE)
