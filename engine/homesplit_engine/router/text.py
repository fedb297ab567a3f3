"""Text to tokens and back, without torch or transformers."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from homesplit_engine.config import ConfigError

HALF = "\ufffd"
"""What a decoder writes for bytes that are no whole character (yet)."""
CONTEXT_TOKENS = 6
"""Prompt tokens that the first output tokens are decoded after, for their leading space."""
MAX_HELD_TOKENS = 8
"""A character has at most 4 bytes, so more held tokens are broken bytes, not half a character."""
_ONE_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""The token of a single byte, where a tokenizer falls back to those."""


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """The model's tokenizer; raises ConfigError when the folder has none."""
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{model_dir}: has no tokenizer.json; write one with transformers: "
            f"AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"{path}: is not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class Detokeniser:
    """Output tokens of one answer to text, never emitting half a character."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._start = 0
        self._read = len(self._ids)
        if self._decode(self._ids).endswith(HALF):
            self._ids, self._read = [], 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._ids.append(token_id)
        shown, text = self._window()
        if len(text) <= len(shown):
            return ""
        if text.endswith(HALF) and len(self._ids) - self._read < MAX_HELD_TOKENS:
            return ""
        self._start, self._read = self._read, len(self._ids)
        self._forget()
        return text[len(shown) :]

    def finish(self) -> str:
        """Whole characters still held at the end; an unfinished one is dropped.

        Its bytes show as one mark; marks before it are bytes that never were a character. Where
        each byte is a token, though, every byte beside an unfinished character shows as a mark.
        """
        shown, text = self._window()
        if not text.endswith(HALF):
            return text[len(shown) :]
        single = self._single_bytes()
        if not single:
            return text[len(shown) :].removesuffix(HALF)
        before = self._decode(self._ids[self._start : len(self._ids) - len(single)])
        whole = codecs.getincrementaldecoder("utf-8")("replace").decode(single)
        return before[len(shown) :] + whole

    def _single_bytes(self) -> bytes:
        """The bytes of the held tokens at the end that stand for one byte each."""
        found: list[int] = []
        for token_id in reversed(self._ids[self._read :]):
            one = _ONE_BYTE.fullmatch(self._tokenizer.id_to_token(token_id) or "")
            if one is None:
                break
            found.append(int(one[1], 16))
        return bytes(reversed(found))

    def _window(self) -> tuple[str, str]:
        """The window's text already shown, and with the tokens held."""
        shown = self._decode(self._ids[self._start : self._read])
        return shown, self._decode(self._ids[self._start :])

    def _forget(self) -> None:
        """Drop what no later token needs."""
        if self._start > 64:
            del self._ids[: self._start]
            self._read -= self._start
            self._start = 0

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class StopStrings:
    """Holds back only text that may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.met = False

    def push(self, text: str) -> str:
        """The text that may be shown now; after a stop string, `met` is set and nothing follows."""
        if not self._stops or self.met:
            return "" if self.met else text
        self._held += text
        at = min((i for i in map(self._held.find, self._stops) if i >= 0), default=-1)
        if at >= 0:
            self.met = True
            shown, self._held = self._held[:at], ""
            return shown
        keep = self._possible_start()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        shown, self._held = self._held, ""
        return shown

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


class AnswerText:
    """The text of one answer: detokenised, with stop strings cut off."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._detokeniser = Detokeniser(tokenizer, prompt)
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been met."""
        return self._stops.met

    def push(self, token_id: int) -> str:
        """The text that may be shown after this token."""
        return self._stops.push(self._detokeniser.push(token_id))

    def finish(self) -> str:
        """The rest at the end of the answer; empty after a stop string."""
        last = self._stops.push(self._detokeniser.finish())
        return last + ("" if self._stops.met else self._stops.finish())


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """One token alone, as log-probabilities name it.

    Decoders that take a text's first space away would take the token's own: behind itself it
    shows it.
    """
    once = tokenizer.decode([token_id], skip_special_tokens=False)
    if HALF in once:
        return once
    return tokenizer.decode([token_id, token_id], skip_special_tokens=False)[len(once) :]


def token_bytes(tokenizer: Tokenizer, token_id: int, text: str) -> bytes:
    """The bytes of a token that shows as `text`: also where it is part of a character."""
    if HALF not in text:
        return text.encode()
    name = tokenizer.id_to_token(token_id) or ""
    one = _ONE_BYTE.fullmatch(name)
    if one is not None:
        return bytes([int(one[1], 16)])
    letters = _byte_letters()
    if all(letter in letters for letter in name):
        return bytes(letters[letter] for letter in name)
    return text.encode()


@cache
def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level tokenizers write bytes: printable ones stand for themselves.

    The others are, in order, the letters from 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(rest)
    }
