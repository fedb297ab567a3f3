"""Models that do not only decode, which this product can't plan for or run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homesplit_engine.not_decoders import not_a_decoder

from homesplit.errors import ProfileError

_WORDS = {
    "both": "has an encoder before its decoder, whose KV is another than that of what it writes",
    "encoder": "is an encoder, which writes no text",
    "head": "was made to judge text ({made}), and writes none",
}


def refuse_encoders(config: Mapping[str, Any], source: str) -> None:
    """Raise ProfileError for a model that does not only decode, by its type or its own word."""
    family = str(config.get("model_type") or "")
    told: Any = config.get("architectures")
    made = [str(each) for each in told] if isinstance(told, list) else []
    kind = not_a_decoder(
        family,
        architectures=made,
        encoder_decoder=config.get("is_encoder_decoder") is True,
        is_decoder=config.get("is_decoder") is True,
    )
    if kind is None:
        return
    raise ProfileError(
        f"a model of type '{family}' {_WORDS[kind].format(made=', '.join(made))}: its shape can't "
        "be told.",
        where=source,
        do_next="Give a model that only decodes, as Llama, Qwen or Gemma do.",
    )
