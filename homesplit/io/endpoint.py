"""One OpenAI-compatible server: which of its doors to use and how to word a request to it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from homesplit.core.load import OfferedRequest
from homesplit.core.prompts import TokenFit, calibration_text, fit_tokens, messages
from homesplit.errors import EngineError, UsageError
from homesplit.io.answer import Answer, AnswerError, refusal_text
from homesplit.io.kept_connections import posted

Api = Literal["chat", "completions"]

ASK_S = 60.0
"""Longest wait for the answer to one calibration prompt or to a question about the server."""
_SHORT_WORDS, _LONG_WORDS = 16, 96
CONNECT_S = 10.0
UNMEASURED_FIT = TokenFit()
_NOBODY = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError)
"""Errors that no server can have caused."""
_REFUSED = (429, 503, 529)
"""Replies that mean "not now"; the rest of 4xx and 5xx are failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Which of the fields that not every server knows may be sent."""

    ignore_eos: bool = True
    usage: bool = True
    chunk_usage: bool = True
    max_key: str = "max_tokens"


DIALECTS = (
    Dialect(),
    Dialect(chunk_usage=False),
    Dialect(chunk_usage=False, ignore_eos=False),
    Dialect(chunk_usage=False, ignore_eos=False, max_key="max_completion_tokens"),
    Dialect(chunk_usage=False, ignore_eos=False, usage=False),
)
"""From what tells most to what every server takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go, in which form, and how the server counts our words."""

    url: str
    """Without `/v1` and without a closing slash."""
    model: str
    api: Api = "completions"
    api_key: str | None = field(default=None, repr=False)
    dialect: Dialect = DIALECTS[0]
    fit: TokenFit = UNMEASURED_FIT
    notes: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The full address of the door in use."""
        path = "chat/completions" if self.api == "chat" else "completions"
        return f"{self.url}/v1/{path}"

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return request_headers(self.api_key)


def request_headers(api_key: str | None) -> dict[str, str]:
    """JSON, and the key where there is one."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    return headers


def base_url(url: str) -> str:
    """The server's root from what a person types: with or without `/v1` and slashes.

    Raises UsageError for an address with a user or password in it, and for what is none.
    """
    if "@" in _authority(url):
        raise UsageError(
            "the server's address holds a user name or a password, which would stand in the "
            "notebook and in errors.",
            do_next="Leave out what stands before the @; the server's key goes into a file for "
            "--api-key-file.",
        )
    if not _is_address(url.strip()):
        raise UsageError(
            f"{url!r} is no address of a server.", do_next="Give one as http://HOST:PORT."
        )
    return url.strip().rstrip("/").removesuffix("/v1").rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _authority(url: str) -> str:
    """The part of an address that names the host, with what stands before it."""
    return re.split(r"[/?#]", url.strip().split("://", 1)[-1], maxsplit=1)[0]


def request_body(endpoint: Endpoint, request: OfferedRequest, salt: int) -> bytes:
    """The JSON of one request: greedy, streamed, exactly `output_tokens` where the server can."""
    said = messages(request, endpoint.fit, salt)
    return _body(endpoint, said, request.output_tokens)


def _body(endpoint: Endpoint, said: list[tuple[str, str]], max_tokens: int) -> bytes:
    dialect = endpoint.dialect
    body: dict[str, Any] = {"model": endpoint.model, "stream": True, "temperature": 0}
    body[dialect.max_key] = max_tokens
    if endpoint.api == "chat":
        body["messages"] = [{"role": role, "content": text} for role, text in said]
    else:
        body["prompt"] = "\n".join(text for _, text in said)
    if dialect.ignore_eos:
        body["ignore_eos"] = True
    if dialect.usage:
        options = {"include_usage": True}
        if dialect.chunk_usage:
            options["continuous_usage_stats"] = True
        body["stream_options"] = options
    return msgspec.json.encode(body)


async def connect(
    session: aiohttp.ClientSession,
    url: str,
    *,
    api_key: str | None = None,
    model: str | None = None,
    api: Api | None = None,
) -> Endpoint:
    """Find the server's model, door and dialect, and how it counts tokens.

    Raises EngineError when nothing answers there, the key is refused, there is no model or it
    breaks off. A server that only refuses for now gives an endpoint whose notes say so. What it
    is asked is in another order each time, lest it finds the last time's in its prefix cache.
    """
    salt = secrets.randbits(63)
    root = base_url(url)
    name = model or await _first_model(session, root, api_key)
    doors: tuple[Api, ...] = (api,) if api else ("completions", "chat")
    said = ""
    for door in doors:
        for dialect in DIALECTS:
            endpoint = Endpoint(url=root, model=name, api=door, api_key=api_key, dialect=dialect)
            answer, status, said = await _ask(session, endpoint, _SHORT_WORDS, salt, number=0)
            if answer is not None:
                return await _fitted(session, endpoint, answer, salt)
            if status in _REFUSED:
                note = f"the server refused even a first short request: {said}"
                return replace(endpoint, notes=(note,))
            if status in (401, 403):
                raise EngineError(
                    f"the server refuses the API key: {said}",
                    where=root,
                    do_next="Give the right one with --api-key-file.",
                )
            if status not in (400, 422):
                break
    raise EngineError(
        f"the server can't answer a short request: {said}",
        where=root,
        do_next="Check that it serves /v1/completions or /v1/chat/completions.",
    )


async def _first_model(session: aiohttp.ClientSession, root: str, api_key: str | None) -> str:
    """The first model the server lists."""
    status, body = await _get(session, f"{root}/v1/models", api_key)
    if status in (401, 403):
        raise EngineError(
            f"the server refuses the API key: {refusal_text(body)}",
            where=root,
            do_next="Give the right one with --api-key-file.",
        )
    try:
        listed = msgspec.json.decode(body, type=_Models) if status == 200 else _Models()
    except msgspec.MsgspecError:
        listed = _Models()
    if not listed.data:
        raise EngineError(
            f"the server lists no model (GET /v1/models: {status})",
            where=root,
            do_next="Name one with --model.",
        )
    return listed.data[0].id


async def served_context(
    session: aiohttp.ClientSession, url: str, *, api_key: str | None = None, model: str | None
) -> int | None:
    """The longest prompt and answer together that the server says it takes; None if it doesn't."""
    listed = await _listed(session, url, api_key)
    card = next((card for card in listed if model in (None, card.id)), None)
    return card.context if card else None


