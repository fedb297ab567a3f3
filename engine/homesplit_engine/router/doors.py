"""The OpenAI doors: `/v1/models`, `/v1/chat/completions`, `/v1/completions`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence

import msgspec
from aiohttp import web

from homesplit_engine.farewell import NOT_HELD, Held
from homesplit_engine.records import TTFT_TARGET_HEADER
from homesplit_engine.router.answer import Answering, Piece, Reader, wrong_model
from homesplit_engine.router.body import (
    ChatBody,
    CompletionBody,
    Wish,
    chat_wish,
    completion_wish,
    parse,
    prompts_of,
    wanted_tools,
)
from homesplit_engine.router.errors import ApiError, bad_request
from homesplit_engine.router.shapes import (
    DONE,
    ChatShape,
    CompletionShape,
    Shape,
    event,
    usage,
)
from homesplit_engine.router.template import ChatTemplate, no_template
from homesplit_engine.router.uncarried import refuse_uncarried
from homesplit_engine.router.unpack import unpacked

BODY_S = 30.0
"""How long a client may take to send its body."""
PATIENCE_HEADER = "x-first-token-deadline-s"
MOST_PATIENCE_S = 86_400.0
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
HELD: web.RequestKey[Held] = web.RequestKey("held", Held)


async def body_of(request: web.Request) -> bytes:
    """The whole body; raises ApiError 408 when it does not come, 400 when it can't be unpacked."""
    try:
        async with asyncio.timeout(BODY_S):
            raw = await request.read()
    except web.RequestPayloadError as error:
        raise bad_request(f"The body is not as its headers say: {str(error)[:200]}") from error
    except TimeoutError as error:
        raise ApiError(408, f"The body did not come within {BODY_S:.0f} s.") from error
    encoding = request.headers.get("Content-Encoding", "")
    return await unpacked(raw, encoding, request.client_max_size)


