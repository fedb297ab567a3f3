"""Counts a model's parameters from its config, so that a shape needs no weight files."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from homesplit.core.shape import LayerGroup

_PLAIN_MLP = {
    "gpt2",
    "gpt_neox",
    "gpt_neo",
    "gptj",
    "gpt_bigcode",
    "falcon",
    "RefinedWeb",
    "RefinedWebModel",
    "mpt",
    "opt",
    "bloom",
    "phi",
    "starcoder2",
    "nemotron",
    "nemotron_h",
    "persimmon",
    "apertus",
    "arcee",
    "codegen",
    "gpt_neox_japanese",
    "jais2",
    "nanochat",
    "openai-gpt",
    "xglm",
}
"""Families whose feed-forward has two matrices; all others have a gate beside them."""

_TIED = {
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "xglm",
    "falcon",
    "RefinedWeb",
    "RefinedWebModel",
    "mpt",
    "bloom",
    "opt",
    "cohere",
    "cohere2",
    "starcoder2",
    "recurrent_gemma",
    "mamba",
    "mamba2",
}
"""Families whose class ties the output head to the embedding unless the config says otherwise."""

_QKV_BIAS = {"qwen", "qwen2", "qwen2_moe", "gpt2", "gpt_neox", "gpt_oss", "opt", "bloom", "phi"}
_OUT_BIAS = {"gpt2", "gpt_neox", "gpt_oss", "opt", "bloom", "phi", "starcoder2"}
_QK_NORM = {"qwen3", "qwen3_moe", "gemma3_text", "gemma3", "gemma4_text"}
_FOUR_NORMS = {"gemma2", "gemma3", "gemma3_text", "gemma4_text", "glm4"}
_LAYER_NORM_BIAS = {"gpt2", "gpt_neox", "gpt_bigcode", "opt", "bloom", "phi", "starcoder2"}


class Reader(Protocol):
    """What is asked of a config here."""

    family: str

    def whole(self, *keys: str, default: int | None = None) -> int:
        """A whole number under the first of `keys` that is there."""
        ...

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes-or-no key."""
        ...

    def words(self, *keys: str) -> tuple[str, ...] | None:
        """A list under the first of `keys` that is there."""
        ...

    def letters(self) -> str:
        """Nemotron-H's pattern, a letter a layer; empty elsewhere."""
        ...

    def per_layer(self, key: str, name: str) -> tuple[Any, ...] | None:
        """`name` of every layer's entry under `key`."""
        ...

    def part(self, key: str) -> Reader | None:
        """A table inside the config."""
        ...

    def forward_widths(self) -> tuple[int, ...] | None:
        """The width of each layer's feed-forward where layers differ in it."""
        ...

    def hidden(self) -> int:
        """Width of the residual stream."""
        ...

    def layers(self) -> int:
        """Number of layers."""
        ...

    def query_heads(self) -> int:
        """Number of query heads."""
        ...

    def kv_heads(self) -> int:
        """Number of KV heads."""
        ...

    def head_dim(self) -> int:
        """Width of one head."""
        ...


class Counts(Struct, frozen=True, kw_only=True):
    """Parameters: all, those one token multiplies with, the looked-up table, the head."""

    total: int
    active: int
    embedding: int
    head: int
    expert_choice: float | None


def count_parameters(read: Reader, groups: tuple[LayerGroup, ...]) -> Counts:
    """Parameters of the text model; raises ProfileError when a width is missing."""
    hidden = read.hidden()
    table = read.whole("vocab_size", "padded_vocab_size") * hidden
    tied = read.flag(
        "tie_word_embeddings", default=read.flag("tie_embedding", read.family in _TIED)
    )
    layers = sum(group.layers for group in groups)
    positions = _positions(read, hidden) + _looked_up_per_layer(read, layers)
    mixing = sum(group.layers * _mixer(read, group) for group in groups)
    forward, forward_active = _feed_forward(read, layers)
    blocks = read.whole("num_mem_blocks", default=0)
    if blocks:
        mixing = layers * _recurrent(read) + blocks * _shared_block(read)
        forward = forward_active = 0
    norms = layers * _norms_per_layer(read) * hidden + hidden * _norm_width(read)
    shared = mixing + norms + positions + (table if tied else 2 * table)
    return Counts(
        total=shared + forward,
        active=shared + forward_active,
        embedding=(0 if tied else table) + positions,
        head=table,
        expert_choice=_expert_choice(read),
    )


