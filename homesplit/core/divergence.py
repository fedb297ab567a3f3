"""How far texts stay the same where the KV goes over the wire with less precision than it has."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import KvWire, ModeSetting
from msgspec import Struct

from homesplit.core.measured import RequestLog
from homesplit.core.say import counted


class Divergence(Struct, frozen=True, kw_only=True):
    """Greedy texts after hand-offs that lose precision, beside those that lose none."""

    mode: str
    kv_wire: KvWire
    compared: int
    identical: int
    differs_after_tokens: tuple[int, ...]
    """Tokens alike before each text that differs differs, ascending."""

    @property
    def sentence(self) -> str:
        """How many of how many are identical, and after how many tokens the others part."""
        texts = counted(self.compared, "text")
        told = f"{self.mode} with KV sent as {self.kv_wire}: {self.identical} of {texts} identical"
        after = self.differs_after_tokens
        if not after:
            return told
        if len(after) == 1:
            return f"{told}; the other differs after {counted(after[0], 'token')}"
        return f"{told}; the first difference comes after {after[0]} to {after[-1]} tokens"


def lossy(setting: ModeSetting | None) -> bool:
    """Whether a mode hands KV over with less precision than it has."""
    return setting is not None and setting.mode in ("split", "auto") and setting.kv_wire != "same"


def divergence(setting: ModeSetting, pairs: Sequence[tuple[RequestLog, str]]) -> Divergence:
    """Each answer of a lossy mode held against the text that the same prompt gets without loss."""
    after = sorted(tokens_alike(log, text) for log, text in pairs if log.text != text)
    return Divergence(
        mode=setting.mode,
        kv_wire=setting.kv_wire,
        compared=len(pairs),
        identical=len(pairs) - len(after),
        differs_after_tokens=tuple(after),
    )


def tokens_alike(log: RequestLog, text: str) -> int:
    """Tokens of an answer before it leaves `text`; a chunk of several tokens is one piece."""
    at = tokens = 0
    counts = log.arrival_tokens or (1,) * len(log.arrival_characters)
    for characters, count in zip(log.arrival_characters, counts, strict=False):
        at += characters
        if log.text[:at] != text[:at]:
            break
        tokens += count
    return tokens
