"""From a checked request to flights: tokenised, bounded, and read back as pieces of text."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec import Struct
from tokenizers import Tokenizer

from homesplit_engine.records import RequestRecord
from homesplit_engine.router.attempt import Order, with_tokens
from homesplit_engine.router.body import Wish
from homesplit_engine.router.errors import ApiError, bad_request, too_long, unavailable
from homesplit_engine.router.fleet import Fleet, Held
from homesplit_engine.router.flight import Flight
from homesplit_engine.router.prefixes import chain
from homesplit_engine.router.text import AnswerText
from homesplit_engine.wire.messages import Token

_T = TypeVar("_T")
SHORT_TEXT_CHARS = 2_000
"""Shorter prompts are tokenised at once (well under a millisecond), longer ones in a thread."""
FAIR_ANSWER = 1_024
"""Tokens that an answer of no told length has at least where a box holds them, or half of what the
smallest box holds."""
SHRINKS_TO = 2
"""A tokenizer that first puts characters together may make so many of the text one of a token."""


class Piece(Struct, frozen=True):
    """One token of one choice, with the text that it completed."""

    choice: int
    text: str
    token: Token | None
    finish: str | None


class Answering:
    """All choices of one HTTP request."""

    def __init__(self, fleet: Fleet, tokenizer: Tokenizer, wish: Wish, orders: list[Order]) -> None:
        self.orders = orders
        self._fleet = fleet
        self._tokenizer = tokenizer
        self._wish = wish
        self.tokens = [0] * len(orders)
        self.cached_tokens = 0

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts; a prompt answered n times counts once, as with OpenAI."""
        return sum(len(order.token_ids) for order in self.orders[:: self._wish.n])

    @property
    def output_tokens(self) -> int:
        """Of all choices so far."""
        return sum(self.tokens)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Every piece as it comes; raises ApiError. Closing it cancels what still runs."""
        if len(self.orders) == 1:
            async with contextlib.aclosing(self._one(0)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        async with contextlib.aclosing(self._merged()) as pieces:
            async for piece in pieces:
                yield piece

    async def _one(self, choice: int) -> AsyncGenerator[Piece]:
        order = self.orders[choice]
        text = AnswerText(self._tokenizer, order.token_ids, self._wish.stops)
        with self._fleet.flying(order) as flight:
            while (given := await flight.next_piece()) is not None:
                piece = self._piece(choice, order, text, flight, given.token, given.finish)
                yield piece
                if piece.finish is not None:
                    return

    def _piece(
        self,
        choice: int,
        order: Order,
        text: AnswerText,
        flight: Flight,
        token: Token | None,
        finish: str | None,
    ) -> Piece:
        shown = ""
        if token is not None:
            self.tokens[choice] += 1
            if token.token_id not in order.stop_ids:
                shown = text.push(token.token_id)
        if text.stopped:
            flight.stop_here()
            finish = "stop"
        elif finish is not None:
            shown += text.finish()
        if finish is not None and choice % self._wish.n == 0:
            # As the prompt itself: once, however many answers it has.
            self.cached_tokens += flight.story.cached_tokens
        return Piece(choice, shown, token, finish)

    async def _merged(self) -> AsyncGenerator[Piece]:
        queue: asyncio.Queue[Piece | None] = asyncio.Queue(maxsize=256)

        async def fill(choice: int) -> None:
            async with contextlib.aclosing(self._one(choice)) as pieces:
                async for piece in pieces:
                    await queue.put(piece)

        async def fill_all() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for choice in range(len(self.orders)):
                        group.create_task(fill(choice))
            finally:
                # The reader takes this off the queue, or is gone and reads no more.
                with contextlib.suppress(asyncio.QueueFull):
                    queue.put_nowait(None)

        task = asyncio.create_task(fill_all())
        try:
            while True:
                piece = await _next_or_end(queue, task)
                if piece is None:
                    break
                yield piece
            await _without_group(task)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _next_or_end(
    queue: asyncio.Queue[Piece | None], task: asyncio.Task[None]
) -> Piece | None:
    """The next piece; None once all choices have ended and the queue is empty."""
    while queue.empty() and not task.done():
        getter = asyncio.ensure_future(queue.get())
        done, _ = await asyncio.wait({getter, task}, return_when=asyncio.FIRST_COMPLETED)
        if getter in done:
            return getter.result()
        getter.cancel()
    return None if queue.empty() else queue.get_nowait()


async def _without_group(task: asyncio.Task[None]) -> None:
    """Raise the first choice's own error rather than the group's."""
    try:
        await task
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group


class Reader:
    """Tokenises prompts and makes orders of them."""

    def __init__(self, fleet: Fleet, tokenizer: Tokenizer) -> None:
        self.fleet = fleet
        self.tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenise")
        self._longest_token = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[[], _T], size: int) -> _T:
        """Short work at once, long work off the event loop; `size` is as of a text's characters."""
        if size <= SHORT_TEXT_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def encode(self, text: str, wish: Wish, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; raises ApiError 400 when it is no text, or for no context.

        Who tokenises megabytes to find them too long makes everybody wait for it.
        """
        held = self.fleet.held()
        least = len(text) // (SHRINKS_TO * self._longest_token)
        if held is not None and least > held.most:
            raise _too_long(f"at least {least}", held.most, wish)
        try:
            if len(text) <= SHORT_TEXT_CHARS:
                return self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
            # Of a batch it lets other threads go on meanwhile, and "fast" leaves out what
            # tells where in the text a token lies.
            batch = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return batch[0].ids
        except Exception as error:  # the library raises bare Exception and TypeError
            raise bad_request(
                f"`{wish.prompt_field}` can't be tokenised: {error}", param=wish.prompt_field
            ) from error

    async def token_ids(self, prompt: str | list[int], wish: Wish) -> list[int]:
        """A completion prompt's token ids; raises ApiError 400."""
        if isinstance(prompt, str):
            return await self.in_thread(
                lambda: self.encode(prompt, wish, add_special_tokens=True), len(prompt)
            )
        limit = self.tokenizer.get_vocab_size(with_added_tokens=True)
        if any(not 0 <= token < limit for token in prompt):
            raise bad_request(
                f"Token ids of `prompt` lie between 0 and {limit - 1}.", param="prompt"
            )
        return list(prompt)

    def orders(
        self,
        request_id: str,
        prompts: Sequence[list[int]],
        wish: Wish,
        received_s: float,
        *,
        internal: bool = False,
    ) -> list[Order]:
        """One order per prompt and choice; raises ApiError 400, 429 or 503."""
        tokenise_s = time.monotonic() - received_s
        wall_time = _wall_time()
        tokens = sum(map(len, prompts))
        try:
            if not internal:  # the router's own question must be asked under load as well
                self.fleet.admission.admit(
                    len(prompts) * wish.n, tokens, wish.first_token_s, wish.ttft_target_s
                )
            rooms = [self._room(prompt, wish) for prompt in prompts]
        except ApiError as error:
            self.fleet.book.note(self._rejected(request_id, tokens, received_s, error))
            raise
        orders: list[Order] = []
        for prompt, room in zip(prompts, rooms, strict=True):
            prefix = chain(prompt)
            for choice in range(wish.n):
                number = len(orders)
                orders.append(
                    Order(
                        request_id=f"{request_id}/{number}" if number else request_id,
                        token_ids=prompt,
                        sampling=with_tokens(wish.sampling, room, wish.sampling.seed + choice),
                        setting=self.fleet.setting,
                        received_s=received_s,
                        deadline_s=received_s + self.fleet.config.request_deadline_s,
                        tokenise_s=tokenise_s,
                        wall_time=wall_time,
                        prefix=prefix,
                        internal=internal,
                        stop_ids=self._stop_ids(wish),
                        prompt_field=wish.prompt_field,
                    )
                )
        return orders

    def _room(self, prompt: list[int], wish: Wish) -> int:
        """How many tokens the answer may have; raises ApiError 400 when there is no room.

        Without a wish as many as the boxes hold.
        """
        if not prompt:
            raise bad_request(f"`{wish.prompt_field}` is empty.", param=wish.prompt_field)
        held = self.fleet.held()
        if held is None:
            raise unavailable(
                "No box of this deployment answers now. Look at `homesplit status`.",
                retry_after_s=self.fleet.detection_s,
            )
        asked = len(prompt) + (wish.max_tokens or 1)
        if asked > held.most:
            raise _too_long(asked, held.most, wish)
        return wish.max_tokens or _length_by(held, len(prompt))

    def _rejected(
        self, request_id: str, prompt_tokens: int, received_s: float, error: ApiError
    ) -> RequestRecord:
        """The record of a request that was never taken in."""
        setting = self.fleet.setting
        return RequestRecord(
            request_id=request_id,
            mode=setting.mode,
            served="none",
            prefill=setting.prefill,
            prefill_box=None,
            decode_box=None,
            why="it was never placed",
            outcome="rejected",
            error=error.message,
            prompt_tokens=prompt_tokens,
            output_tokens=0,
            received_s=received_s,
            wall_time=_wall_time(),
        )

    def _stop_ids(self, wish: Wish) -> frozenset[int]:
        ready = self.fleet.ready()
        eos = ready.eos_token_ids if ready and not wish.sampling.ignore_eos else ()
        return frozenset((*eos, *wish.sampling.stop_token_ids))

    def answering(self, wish: Wish, orders: list[Order]) -> Answering:
        """The answer to these orders."""
        return Answering(self.fleet, self.tokenizer, wish, orders)


def _length_by(held: Held, prompt_tokens: int) -> int:
    """How many tokens an answer of no told length may have.

    As many as every box holds, so that it may go on wherever it has to; where that leaves too few
    for an answer, as many as the largest holds that can be used now, or the one that it waits for.
    """
    if held.least - prompt_tokens >= min(FAIR_ANSWER, max(1, held.least // 2)):
        return held.least - prompt_tokens
    return (held.now if held.now > prompt_tokens else held.most) - prompt_tokens


def _too_long(tokens: int | str, limit: int, wish: Wish) -> ApiError:
    return too_long(tokens, limit, prompt_field=wish.prompt_field, length_field=wish.length_field)


def _wall_time() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def wrong_model(asked: str | None, served: str) -> ApiError | None:
    """The 404 for a model that is not served here; None when it is, or when none was named."""
    if asked is None or asked == served:
        return None
    return ApiError(
        404,
        f"The model {asked[:120]!r} does not exist here; this deployment serves {served!r}.",
        code="model_not_found",
        param="model",
    )
