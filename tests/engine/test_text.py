"""Tokens to text: never half a character, by whichever way a tokenizer spells bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from homesplit_engine.router.text import HALF, AnswerText, token_bytes, token_text
from tokenizers import Tokenizer, decoders, models

from tests.engine.router_kit import letters, make_tokenizer

TEXT = " a né 日本 😀😀 b"


def byte_fallback() -> Tokenizer:
    """As SentencePiece has it: words begin with a mark, and a rare character is byte tokens."""
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "n", "b", "▁a"]
    words = {name: number for number, name in enumerate(names)}
    model = models.BPE(words, [("▁", "a")], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(model)
    spaces, first = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), first])
    return tokenizer


@pytest.fixture(params=["byte level", "byte fallback"])
def spelt(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tokenizer, list[int]]:
    """A tokenizer, and the tokens of TEXT."""
    if request.param == "byte level":
        tokenizer = make_tokenizer(tmp_path)
        return tokenizer, list(letters(tokenizer, TEXT))
    tokenizer = byte_fallback()
    return tokenizer, tokenizer.encode(TEXT.replace(" ", "▁")).ids


def shown(tokenizer: Tokenizer, tokens: list[int], *stops: str) -> str:
    answer = AnswerText(tokenizer, tokens[:3], stops)
    return "".join(answer.push(token) for token in tokens) + answer.finish()


def test_an_answer_that_ends_amid_a_character_leaves_it_out(
    spelt: tuple[Tokenizer, list[int]],
) -> None:
    tokenizer, tokens = spelt
    raw = b""
    for length, token in enumerate(tokens, start=1):
        raw += token_bytes(tokenizer, token, token_text(tokenizer, token))
        assert shown(tokenizer, tokens[:length]) == raw.decode(errors="ignore")
    assert raw.decode() == TEXT


@pytest.mark.parametrize(
    ("stop", "text"), [("本", " a né 日"), ("é 日", " a n"), ("😀 ", TEXT[:-3])]
)
def test_a_stop_string_of_characters_that_are_several_tokens_is_met(
    spelt: tuple[Tokenizer, list[int]], stop: str, text: str
) -> None:
    assert shown(*spelt, stop) == text


def test_the_tokens_of_log_probabilities_spell_the_text(spelt: tuple[Tokenizer, list[int]]) -> None:
    tokenizer, tokens = spelt
    texts = [token_text(tokenizer, token) for token in tokens]
    assert "".join(text for text in texts if HALF not in text) == " a n   b"
    spelling = [token_bytes(tokenizer, *pair) for pair in zip(tokens, texts, strict=True)]
    assert b"".join(spelling).decode() == TEXT
