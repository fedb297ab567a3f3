"""Reads one answer of an OpenAI-compatible server as it arrives, and stamps its content.

What counts as content: non-empty `text`, `delta.content` or `delta.reasoning_content`
(`reasoning` in some servers). Role-only and empty chunks and comment lines are no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from homesplit.core.measured import Source, share_tokens

MAX_LINE_BYTES = 4 * 2**20
"""A longer line is no chunk of an answer."""


class AnswerError(Exception):
    """The stream is not what the protocol says; the message says how."""


class _Text(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class Usage(Struct):
    """Token counts as the server tells them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class Answer:
    """One answer while it arrives; times are whatever clock the caller stamps with."""

    arrivals: list[int] = field(default_factory=list[int])
    texts: list[str] = field(default_factory=list[str])
    counted: list[int] = field(default_factory=list[int])
    """Tokens so far by the usage that came with each arrival, where every chunk has one."""
    usage: Usage | None = None
    finish_reason: str | None = None
    reasoning: bool = False
    done: bool = False
    error: str | None = None
    _rest: bytes = b""

    def feed(self, data: bytes, moment: int) -> None:
        """Take bytes of an event stream that arrived at `moment`; raises AnswerError."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            raise AnswerError(f"a line of the stream is longer than {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), moment)

    def close(self, moment: int) -> None:
        """The stream has ended; takes a last line that has no newline."""
        if self._rest.startswith(b"data:"):
            self._event(self._rest[5:].strip(), moment)
        self._rest = b""

    def whole(self, body: bytes, moment: int) -> None:
        """Take an answer that came as one JSON document; raises AnswerError."""
        self._event(body, moment)
        self.done = True

    def _event(self, payload: bytes, moment: int) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        if not payload:
            return
        try:
            chunk = _decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise AnswerError(f"a chunk can't be read: {error}") from error
        if chunk.error is not None:
            self.error = _error_text(chunk.error)
            return
        self._take(chunk, moment)

    def _take(self, chunk: _Chunk, moment: int) -> None:
        texts = [text for choice in chunk.choices if (text := self._content(choice))]
        for choice in chunk.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
        usage = chunk.usage
        if usage is not None and texts and not usage.completion_tokens:
            # Ollama's completions door puts a usage of zeros on every chunk that holds text.
            usage = None
        if usage is not None:
            self.usage = usage
        for text in texts:
            self.arrivals.append(moment)
            self.texts.append(text)
            if usage is not None and usage.completion_tokens is not None:
                self.counted.append(usage.completion_tokens)

    def _content(self, choice: _Choice) -> str | None:
        said = choice.delta or choice.message
        if said is None:
            return choice.text
        thought = said.reasoning_content or said.reasoning
        if thought:
            self.reasoning = True
        return (thought or "") + (said.content or "")

    @property
    def text(self) -> str:
        """All content so far."""
        return "".join(self.texts)

    def token_counts(self) -> tuple[int | None, tuple[int, ...], Source]:
        """Tokens of the answer, tokens of each arrival, and where these counts come from.

        Arrivals have no counts (empty) where each holds one token or they can't be told apart.
        """
        total = self.usage.completion_tokens if self.usage else None
        if not self.arrivals:
            return total, (), "usage" if total is not None else "none"
        if total is None:
            return len(self.arrivals), (), "one a chunk"
        if len(self.counted) == len(self.arrivals) > 1:
            return total, _without_ones(self._steps(total)), "per-chunk usage"
        shared = share_tokens(total, tuple(len(text) for text in self.texts))
        return total, _without_ones(shared), "usage"

    def _steps(self, total: int) -> tuple[int, ...]:
        """Tokens of each arrival from the running counts; the last takes what is left."""
        befores = [0, *self.counted[:-1]]
        ends = [*self.counted[:-1], max(total, self.counted[-1])]
        return tuple(max(0, end - start) for start, end in zip(befores, ends, strict=True))


def _without_ones(counts: tuple[int, ...]) -> tuple[int, ...]:
    return () if all(count == 1 for count in counts) else counts


def _error_text(error: Any) -> str:
    """The message of an error object, in one line of at most 300 characters."""
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:300]


def refusal_text(body: bytes) -> str:
    """What an error reply says: OpenAI's message, or the start of its text."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return " ".join(body.decode(errors="replace").split())[:300]
    if isinstance(decoded, dict):
        return _error_text(decoded.get("error", decoded))
    return _error_text(decoded)