async def served_models(
    session: aiohttp.ClientSession, url: str, *, api_key: str | None = None
) -> tuple[str, ...]:
    """The names of the models that the server lists; empty where it lists none."""
    return tuple(card.id for card in await _listed(session, url, api_key))


async def _listed(
    session: aiohttp.ClientSession, url: str, api_key: str | None
) -> Sequence[_Model]:
    status, body = await _get(session, f"{base_url(url)}/v1/models", api_key)
    try:
        return msgspec.json.decode(body, type=_Models).data if status == 200 else ()
    except msgspec.MsgspecError:
        return ()


class _Meta(msgspec.Struct):
    n_ctx: int | None = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    """As vLLM and homesplit tell it."""
    meta: _Meta | None = None
    """As llama.cpp tells it."""

    @property
    def context(self) -> int | None:
        """Tokens of context, where the card tells them."""
        return self.max_model_len or (self.meta.n_ctx if self.meta else None)


class _Models(msgspec.Struct):
    data: list[_Model] = []


async def _get(session: aiohttp.ClientSession, url: str, key: str | None) -> tuple[int, bytes]:
    try:
        timeout = aiohttp.ClientTimeout(total=ASK_S, sock_connect=CONNECT_S)
        async with session.get(url, headers=request_headers(key), timeout=timeout) as reply:
            return reply.status, await reply.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise no_answer(url, "the question for its models", error) from error


def no_answer(url: str, asked: str, error: BaseException) -> EngineError:
    """What became of something asked of a server that gave no answer: `asked` is a noun."""
    reason = str(error) or type(error).__name__
    if isinstance(error, _NOBODY):
        return EngineError(
            f"no server answers: {reason}.",
            where=url,
            do_next="Start it, or check the address and port.",
        )
    what = (
        f"the server took {asked} and gave no answer within {ASK_S:g} s."
        if isinstance(error, TimeoutError)
        else f"the server broke off {asked} without an answer ({reason})."
    )
    return EngineError(
        what,
        where=url,
        do_next="Look at the server's log: it may have failed, or still be loading its model.",
    )


async def _ask(
    session: aiohttp.ClientSession, endpoint: Endpoint, words: int, salt: int, *, number: int
) -> tuple[Answer | None, int, str]:
    """One calibration prompt of `words` words: its answer, or the status and reason."""
    said = [("user", calibration_text(number, words, salt))]
    timeout = aiohttp.ClientTimeout(total=ASK_S, sock_connect=CONNECT_S)
    try:
        async with posted(
            session,
            endpoint.address,
            data=_body(endpoint, said, 2),
            headers=endpoint.headers,
            timeout=timeout,
        ) as reply:
            body = await reply.read()
            if reply.status != 200:
                return None, reply.status, f"{reply.status} {refusal_text(body)}"
            return _read(body, reply.headers), 200, ""
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise no_answer(endpoint.address, "a first short request", error) from error
    except AnswerError as error:
        return None, 200, str(error)


def _read(body: bytes, headers: Mapping[str, str]) -> Answer:
    answer = Answer()
    if "json" in headers.get("Content-Type", ""):
        answer.whole(body, 0)
    else:
        answer.feed(body, 0)
        answer.close(0)
    return answer


async def _fitted(
    session: aiohttp.ClientSession, endpoint: Endpoint, first: Answer, salt: int
) -> Endpoint:
    """The endpoint with its token fit from a second, longer prompt."""
    short = first.usage.prompt_tokens if first.usage else None
    second, _, _ = await _ask(session, endpoint, _LONG_WORDS, salt, number=1)
    long = second.usage.prompt_tokens if second and second.usage else None
    if not short or not long:
        note = "prompt lengths are estimated (one token a word): the server sent no usage"
        return replace(endpoint, notes=(note,))
    fit = fit_tokens((_SHORT_WORDS, short), (_LONG_WORDS, long))
    note = (
        ()
        if endpoint.dialect.ignore_eos
        else ("the server knows no ignore_eos: answers may be shorter than planned",)
    )
    return replace(endpoint, fit=fit, notes=note)
