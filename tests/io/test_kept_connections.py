"""A server that closes a kept connection as the next request goes out is asked once more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest

from homesplit.io.kept_connections import posted
from homesplit.io.load import new_session

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Untidy:
    """Answers so many requests on each connection and closes it on the next one."""

    def __init__(self, answers_each: int) -> None:
        self.answers_each = answers_each
        self.connections = 0
        self.answered = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(self.answers_each):
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(4)
                self.answered += 1
                writer.write(ANSWER)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()


@contextlib.asynccontextmanager
async def untidy(answers_each: int) -> AsyncGenerator[tuple[Untidy, str]]:
    subject = Untidy(answers_each)
    server = await asyncio.start_server(subject.serve, "127.0.0.1", 0)
    async with server:
        yield subject, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def ask(session: aiohttp.ClientSession, url: str) -> str:
    words: dict[str, Any] = {"headers": {}, "timeout": aiohttp.ClientTimeout(total=60)}
    async with posted(session, url, data=b"data", **words) as response:
        return await response.text()


async def test_a_request_on_a_connection_that_was_closed_goes_by_another() -> None:
    async with untidy(1) as (server, url), new_session() as session:
        assert [await ask(session, url) for _ in range(3)] == ["ok"] * 3
        assert (server.connections, server.answered) == (3, 3)


async def test_several_kept_connections_may_be_closed_at_once() -> None:
    async with untidy(1) as (server, url), new_session() as session:
        await asyncio.gather(*(ask(session, url) for _ in range(5)))
        assert await asyncio.gather(*(ask(session, url) for _ in range(5))) == ["ok"] * 5
        assert server.answered == 10


async def test_a_kept_connection_is_used_again_where_the_server_keeps_it() -> None:
    async with untidy(9) as (server, url), new_session() as session:
        assert [await ask(session, url) for _ in range(9)] == ["ok"] * 9
        assert server.connections == 1


async def test_a_server_that_closes_a_new_connection_has_failed() -> None:
    async with untidy(0) as (server, url), new_session() as session:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await ask(session, url)
        assert server.connections == 1
