"""Where the router's HTTP door listens: always on loopback, for the desk comes that way."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from aiohttp import web
from homesplit_engine.config import ConfigError, RouterConfig
from homesplit_engine.router import listen as listening
from homesplit_engine.router.listen import listen


def config(host: str, port: int = 0) -> RouterConfig:
    return RouterConfig(
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
