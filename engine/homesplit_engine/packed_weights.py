"""Weights that a model's files keep packed in few bits: how they are loaded, or why they aren't."""

from __future__ import annotations

from typing import Any


def packed_as(config: Any) -> str | None:
    """The way in which a model's weights are packed, by its configuration; None where plain."""
    for settings in _settings(config):
        method = settings.get("quant_method")
        # Enums of transformers stand for their words.
        return str(getattr(method, "value", method) or "a way without a name")
    return None


def why_packed(config: Any) -> str | None:
    """Why weights that are packed so can't be loaded; None where they can, or are plain."""
    method = packed_as(config)
    # Of other families transformers would leave what is packed so out, with a warning alone.
    unpacked = method == "mxfp4" and config.get_text_config(decoder=True).model_type == "gpt_oss"
    if method is None or unpacked:
        return None
    return (
        f"its weights are quantised ({method}), which this engine can't unpack; "
        "give the model as it was published in 16 bits, or a GGUF file of it"
    )


def unpacking(config: Any) -> dict[str, Any]:
    """What transformers is told besides, so that packed weights become ordinary ones.

    Left to itself it would keep MXFP4 packed where it finds a GPU and fetches kernels for it.
    """
    if packed_as(config) is None:
        return {}
    from transformers.utils.quantization_config import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _settings(config: Any) -> list[dict[str, Any]]:
    # MLX writes its own under another name.
    names = ("quantization_config", "quantization")
    every = [
        getattr(part, name, None)
        for part in (config, config.get_text_config(decoder=True))
        for name in names
    ]
    return [each if isinstance(each, dict) else each.to_dict() for each in every if each]
