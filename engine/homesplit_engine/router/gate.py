"""Before every handler: request id, API key, errors in OpenAI's shape."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import re
import uuid
from collections.abc import Generator
from pathlib import Path

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Handler, Middleware

from homesplit_engine.config import ConfigError
from homesplit_engine.farewell import NOT_HELD, Held, Keeper
from homesplit_engine.keys import refuse_if_readable_by_others
from homesplit_engine.router.board import Board
from homesplit_engine.router.doors import HELD, REQUEST_ID
from homesplit_engine.router.errors import ApiError
from homesplit_engine.router.fleet import Fleet
from homesplit_engine.router.health import NAME as HEALTH

log = logging.getLogger("homesplit.router")
OPEN_PATHS = frozenset({"/health", "/metrics"})
"""Asked by supervisors and dashboards of the router's own box, which have no key."""
_ECHO: web.RequestKey[str] = web.RequestKey("echo", str)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


def read_api_key(path: Path) -> bytes:
    """The API key of a file of mode 0600; raises ConfigError."""
    refuse_if_readable_by_others(path)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    if not key:
        raise ConfigError(f"{path}: holds no API key")
    return key


def gate(fleet: Fleet, api_key: bytes | None, keeper: Keeper | None = None) -> Middleware:
    """The outermost middleware."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("x-request-id", "")
        can_echo = given and given.isascii() and given.isprintable() and len(given) <= 256
        with own_id(given, fleet.board) as own, _held(request, keeper) as held:
            request[HELD] = held
            request[REQUEST_ID] = own
            request[_ECHO] = given if can_echo else own
            return await answered(request, handler)

    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check_key(request, api_key)
            return await handler(request)
        except ApiError as error:
            return _refusal(error)
        except web.HTTPException as error:
            return _refusal(_as_api_error(error))
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return _refusal(ApiError(500, "The router failed; its log says more."))

    return middleware


async def echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id on every answer, streams included."""
    response.headers["x-request-id"] = request.get(_ECHO, "")


async def about_to_answer(request: web.Request, response: web.StreamResponse) -> None:
    """From here on bytes may be under way that nobody but this process can go on with."""
    held = request.get(HELD)
    if held is not None:
        held.torn()


@contextlib.contextmanager
def _held(request: web.Request, keeper: Keeper | None) -> Generator[Held]:
    transport = request.transport
    if keeper is None or transport is None:
        yield NOT_HELD
        return
    socket, chunked = transport.get_extra_info("socket"), request.version >= HttpVersion11
    with keeper.holding(socket, transport, chunked=chunked) as held:
        yield held


@contextlib.contextmanager
def own_id(given: str, board: Board) -> Generator[str]:
    """The client's id where it can be used as one, else a fresh one; nobody else's meanwhile."""
    usable = _ID.fullmatch(given) and not given.startswith(HEALTH)
    own = given if usable and board.claim(given) else uuid.uuid4().hex
    try:
        yield own
    finally:
        board.release(own)


def is_open(path: str, remote: str | None) -> bool:
    """Whether who asks for this path from this address needs no key."""
    if path not in OPEN_PATHS or remote is None:
        return False
    try:
        return ipaddress.ip_address(remote).is_loopback
    except ValueError:
        return False


def _check_key(request: web.Request, api_key: bytes | None) -> None:
    if api_key is None or is_open(request.path, request.remote):
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    key = given.strip().encode("utf-8", errors="replace")
    if scheme.lower() != "bearer" or not hmac.compare_digest(key, api_key):
        raise ApiError(
            401,
            "The API key is missing or wrong. Send it as `Authorization: Bearer KEY`.",
            code="invalid_api_key",
        )


def _as_api_error(error: web.HTTPException) -> ApiError:
    match error.status:
        case 404:
            return ApiError(404, "There is nothing at this path.", code="not_found")
        case 405:
            return ApiError(405, "This path takes another method.", code="method_not_allowed")
        case 413:
            return ApiError(413, "The body is too large.", code="body_too_large")
        case status:
            return ApiError(status, error.reason or "The request can't be served.")


def _refusal(error: ApiError) -> web.Response:
    return web.Response(
        status=error.status,
        body=error.body(),
        content_type="application/json",
        headers=error.headers(),
    )
