"""Where the router's HTTP door listens: always on loopback, for the desk comes that way."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from homesplit_engine.config import ConfigError, RouterConfig, WorkerAddress
from homesplit_engine.keys import make_keys, write_keys
from homesplit_engine.router import listen as listening
from homesplit_engine.router.gate import is_open
from homesplit_engine.router.listen import listen
from homesplit_engine.router.server import serving


def config(host: str, port: int = 0, **more: Any) -> RouterConfig:
    return RouterConfig(
        **more,
        model_dir="/m",
        model_name="m",
        keys_file="/k",
        ready_file="/r",
        workers=(),
        http_host=host,
        http_port=port,
    )


async def a_runner() -> web.AppRunner:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    return runner


@pytest.mark.parametrize(
    ("wanted", "hosts"),
    [
        ("127.0.0.1", ("127.0.0.1",)),
        ("10.0.0.11", ("127.0.0.1", "10.0.0.11")),
        ("fd00::5", ("127.0.0.1", "fd00::5")),
        ("0.0.0.0", ("0.0.0.0",)),
        ("::", ("127.0.0.1", "::")),
        ("::1", ("127.0.0.1", "::1")),
        ("127.0.0.2", ("127.0.0.1", "127.0.0.2")),
    ],
)
def test_loopback_is_always_among_the_places(wanted: str, hosts: tuple[str, ...]) -> None:
    assert listening._hosts(wanted) == hosts  # pyright: ignore[reportPrivateUsage]


async def test_every_place_has_the_same_port_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two addresses that every Linux machine has; the second stands for one of a network.
    both = ("127.0.0.1", "127.0.0.2")

    def places(_: str) -> tuple[str, ...]:
        return both

    monkeypatch.setattr(listening, "_hosts", places)
    runner = await a_runner()
    try:
        url = await listen(runner, config("127.0.0.2"))
        assert url.startswith("http://127.0.0.1:")
        async with aiohttp.ClientSession() as http:
            for host in both:
                async with http.get(url.replace("127.0.0.1", host)) as answer:
                    assert await answer.text() == "hello"
    finally:
        await runner.cleanup()


async def test_a_taken_port_and_a_host_that_is_none_are_named() -> None:
    runner = await a_runner()
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"127.0.0.1 port {port}"):
                await listen(runner, config("127.0.0.1", port))
        with pytest.raises(ConfigError, match="no IP address"):
            await listen(runner, config("atlas"))
    finally:
        await runner.cleanup()


def worker(public_key: str) -> WorkerAddress:
    return WorkerAddress(
        box="left", control_endpoint="tcp://h:1", kv_endpoint="tcp://h:2", public_key=public_key
    )


async def refusal(settings: RouterConfig) -> str:
    """Why a router with these settings does not start."""
    with pytest.raises(ConfigError) as refused:
        async with serving(settings):
            pass
    return str(refused.value)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.11", "192.168.1.5", "fd00::5", "fe80::1%eth0", "::ffff:1.2.3.4"],
)
async def test_a_door_that_others_reach_is_not_opened_without_a_key(host: str) -> None:
    assert f"http_host {host} can be reached" in await refusal(config(host))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "127.0.0.2"])
async def test_loopback_needs_no_key(host: str) -> None:
    # The next thing that is wrong with these settings is told.
    assert "need one or more workers" in await refusal(config(host))


def keyed(folder: Path, api_key_file: Path | str) -> RouterConfig:
    """Settings with which a router starts where its API key can be read."""
    made = make_keys(["left"])
    write_keys(folder / "router.keys", made["router"])
    return msgspec.structs.replace(
        config("0.0.0.0", api_key_file=str(api_key_file)),
        keys_file=str(folder / "router.keys"),
        workers=(worker(made["left"].public),),
    )


@pytest.mark.parametrize("content", [None, "", "  \n"], ids=["missing", "empty", "blank"])
async def test_a_key_file_that_holds_none_opens_nothing(
    tmp_path: Path, content: str | None
) -> None:
    key = tmp_path / "api.key"
    if content is not None:
        key.touch(mode=0o600)
        key.write_text(content)
    assert str(key) in await refusal(keyed(tmp_path, key))


async def test_an_empty_name_of_a_key_file_is_not_taken_for_a_wish_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (await refusal(keyed(tmp_path, ""))).startswith(".: ")


@pytest.mark.parametrize(
    ("path", "remote", "is_let_in"),
    [
        ("/health", "127.0.0.1", True),
        ("/metrics", "::1", True),
        ("/metrics", "192.168.1.7", False),
        ("/health", "fd00::7", False),
        ("/health", "fe80::7%eth0", False),
        ("/health", "", False),
        ("/health", None, False),
        ("/v1/models", "127.0.0.1", False),
        ("/health/../v1/models", "127.0.0.1", False),
    ],
)
def test_only_the_routers_own_box_asks_for_health_and_metrics_without_the_key(
    path: str, remote: str | None, is_let_in: bool
) -> None:
    assert is_open(path, remote) is is_let_in


@pytest.mark.parametrize("key", ["", "x" * 39, "~" * 40], ids=["none", "too short", "no Z85"])
async def test_a_router_that_could_not_tell_its_workers_from_strangers_does_not_start(
    key: str,
) -> None:
    settings = msgspec.structs.replace(config("127.0.0.1"), workers=(worker(key),))
    assert "no key of 'left'" in await refusal(settings)
