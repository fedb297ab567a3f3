"""Puts a GGUF header's keys under config.json's names, so that one reader serves both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homesplit.errors import ProfileError

_NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "feed_forward_length": "intermediate_size",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "attention.sliding_window": "sliding_window",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}

_FAMILIES = {
    "gptneox": "gpt_neox",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2",
    "command-r": "cohere",
}


def config_from_gguf(
    metadata: Mapping[str, Any], *, where: str, has_output_head: bool = True
) -> dict[str, Any]:
    """The config.json that a GGUF's metadata amounts to; raises ProfileError.

    `metadata` maps key to value, arrays as their first numbers or, for the tokenizer's
    tokens, their count under `tokenizer.ggml.tokens`.
    """
    family = metadata.get("general.architecture")
    if not isinstance(family, str):
        raise ProfileError("'general.architecture' is missing.", where=where)
    config: dict[str, Any] = {"model_type": _FAMILIES.get(family, family)}
    for key, name in _NAMES.items():
        value = metadata.get(f"{family}.{key}")
        if isinstance(value, list):
            value = _one_of(value, key, where)
        if value is not None:
            config[name] = value
    config.setdefault("vocab_size", metadata.get("tokenizer.ggml.tokens"))
    config["tie_word_embeddings"] = not has_output_head
    if "kv_lora_rank" not in config:
        config.pop("qk_rope_head_dim", None)
    return config


def _one_of(values: list[Any], key: str, where: str) -> Any:
    """The value of a per-layer list whose layers are alike."""
    distinct = {value for value in values if value}
    if len(distinct) != 1:
        raise ProfileError(
            f"'{key}' differs from layer to layer, which is not read yet.",
            where=where,
            do_next="Give the model's config.json instead.",
        )
    return distinct.pop()
