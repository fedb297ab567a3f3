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
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "shared_intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "attention.chunk_size": "attention_chunk_size",
    "full_attention_interval": "full_attention_interval",
    "shortconv.l_cache": "conv_L_cache",
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "attention.sliding_window": "sliding_window",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
    "leading_dense_block_count": "first_k_dense_replace",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}

_BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
"""What may differ from layer to layer."""

_FAMILIES = {
    "gptneox": "gpt_neox",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "mimo2": "mimo_v2_flash",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2",
    "command-r": "cohere",
    "falcon-h1": "falcon_h1",
    "granitehybrid": "granitemoehybrid",
    "glm4moe": "glm4_moe",
    "nemotron_h_moe": "nemotron_h",
    "ernie4_5-moe": "ernie4_5_moe",
    "hunyuan-moe": "hunyuan_v1_moe",
    "llama4": "llama4_text",
    "recurrentgemma": "recurrent_gemma",
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
            value = value if key in _BY_LAYER else _one_of(value, key, where)
        if value is not None:
            config[name] = value
    config.setdefault("vocab_size", metadata.get("tokenizer.ggml.tokens"))
    config["tie_word_embeddings"] = not has_output_head
    sliding = metadata.get(f"{family}.attention.sliding_window_pattern")
    if isinstance(sliding, list):
        config["layer_types"] = ["sliding" if near else "full" for near in sliding]
    elif isinstance(sliding, int):
        config["sliding_window_pattern"] = sliding
    _without_heads(config, where)
    _near_and_far(config, metadata, family)
    _latent(config, metadata, family)
    _recurrent(config, metadata, family)
    return config


def _without_heads(config: dict[str, Any], where: str) -> None:
    """What a layer without KV heads is: a state is kept in their place, or nothing."""
    heads, widths = config.get("num_key_value_heads"), config.get("intermediate_size")
    if not isinstance(heads, list) or 0 not in heads:
        return
    if isinstance(widths, list) and 0 in widths:
        if len(widths) != len(heads):
            raise ProfileError(
                "'attention.head_count_kv' and 'feed_forward_length' tell of different layers.",
                where=where,
            )
        # Nemotron-H: a layer attends, keeps a state, or is a feed-forward alone.
        wide = "E" if config.get("num_experts") else "-"
        config["hybrid_override_pattern"] = "".join(
            "*" if kv else wide if width else "M" for kv, width in zip(heads, widths, strict=True)
        )
        config["intermediate_size"] = max(widths)
    elif "layer_types" not in config:
        keeps_state = {"mamba_d_state", "mamba_d_conv", "conv_L_cache"} & set(config)
        other = "recurrent" if keeps_state else "none"
        config["layer_types"] = ["attention" if kv else other for kv in heads]


def _near_and_far(config: dict[str, Any], metadata: Mapping[str, Any], family: str) -> None:
    """The widths of heads where those of layers with a window have their own (Gemma 4, MiMo)."""
    near = metadata.get(f"{family}.attention.key_length_swa")
    near_value = metadata.get(f"{family}.attention.value_length_swa")
    far, far_value = config.get("head_dim"), metadata.get(f"{family}.attention.value_length")
    if isinstance(near, int) and isinstance(far, int) and near != far:
        config["swa_head_dim"] = near
        if isinstance(near_value, int):
            config["swa_v_head_dim"] = near_value
    if "kv_lora_rank" not in config and isinstance(far_value, int) and far_value != far:
        config["v_head_dim"] = far_value


def _latent(config: dict[str, Any], metadata: Mapping[str, Any], family: str) -> None:
    """The widths of MLA's heads, which a GGUF tells as whole keys and values."""
    if "kv_lora_rank" not in config:
        config.pop("qk_rope_head_dim", None)
        return
    key = metadata.get(f"{family}.attention.key_length_mla", config.get("head_dim"))
    value = metadata.get(
        f"{family}.attention.value_length_mla", metadata.get(f"{family}.attention.value_length")
    )
    if isinstance(key, int) and "qk_rope_head_dim" in config:
        config["qk_nope_head_dim"] = key - config["qk_rope_head_dim"]
    if isinstance(value, int):
        config["v_head_dim"] = value


def _recurrent(config: dict[str, Any], metadata: Mapping[str, Any], family: str) -> None:
    """The inner width of recurrent layers, by heads where the family counts them."""
    inner = metadata.get(f"{family}.ssm.inner_size")
    if not isinstance(inner, int):
        return
    heads = metadata.get(f"{family}.ssm.time_step_rank")
    if family.startswith(("qwen3next", "qwen35")) and isinstance(heads, int) and heads:
        config["linear_num_value_heads"] = heads
        config["linear_value_head_dim"] = inner // heads
        config["linear_num_key_heads"] = config.pop("mamba_n_groups", heads)
        config["linear_key_head_dim"] = config.pop("mamba_d_state", inner // heads)
        config["linear_conv_kernel_dim"] = config.pop("mamba_d_conv", 4)
        return
    config["mamba_n_heads"], config["mamba_d_head"] = 1, inner


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