def _positions(read: Reader, hidden: int) -> int:
    learned = {"gpt2", "gpt_bigcode", "opt", "gpt_neo"}
    if read.family not in learned:
        return 0
    return read.whole("n_positions", "max_position_embeddings", "n_ctx") * hidden


def _looked_up_per_layer(read: Reader, layers: int) -> int:
    """Gemma 3n's tables of a small embedding for each layer."""
    width = read.whole("hidden_size_per_layer_input", default=0)
    return layers * width * read.whole("vocab_size_per_layer_input", "vocab_size") if width else 0


def _norm_width(read: Reader) -> int:
    return 2 if read.family in _LAYER_NORM_BIAS else 1


def _norms_per_layer(read: Reader) -> int:
    norms = 4 if read.family in _FOUR_NORMS else 2
    if read.family in ("cohere", "cohere2", "falcon", "phi"):
        norms = 1
    return norms * _norm_width(read)


def _mixer(read: Reader, group: LayerGroup) -> int:
    """Parameters of what mixes tokens in one layer: attention, or a recurrent block."""
    if group.kind == "none":
        return 0
    if group.kind == "recurrent":
        return _recurrent(read)
    if group.kv_elements and group.state_elements:
        return _recurrent(read) + _attention(read, group)
    return _attention(read, group)


def _shared_block(read: Reader) -> int:
    """Zamba 2's attention and feed-forward, of which all hybrid layers use the same few."""
    hidden, width = read.hidden(), read.query_heads() * read.head_dim()
    inside = read.whole("attention_hidden_size", default=2 * hidden)
    return 3 * inside * width + width * hidden + 3 * hidden * read.whole("intermediate_size")


def _attention(read: Reader, group: LayerGroup) -> int:
    if read.whole("kv_lora_rank", default=0):
        return _latent_attention(read)
    hidden, width = read.hidden(), read.head_dim()
    asks, keeps = group.attention_width, group.kv_elements
    if not asks:
        query, kv = read.query_heads(), read.kv_heads()
        asks, keeps = 2 * query * width, 2 * kv * width
    # Keys and queries, values and output each have the width that the other has.
    count = hidden * (asks + keeps)
    if read.flag("attention_bias") or read.flag("bias") or read.family in _QKV_BIAS:
        count += asks // 2 + keeps
    if read.flag("attention_bias") or read.family in _OUT_BIAS:
        count += hidden
    if read.family in _QK_NORM or read.flag("use_qk_norm"):
        count += 2 * width
    if read.family == "gpt_oss":
        count += read.query_heads()
    return count


def _latent_attention(read: Reader) -> int:
    hidden, heads = read.hidden(), read.query_heads()
    nope, rope = read.whole("qk_nope_head_dim"), read.whole("qk_rope_head_dim")
    value, latent = read.whole("v_head_dim"), read.whole("kv_lora_rank")
    low = read.whole("q_lora_rank", default=0)
    asking = (
        hidden * low + low + low * heads * (nope + rope) if low else hidden * heads * (nope + rope)
    )
    keeping = hidden * (latent + rope) + latent + latent * heads * (nope + value)
    found = asking + keeping + heads * value * hidden
    index = read.whole("index_head_dim", default=0)
    if index:
        finders = read.whole("index_n_heads")
        found += (low or hidden) * finders * index + hidden * (index + finders)
    return found


