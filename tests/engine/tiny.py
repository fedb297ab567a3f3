"""Tiny models of real classes with random weights, and what transformers itself says of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONTEXT = 128
VOCABULARY = 97

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "smollm2": (
        "LlamaConfig",
        {
            "hidden_size": 72,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
            "tie_word_embeddings": True,
        },
    ),
    "qwen2": ("Qwen2Config", {}),
    "qwen2.5": (
        "Qwen2Config",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral": ("MistralConfig", {"sliding_window": 12}),
    "phi3": ("Phi3Config", {"sliding_window": None}),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 16},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {}),
    "gpt2": ("GPT2Config", _GPT2),
    "gpt_neox": ("GPTNeoXConfig", {"num_key_value_heads": 4}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "sliding_window": None}),
    "gpt_oss": (
        "GptOssConfig",
        {
            "head_dim": 16,
            "intermediate_size": 64,
            "sliding_window": 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1.5e5,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 32,
            },
        },
    ),
}
EXPERTS = ("qwen3_moe", "mixtral", "gpt_oss")

_STRETCHED = {"rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "rope linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "rope yarn": ("Qwen3Config", {"rope_parameters": {"rope_type": "yarn", **_STRETCHED}}),
    "rope llama3": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                **_STRETCHED,
            }
        },
    ),
    # Its context ends where the long factors would begin: these depend on the whole batch.
    "rope longrope": (
        "Phi3Config",
        {
            "sliding_window": None,
            "max_position_embeddings": 2 * CONTEXT,
            "original_max_position_embeddings": CONTEXT,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.5, 2.0, 2.5],
                "long_factor": [4.0, 3.0, 2.0, 1.0],
            },
        },
    ),
}
"""By kind of rope that is carried: a tiny model that has it."""

_SIZES = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_FALCON = {
    **_SIZES,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.04,
}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "granite_swa": ("GraniteSWAConfig", {"sliding_window": 12}),
    "falcon": ("FalconConfig", _FALCON),
    "falcon new": (
        "FalconConfig",
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    "falcon plain": (
        "FalconConfig",
        {**_FALCON, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    # Slopes of each head that are no powers of two, and so are rounded, as in Falcon-RW.
    "falcon alibi": (
        "FalconConfig",
        {
            **_FALCON,
            "hidden_size": 48,
            "num_attention_heads": 6,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "alibi": True,
        },
    ),
    "gpt": (
        "OpenAIGPTConfig",
        {**_GPT2, "n_layer": 2, "initializer_range": 0.1, "tie_word_embeddings": False},
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            **_SIZES,
            "hidden_size": 32,
            "num_layers": 3,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1], [["local"], 1]],
            "window_size": 12,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.06,
        },
    ),
    "gpt_neox_japanese": (
        "GPTNeoXJapaneseConfig",
        {
            **_SIZES,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_multiple_size": 2,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "xglm": (
        "XGLMConfig",
        {
            **_SIZES,
            "d_model": 32,
            "num_layers": 3,
            "attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": CONTEXT,
            "init_std": 0.06,
        },
    ),
    # Three heads: no power of two, for which slopes are made in another way.
    "bloom": (
        "BloomConfig",
        {**_SIZES, "hidden_size": 36, "n_layer": 3, "n_head": 3, "seq_length": CONTEXT},
    ),
    "mpt": (
        "MptConfig",
        {
            **_SIZES,
            "d_model": 36,
            "n_layers": 3,
            "n_heads": 3,
            "max_seq_len": CONTEXT,
            "attn_config": {"clip_qkv": 2.0},
        },
    ),
}
"""By family whose layers attend in a way of their own: a tiny model of it."""


def config_of(kind: str, **changes: Any) -> Any:
    """The configuration of a tiny model."""
    import transformers

    config_name, extra = (KINDS | ROPES | WAYS)[kind]
    settings = dict(extra) if "vocab_size" in extra else _COMMON | extra
    return getattr(transformers, config_name)(**(settings | changes))


def make_model(folder: Path, kind: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Writes a tiny random model of a real class as a Hugging Face folder."""
    return write_model(folder, config_of(kind, **changes), seed=seed)


def write_model(folder: Path, config: Any, *, seed: int = 0) -> Path:
    """As `make_model`, of any configuration."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Random initialisation is so small that every prompt would have the same answer.
            if parameter.dim() > 1:
                parameter.mul_(8.0 if "embed" not in name else 3.0)
            if name.endswith(("sinks", "bias")):
                # They begin as zeros, or next to them: one that is left out would not be missed.
                parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    return folder


def generate(folder: Path, prompt: Sequence[int], tokens: int, *, device: str = "cpu") -> list[int]:
    """Transformers' own greedy continuation; ends at the end token."""
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    return continued(model.to(device), prompt, tokens)


def continued(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """As `generate`, by a model that is loaded; with an explicit mask."""
    import torch

    ids = torch.tensor([list(prompt)], device=model.device)
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return [int(token) for token in output[0, len(prompt) :]]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """A prompt of `length` tokens, none of them special."""
    return [3 + (seed * 31 + 7 * n + n * n) % (VOCABULARY - 3) for n in range(length)]