class Doors:
    """The handlers, with what they need."""

    def __init__(self, reader: Reader, template: ChatTemplate | None) -> None:
        self._reader = reader
        self._fleet = reader.fleet
        self._model = reader.fleet.config.model_name
        self._template = template
        self._started = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        """What is served."""
        return [
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.completions),
        ]

    def _card(self) -> dict[str, object]:
        held = self._fleet.held()
        return {
            "id": self._model,
            "object": "model",
            "created": self._started,
            "owned_by": "homesplit",
            "max_model_len": held.most if held else None,
        }

    async def models(self, request: web.Request) -> web.Response:
        """The one model."""
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, request: web.Request) -> web.Response:
        """One model by name."""
        wrong = wrong_model(request.match_info["model"], self._model)
        if wrong:
            raise wrong
        return _json(self._card())

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """An answer to a conversation."""
        raw = await body_of(request)
        received_s = time.monotonic()
        body = parse(raw, ChatBody)
        wish = self._checked(request, chat_wish(body))
        refuse_uncarried(raw)
        prompt = await self._chat_ids(body, wish, len(raw))
        shape = ChatShape(
            request[REQUEST_ID], self._model, self._reader.tokenizer, wish.logprobs is not None
        )
        return await self._answer(request, wish, [prompt], shape, received_s)

    async def _chat_ids(self, body: ChatBody, wish: Wish, size: int) -> list[int]:
        template = self._template
        if template is None:
            raise no_template()

        def work() -> list[int]:
            text = template.render(
                body.messages,
                tools=wanted_tools(body),
                add_generation_prompt=body.add_generation_prompt,
                reasoning_effort=body.reasoning_effort,
                extra=body.chat_template_kwargs,
            )
            return self._reader.encode(text, wish, add_special_tokens=False)

        return await self._reader.in_thread(work, size)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Text that continues each prompt."""
        raw = await body_of(request)
        received_s = time.monotonic()
        body = parse(raw, CompletionBody)
        wish = self._checked(request, completion_wish(body))
        refuse_uncarried(raw)
        prompts = [await self._reader.token_ids(one, wish) for one in prompts_of(body.prompt)]
        shape = CompletionShape(
            request[REQUEST_ID], self._model, self._reader.tokenizer, wish.logprobs is not None
        )
        return await self._answer(request, wish, prompts, shape, received_s)

    def _checked(self, request: web.Request, wish: Wish) -> Wish:
        wrong = wrong_model(wish.model, self._model)
        if wrong:
            raise wrong
        return msgspec.structs.replace(
            wish,
            first_token_s=_seconds(request, PATIENCE_HEADER),
            ttft_target_s=_seconds(request, TTFT_TARGET_HEADER),
        )

    async def _answer(
        self,
        request: web.Request,
        wish: Wish,
        prompts: Sequence[list[int]],
        shape: Shape,
        received_s: float,
    ) -> web.StreamResponse:
        if self._fleet.ready() is None:
            await self._fleet.until_usable(self._fleet.detection_s)
        orders = self._reader.orders(request[REQUEST_ID], prompts, wish, received_s)
        answering = self._reader.answering(wish, orders)
        if wish.stream:
            return await _stream(request, answering, wish, shape)
        return await _whole(self._reader, answering, shape)


def _seconds(request: web.Request, header: str) -> float | None:
    """What the client says of its own waiting; raises ApiError 400 when it is no number."""
    text = request.headers.get(header)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MOST_PATIENCE_S:
        raise bad_request(f"`{header}` must be seconds above 0.", param=header)
    return value


async def _whole(reader: Reader, answering: Answering, shape: Shape) -> web.Response:
    choices: list[list[Piece]] = [[] for _ in answering.orders]
    figures = 0
    async with contextlib.aclosing(answering.pieces()) as pieces:
        async for piece in pieces:
            choices[piece.choice].append(piece)
            figures += 1 if piece.token is None else 1 + len(piece.token.top_logprobs)
    counts = usage(answering)
    # The log-probabilities of a long answer take a third of a second to write down.
    body = await reader.in_thread(
        lambda: msgspec.json.encode(shape.whole(choices, counts)), figures
    )
    return web.Response(body=body, content_type="application/json")


async def _stream(
    request: web.Request, answering: Answering, wish: Wish, shape: Shape
) -> web.StreamResponse:
    """Server-sent events, one token each; headers go out with the first token's text.

    So a request that is refused before any token still gets a proper HTTP status.
    """
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    held = request.get(HELD, NOT_HELD)
    try:
        async with contextlib.aclosing(answering.pieces()) as pieces:
            opened: set[int] = set()
            async for piece in pieces:
                data = _events(shape, piece, answering, wish, opened)
                if data:
                    if not response.prepared:
                        held.torn()
                        await response.prepare(request)
                    await response.write(data)
                    held.sent()
    except ApiError as error:
        if not response.prepared:
            raise
        held.torn()
        await response.write(b"data: " + error.body() + b"\n\n" + DONE)
        return response
    held.torn()
    if not response.prepared:
        await response.prepare(request)
    end = DONE
    if wish.include_usage:
        end = event({**shape.frame([]), "usage": usage(answering)}) + DONE
    await response.write(end)
    await response.write_eof()
    return response


def _events(
    shape: Shape, piece: Piece, answering: Answering, wish: Wish, opened: set[int]
) -> bytes:
    """The bytes of one piece: the choice's opening before its first, then its chunks."""
    chunks = shape.chunks(piece)
    if piece.choice not in opened:
        opened.add(piece.choice)
        opening = shape.opening(piece.choice)
        chunks = [opening, *chunks] if opening else chunks
    frames: list[bytes] = []
    for chunk in chunks:
        frame = shape.frame([chunk])
        if wish.usage_in_each_chunk:
            frame["usage"] = usage(answering)
        elif wish.include_usage:
            frame["usage"] = None
        frames.append(event(frame))
    return b"".join(frames)


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