def mamba_heads_width(read: Reader) -> int:
    """Inner width of a Mamba 2 block by its heads; 0 where they are not named."""
    heads = read.whole("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", default=0)
    width = read.whole("mamba_head_dim", "mamba_d_head", "mamba_headdim", default=0)
    if read.family == "mamba2":
        heads, width = read.whole("num_heads"), read.whole("head_dim")
    return heads * width


def _delta(hidden: int, heads: int, width: int) -> int:
    """Kimi Delta Attention: four projections, and gates of low rank."""
    gates = 2 * width * (hidden + heads * width) + hidden * heads
    return 4 * hidden * heads * width + gates


def _recurrent(read: Reader) -> int:
    """Projections of a gated delta net or a Mamba block; smaller tensors are left out."""
    hidden = read.hidden()
    heads = read.whole("linear_num_value_heads", default=0)
    if heads:
        values = heads * read.whole("linear_value_head_dim")
        keys = read.whole("linear_num_key_heads") * read.whole("linear_key_head_dim")
        return hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    linear = read.part("linear_attn_config")
    if linear is not None:
        return _delta(hidden, linear.whole("num_heads"), linear.whole("head_dim"))
    if heads := read.whole("linear_num_heads", default=0):
        return _delta(hidden, heads, read.whole("linear_head_dim"))
    if read.whole("layer_group_size", default=0):
        return _delta(hidden, read.query_heads(), read.head_dim())
    if read.family.startswith("rwkv"):
        # Receptance, key, value, gate, output; the feed-forward stands beside.
        return 5 * hidden * hidden
    if read.family.startswith("minimax"):
        # Lightning attention: query, key, value, gate, output.
        return 5 * hidden * read.query_heads() * read.head_dim()
    if lru := read.whole("lru_width", default=0):
        return 3 * hidden * lru + 2 * lru * lru // read.query_heads() + 4 * lru
    if read.whole("conv_L_cache", default=0):
        return 4 * hidden * hidden
    inner = mamba_heads_width(read)
    inner = inner or read.whole("mamba_expand", "expand", default=2) * hidden
    state = read.whole("ssm_state_size", "mamba_d_state", "state_size", default=16)
    rank = read.whole("mamba_dt_rank", "time_step_rank", default=0)
    if rank:
        # Mamba 1 works its step, input and output out of the inner width.
        return 3 * hidden * inner + inner * (2 * rank + 3 * state)
    groups = read.whole("n_groups", "mamba_n_groups", "mamba_ngroups", default=1)
    return hidden * (2 * inner + 2 * groups * state) + inner * hidden


def _feed_forward(read: Reader, layers: int) -> tuple[int, int]:
    """(all, active) parameters of every layer's feed-forward."""
    if read.family in ("mamba", "mamba2", "falcon_mamba"):
        return 0, 0
    sizes = read.per_layer("ffn", "ffn_mult")
    if sizes is not None:
        both = sum(3 * read.hidden() * _by_multiplier(read, size) for size in sizes if size)
        return both, both
    widths = read.forward_widths()
    if widths is not None:
        both = sum(_dense_of(read, width) for width in widths if width)
        return both, both
    experts = _experts(read)
    dense_layers, moe_layers = _forward_layers(read, layers, moe=experts > 1)
    dense = dense_layers * _dense(read) if dense_layers else 0
    if not moe_layers:
        return dense, dense
    chosen = _chosen(read)
    one, always = _expert(read), _always(read, experts)
    return (
        dense + moe_layers * (experts * one + always),
        dense + moe_layers * (chosen * one + always),
    )


