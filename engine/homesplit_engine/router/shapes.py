"""The JSON that OpenAI's clients read: whole answers and stream chunks for both doors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer

from homesplit_engine.router.answer import Answering, Piece
from homesplit_engine.router.text import HALF, token_bytes, token_text
from homesplit_engine.wire.messages import Token

DONE = b"data: [DONE]\n\n"


def event(document: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def usage(answering: Answering) -> dict[str, Any]:
    """Token counts so far: every token of the model counts, also one that shows no text."""
    return {
        "prompt_tokens": answering.prompt_tokens,
        "completion_tokens": answering.output_tokens,
        "total_tokens": answering.prompt_tokens + answering.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answering.cached_tokens},
    }


class Shape(Protocol):
    """How one door writes its answers."""

    def opening(self, choice: int) -> dict[str, Any] | None:
        """The chunk before a choice's first text, if there is one."""
        ...

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The chunks of one piece: none while half a character waits for its rest."""
        ...

    def frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A chunk around its choices."""
        ...

    def whole(self, pieces: Sequence[Sequence[Piece]], counts: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece, from the pieces of each choice."""
        ...


class ChatShape:
    """`/v1/chat/completions`: text chunks, then an empty delta with the finish reason.

    A chunk never has empty content without a role: some clients would count it as a token.
    """

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._head = {
            "id": f"chatcmpl-{request_id}",
            "created": int(time.time()),
            "model": model,
        }
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._held: dict[int, list[Token]] = {}

    def opening(self, choice: int) -> dict[str, Any] | None:
        """The role alone, as OpenAI sends it."""
        delta = {"role": "assistant", "content": ""}
        return {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Text, and the finish reason in a chunk of its own."""
        chunks: list[dict[str, Any]] = []
        if piece.token is not None:
            self._held.setdefault(piece.choice, []).append(piece.token)
        if piece.text:
            tokens = self._held.pop(piece.choice, [])
            chunks.append(
                {
                    "index": piece.choice,
                    "delta": {"content": piece.text},
                    "logprobs": self._content(tokens),
                    "finish_reason": None,
                }
            )
        if piece.finish is not None:
            # Tokens that never came to text: the end token, or half a character.
            left = self._held.pop(piece.choice, [])
            chunks.append(
                {
                    "index": piece.choice,
                    "delta": {},
                    "logprobs": self._content(left) if left else None,
                    "finish_reason": piece.finish,
                }
            )
        return chunks

    def frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A chunk around its choices."""
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def whole(self, pieces: Sequence[Sequence[Piece]], counts: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": number,
                "message": {
                    "role": "assistant",
                    "content": "".join(piece.text for piece in choice),
                },
                "logprobs": self._content([p.token for p in choice if p.token is not None]),
                "finish_reason": choice[-1].finish if choice else None,
            }
            for number, choice in enumerate(pieces)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": counts}

    def _content(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {"content": [self._token(token) for token in tokens]}

    def _token(self, token: Token) -> dict[str, Any]:
        entry = self._entry(token.token_id, token.logprob)
        entry["top_logprobs"] = [self._entry(one, value) for one, value in token.top_logprobs]
        return entry

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        text = token_text(self._tokenizer, token_id)
        spelt = token_bytes(self._tokenizer, token_id, text)
        return {"token": text, "logprob": logprob, "bytes": list(spelt)}


class CompletionShape:
    """`/v1/completions`: the finish reason rides on the last token's chunk."""

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._head = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._held: dict[int, list[Token]] = {}
        self._offset: dict[int, int] = {}

    def opening(self, choice: int) -> dict[str, Any] | None:
        """Nothing goes before the text."""
        return None

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Text with the finish reason."""
        if piece.token is not None:
            self._held.setdefault(piece.choice, []).append(piece.token)
        if not piece.text and piece.finish is None:
            return []
        tokens = self._held.pop(piece.choice, [])
        offset = self._offset.get(piece.choice, 0)
        self._offset[piece.choice] = offset + len(piece.text)
        return [
            {
                "index": piece.choice,
                "text": piece.text,
                "logprobs": self._details(tokens, offset),
                "finish_reason": piece.finish,
            }
        ]

    def frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A chunk around its choices."""
        return {**self._head, "choices": choices}

    def whole(self, pieces: Sequence[Sequence[Piece]], counts: dict[str, Any]) -> dict[str, Any]:
        """The answer in one piece: what its chunks would be, joined."""
        choices = [
            self._joined(number, [chunk for piece in choice for chunk in self.chunks(piece)])
            for number, choice in enumerate(pieces)
        ]
        return {**self._head, "choices": choices, "usage": counts}

    def _joined(self, number: int, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        joined: Any = self._details([], 0)
        for chunk in chunks:
            for name, values in (chunk["logprobs"] or {}).items():
                joined[name] += values
        return {
            "index": number,
            "text": "".join(chunk["text"] for chunk in chunks),
            "logprobs": joined,
            "finish_reason": chunks[-1]["finish_reason"] if chunks else None,
        }

    def _details(self, tokens: Sequence[Token], offset: int) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        texts = [token_text(self._tokenizer, token.token_id) for token in tokens]
        offsets: list[int] = []
        for text in texts:
            offsets.append(offset)
            # The parts of a character all lie where it will.
            offset += 0 if HALF in text else len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._likely(token) for token in tokens],
            "text_offset": offsets,
        }

    def _likely(self, token: Token) -> dict[str, float | None]:
        """The likeliest tokens, and the chosen one whether it is among them or not."""
        found: dict[str, float | None] = {}
        for token_id, value in ((token.token_id, token.logprob), *token.top_logprobs):
            found.setdefault(token_text(self._tokenizer, token_id), value)
        return found
