"""Models that do not only decode, which this product can't plan for or run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from homesplit.errors import ProfileError

_ENCODERS = re.compile(
    r"(|xlm-|distil|al|de|camem|modern|nomic[-_]|jina-|neo-|ro)bert(a|a-v2|-v2|-v3)?|xlm-roberta"
    r"|electra|gemma-embedding|clip|siglip|vit"
)
_BOTH = re.compile(
    r"(m|um|long)?t5(gemma)?|m?bart|pegasus(_x)?|marian|m2m_100|blenderbot(-small)?|led|prophetnet"
    r"|fsmt|whisper|speech_to_text|moonshine|florence2"
)


def refuse_encoders(config: Mapping[str, Any], source: str) -> None:
    """Raise ProfileError for a model that has an encoder, by its type or by its own word."""
    family = str(config.get("model_type") or "")
    if _BOTH.fullmatch(family) or config.get("is_encoder_decoder") is True:
        kind = "has an encoder before its decoder, whose KV is another than that of what it writes"
    elif _ENCODERS.fullmatch(family):
        kind = "is an encoder, which writes no text"
    else:
        return
    raise ProfileError(
        f"a model of type '{family}' {kind}: its shape can't be told.",
        where=source,
        do_next="Give a model that only decodes, as Llama, Qwen or Gemma do.",
    )