def _by_multiplier(read: Reader, multiplier: float) -> int:
    """The width of a feed-forward given as a multiple, rounded up to 256 (Llama-Nemotron)."""
    return -(-int(2 * multiplier * read.hidden() / 3) // 256) * 256


def _experts(read: Reader) -> int:
    return read.whole(
        "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", default=0
    )


def _chosen(read: Reader) -> int:
    return read.whole(
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_topk",
        "moe_top_k",
        "moe_k",
    )


def _expert_choice(read: Reader) -> float | None:
    experts = _experts(read)
    return _chosen(read) / experts if experts > 1 else None


def _forward_layers(read: Reader, layers: int, *, moe: bool) -> tuple[int, int]:
    """(ordinary, MoE) feed-forwards among the layers."""
    if read.letters():
        return read.letters().count("-"), read.letters().count("E")
    if not moe:
        return layers, 0
    dense = _dense_layers(read, layers)
    return dense, layers // 2 if read.family == "longcat_flash" else layers - dense


def _dense(read: Reader) -> int:
    hidden = read.hidden()
    plain = read.family in _PLAIN_MLP
    wide = (
        read.whole(
            "intermediate_size_mlp",
            "intermediate_size",
            "block_ff_dim",
            "n_inner",
            "ffn_hidden_size",
            "ffn_dim",
            "hidden_dim",
            "ff_intermediate_size",
            "inner_dim",
            default=4 * hidden if plain or read.family.startswith("rwkv") else None,
        )
        or 4 * hidden
    )
    if read.flag("block_auto_adjust_ff_dim"):
        step = max(1, read.whole("block_multiple_of", default=256))
        wide = -(-(2 * wide // 3) // step) * step
    if read.family == "recurrent_gemma":
        # Its figure holds the gate as well.
        wide //= 2
    return _dense_of(read, wide)


def _dense_of(read: Reader, wide: int) -> int:
    """An ordinary feed-forward of a width."""
    hidden = read.hidden()
    plain = read.family in _PLAIN_MLP or read.family.startswith("rwkv")
    count = (2 if plain else 3) * hidden * wide
    biased = {"gpt2", "gpt_neox", "gpt_bigcode", "opt", "bloom", "phi", "starcoder2"}
    return count + (wide + hidden if read.family in biased else 0)


def _expert(read: Reader) -> int:
    hidden = read.hidden()
    wide = read.whole(
        "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", "ffn_hidden_size"
    )
    if read.family in _PLAIN_MLP:
        # Nemotron 3's experts work on a narrower copy of the stream.
        return 2 * (read.whole("moe_latent_size", default=0) or hidden) * wide
    count = 3 * hidden * wide
    return count + 2 * wide + hidden if read.family == "gpt_oss" else count


def _always(read: Reader, experts: int) -> int:
    """The router and what every token passes: shared experts."""
    hidden = read.hidden()
    wide = read.whole(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        default=0,
    )
    if not wide:
        shared = read.whole(
            "n_shared_experts",
            "num_shared_experts",
            "num_shared_expert",
            "moe_num_shared_experts",
            # Llama 4 has one and doesn't say so.
            default=1 if read.family.startswith("llama4") else 0,
        )
        wide = shared * read.whole("moe_intermediate_size", "intermediate_size") if shared else 0
    gate = hidden if read.family == "qwen2_moe" else 0
    bias = experts if read.family == "gpt_oss" else 0
    latent = 2 * hidden * read.whole("moe_latent_size", default=0)
    matrices = 2 if read.family in _PLAIN_MLP else 3
    return hidden * experts + matrices * hidden * wide + gate + bias + latent


def _dense_layers(read: Reader, layers: int) -> int:
    """Layers of an MoE model that have an ordinary feed-forward."""
    period = read.whole("expert_layer_period", default=0)
    if period > 1:
        offset = read.whole("expert_layer_offset", default=0)
        return sum(i % period != offset for i in range(layers))
    start = read.whole("moe_layer_start_index", default=0)
    if start:
        return min(layers, start)
    kinds = read.words("mlp_layer_types")
    if kinds is not None:
        return sum(kind == "dense" for kind in kinds[:layers])
    if read.family == "longcat_flash":
        # Each of its layers has two ordinary ones beside its experts.
        return layers
    listed = read.words("mlp_only_layers")
    first = read.whole("first_k_dense_replace", "num_dense_layers", default=0)
    step = read.whole("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    stepped = layers - layers // step if step > 1 else 0
    return min(layers, len(listed or ()) + first + stepped)
