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
    "qwen2": ("Qwen2Config", {}),
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
    "gpt_neox": ("GPTNeoXConfig", {}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "sliding_window": None}),
}


def config_of(kind: str, **changes: Any) -> Any:
    """The configuration of a tiny model."""
    import transformers

    config_name, extra = KINDS[kind]
    settings = dict(extra) if kind == "gpt2" else _COMMON | extra
    return getattr(transformers, config_name)(**(settings | changes))


def make_model(folder: Path, kind: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Writes a tiny random model of a real class as a Hugging Face folder."""
    import torch
    import transformers

    config = config_of(kind, **changes)
    torch.manual_seed(seed)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Random initialisation is so small that every prompt would have the same answer.
            if parameter.dim() > 1:
                parameter.mul_(8.0 if "embed" not in name else 3.0)
    model.save_pretrained(folder)
    return folder


def generate(folder: Path, prompt: Sequence[int], tokens: int, *, device: str = "cpu") -> list[int]:
    """Transformers' own greedy continuation, with an explicit mask; ends at the end token."""
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    model.to(device)
    ids = torch.tensor([list(prompt)], device=device)
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
