"""A streamed answer tells the same logprobs as the answer in one piece."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from homesplit_engine.router.answer import Answering, Piece
from homesplit_engine.router.shapes import ChatShape, CompletionShape
from homesplit_engine.wire.messages import Token
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


def shape(*, logprobs: bool) -> ChatShape:
    words = {"a": 0, "b": 1, "<end>": 2}
    return ChatShape("r", "m", Tokenizer(WordLevel(words, unk_token="a")), logprobs)


def token(index: int, token_id: int) -> Token:
    return Token(request_id="r", index=index, token_id=token_id, logprob=-1.0 - index)


PIECES = {
    "an end token": [
        Piece(0, "a", token(0, 0), None),
        Piece(0, "", token(1, 2), None),
        Piece(0, "", None, "stop"),
    ],
    "an end token with the finish": [
        Piece(0, "a", token(0, 0), None),
        Piece(0, "", token(1, 2), "stop"),
    ],
    "half a character first": [
        Piece(0, "", token(0, 0), None),
        Piece(0, "ab", token(1, 1), None),
        Piece(0, "", None, "length"),
    ],
    "text to the end": [Piece(0, "a", token(0, 0), None), Piece(0, "b", token(1, 1), "length")],
}


@pytest.mark.parametrize("case", list(PIECES))
def test_every_tokens_logprob_is_streamed_once(case: str) -> None:
    subject = shape(logprobs=True)
    chunks = [chunk for piece in PIECES[case] for chunk in subject.chunks(piece)]
    streamed = [one for chunk in chunks for one in (chunk["logprobs"] or {}).get("content", [])]
    whole = shape(logprobs=True).whole([PIECES[case]], {})["choices"][0]["logprobs"]["content"]
    assert streamed == whole
    assert [one["logprob"] for one in streamed] == [-1.0, -2.0]
    assert chunks[-1]["finish_reason"] == PIECES[case][-1].finish


def test_without_the_wish_none_is_told() -> None:
    subject = shape(logprobs=False)
    chunks = [c for piece in PIECES["an end token"] for c in subject.chunks(piece)]
    assert [chunk["logprobs"] for chunk in chunks] == [None, None]


def test_a_completion_tells_the_chosen_token_among_the_likely_and_where_each_lies() -> None:
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2, "\ufffd": 3}, unk_token="a"))
    pieces = [
        Piece(0, "", likely(3, -3.0, (1, -0.5)), None),
        Piece(0, "\u00e9", likely(3, -0.5), None),
        Piece(0, " b", likely(1, -0.5, (1, -0.5), (2, -1.5)), "length"),
    ]
    whole = CompletionShape("r", "m", tokenizer, True).whole([pieces], {})["choices"][0]
    assert whole["text"] == "\u00e9 b" and whole["finish_reason"] == "length"
    assert whole["logprobs"] == {
        "tokens": ["\ufffd", "\ufffd", " b"],
        "token_logprobs": [-3.0, -0.5, -0.5],
        "top_logprobs": [
            {"\ufffd": -3.0, " b": -0.5},
            {"\ufffd": -0.5},
            {" b": -0.5, " c": -1.5},
        ],
        "text_offset": [0, 0, 1],
    }


def likely(token_id: int, logprob: float, *top: tuple[int, float]) -> Token:
    return Token(request_id="r", index=0, token_id=token_id, logprob=logprob, top_logprobs=top)


def test_what_was_cached_of_a_prompt_counts_once_however_many_answers_it_has() -> None:
    wish: Any = SimpleNamespace(n=2)
    order: Any = SimpleNamespace(token_ids=[1, 2, 3], stop_ids=())
    text: Any = SimpleNamespace(stopped=False, finish=lambda: "")
    flight: Any = SimpleNamespace(story=SimpleNamespace(cached_tokens=2))
    nobody: Any = None
    answering = Answering(nobody, nobody, wish, [order, order])
    for choice in (0, 1):
        answering._piece(  # pyright: ignore[reportPrivateUsage]
            choice, order, text, flight, None, "length"
        )
    assert (answering.prompt_tokens, answering.cached_tokens) == (3, 2)
