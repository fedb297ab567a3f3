"""Names the kinds of layers that this engine does not do: from a configuration, or from a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from homesplit_engine.not_decoders import NotDecoder, not_a_decoder

_ATTENTION = {"full_attention", "sliding_attention", "attention"}
_KINDS = {
    "linear_attention": "recurrent layers (linear attention or a state space)",
    "mamba": "recurrent layers (a state space)",
    "mamba2": "recurrent layers (a state space)",
    "recurrent": "recurrent layers",
    "hybrid": "hybrid layers (attention beside a convolution or a recurrence)",
    "hybrid_sliding": "hybrid layers (attention beside a convolution or a recurrence)",
    "conv": "short convolution layers",
    "chunked_attention": "chunked attention layers",
    "mlp": "layers without attention",
    "moe": "layers without attention",
    "indexed_attention": "sparse attention layers (an index chooses the keys)",
    "compressed_sparse_attention": "sparse attention layers (over compressed keys)",
    "heavily_compressed_attention": "sparse attention layers (over compressed keys)",
}
"""What transformers' names for kinds of layers stand for."""
_OWN_KINDS = {
    "big_bird": "block-sparse attention layers",
    "blt": "byte-patch layers (cross-attention between bytes and patches)",
    "cpmant": "attention layers with relative position biases",
    "mamba": "recurrent layers (a state space)",
    "mamba2": "recurrent layers (a state space)",
    "falcon_mamba": "recurrent layers (a state space)",
    "musicgen_decoder": "cross-attention layers (to a text encoder)",
    "musicgen_melody_decoder": "cross-attention layers (to a text encoder)",
    "reformer": "hashed attention layers (LSH)",
    "rwkv": "recurrent layers (RWKV)",
    "xlnet": "two-stream attention layers with relative positions",
    "xlm": "attention layers of an encoder with language embeddings",
    "xlstm": "recurrent layers (xLSTM)",
}
"""Model types that have one kind of layer and no setting that tells it."""
_RECURRENT_KEYS = ("ssm_cfg", "mamba_d_state", "state_size", "ssm_state_size", "lru_width")
_ROPES = {"default", "linear", "llama3", "longrope", "proportional", "yarn"}
_CROSS = re.compile("encoder_attn|cross_?attn|cross_?attention")
_VARIES = "varies"
"""In place of a setting that differs from layer to layer, which transformers does not tell."""


def refusal_of(config: Any) -> str | None:
    """What in this configuration this engine does not do, as a sentence; None when nothing."""
    for find in _FINDERS:
        found = find(config)
        if found is not None:
            return f"{config.model_type} has {found}"
    return None


def rope_types(config: Any) -> set[str]:
    """Every kind of rope that a configuration names, also for some of its layers."""
    settings: Any = _setting(config, "rope_parameters")
    settings = settings if isinstance(settings, dict) else {}
    found = [settings, *(v for v in settings.values() if isinstance(v, dict))]
    return {str(one["rope_type"]) for one in found if "rope_type" in one}


def unlike_kind(model: Any, seen: Collection[int]) -> str:
    """What a model's layers are that this engine's attention does not do; `seen` of them asked it.

    It can only be told from the names that transformers gave the parts of the model.
    """
    modules: list[tuple[str, Any]] = list(model.named_modules())
    if any(_CROSS.search(name) for name, _ in modules):
        return "cross-attention layers (half of an encoder-decoder model)"
    inside = {type(module).__name__ for _, module in modules}
    attention = sorted(name for name in inside if name.endswith("Attention"))
    if not attention:
        blocks = sorted(name for name in inside if re.search("Block$|Layer$", name))
        return f"layers without attention ({', '.join(blocks) or type(model).__name__})"
    kind = f"attention layers of a kind of their own ({', '.join(attention)})"
    return kind if seen else f"{kind}, which do not go through transformers' attention interface"


def _setting(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # transformers raises one of its own where layers differ in a setting
        return _VARIES


def _encoder_decoder(config: Any) -> str | None:
    if _not_a_decoder(config) == "both":
        return "cross-attention layers (it is an encoder-decoder model)"
    if _setting(config, "cross_attention_layers"):
        return "cross-attention layers (to what an encoder sees)"
    return None


def _not_a_decoder(config: Any) -> NotDecoder | None:
    made: Any = _setting(config, "architectures")
    return not_a_decoder(
        str(config.model_type),
        architectures=made if isinstance(made, list) else (),
        encoder_decoder=bool(_setting(config, "is_encoder_decoder")),
        is_decoder=_setting(config, "is_decoder") is True,
    )


def _encoder(config: Any) -> str | None:
    kind = _not_a_decoder(config)
    if kind == "encoder":
        return "attention layers that look both ways (it is an encoder)"
    if kind == "head":
        return "no head that writes text (it was made to judge it)"
    # Only models that are made as one or the other have both settings.
    if _setting(config, "is_decoder") is False and _setting(config, "add_cross_attention") is False:
        return "attention layers that look both ways (it is an encoder: is_decoder is false)"
    return None


def _latent(config: Any) -> str | None:
    if _setting(config, "kv_lora_rank") is not None:
        return "multi-head latent attention layers (MLA, kv_lora_rank)"
    return None


def _other_layers(config: Any) -> str | None:
    kinds = _kinds_of(config) - _ATTENTION
    if not kinds:
        return None
    words = dict.fromkeys(_KINDS.get(kind, f"layers of kind {kind}") for kind in sorted(kinds))
    return " and ".join(words)


def _kinds_of(config: Any) -> set[str]:
    kinds: Any = _setting(config, "layer_types")
    return set(kinds) if isinstance(kinds, list | tuple) else set()


def _recurrent(config: Any) -> str | None:
    # A hybrid family may have a member with attention layers alone, which says so.
    if not _kinds_of(config) and any(_setting(config, key) is not None for key in _RECURRENT_KEYS):
        return "recurrent layers (a state space or linear recurrence)"
    return None


def _own_kind(config: Any) -> str | None:
    return _OWN_KINDS.get(str(config.model_type))


def _shared(config: Any) -> str | None:
    if _setting(config, "num_kv_shared_layers"):
        return "layers that share another layer's KV (num_kv_shared_layers)"
    return None


def _alibi(config: Any) -> str | None:
    if _setting(config, "alibi") and config.model_type != "falcon":
        return "ALiBi attention layers"
    return None


def _rope(config: Any) -> str | None:
    other = sorted(rope_types(config) - _ROPES)
    if not other:
        return None
    why = ": it changes with the longest of a batch" if "dynamic" in other else ""
    return f"rope of type {', '.join(other)}, which is not carried{why}"


_FINDERS: tuple[Callable[[Any], str | None], ...] = (
    _encoder_decoder,
    _own_kind,
    _latent,
    _other_layers,
    _recurrent,
    _shared,
    _alibi,
    _rope,
    _encoder,
)
