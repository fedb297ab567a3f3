"""Reads a model's shape out of a Hugging Face config.json, whatever names it uses.

What a family leaves to its class's defaults is taken from `_FAMILY_DEFAULTS` (the default
values of the configuration classes in transformers 5). What can't be known is an error that
names the missing key: a guessed KV size would make every later figure wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from homesplit.core.config_reader import KV_KEYS, QUERY_KEYS, Config, ConfigReader, Heads
from homesplit.core.model_parameters import count_parameters, mamba_heads_width
from homesplit.core.not_decoders import refuse_encoders
from homesplit.core.shape import (
    LayerGroup,
    ModelShape,
    attention_words,
    dtype_name,
    weights_bytes,
)
from homesplit.errors import ProfileError

_NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "thinker_config",
)

_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256},
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "sliding_window": 4096,
    },
    "gemma4_text": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 512},
    "gemma3n_text": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 2},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "llama4_text": {"attention_chunk_size": 8192},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "starcoder2": {"num_key_value_heads": 2},
}


def text_part(config: Config) -> Config:
    """The language model's part of a multimodal config, with the family's defaults under it."""
    inner: Config = config
    for name in _NESTED:
        part = inner.get(name)
        if isinstance(part, Mapping) and part:
            outer = {key: inner[key] for key in ("torch_dtype", "dtype") if inner.get(key)}
            inner = {**outer, **part}
    family = str(inner.get("model_type") or "")
    if not family and inner is not config:
        family = str(config.get("model_type", "")) + "_text"
    defaults = _FAMILY_DEFAULTS.get(family, {})
    given = {key: value for key, value in inner.items() if value is not None}
    forward = given.get("ffn_config")
    if isinstance(forward, Mapping):
        # DBRX keeps its experts in a table of their own.
        given = {**{str(key): value for key, value in forward.items()}, **given}
    return {**defaults, **given, "model_type": family or str(config.get("model_type", ""))}


def shape_from_config(
    config: Config,
    *,
    name: str,
    source: str = "config.json",
    parameters: int | None = None,
    file_bytes: int | None = None,
    dtype: str | None = None,
) -> ModelShape:
    """The shape that a config.json describes.

    `parameters` and `file_bytes` come from the weight files' own headers when there are any
    and beat what the config implies; `dtype` overrides the config's. Raises ProfileError
    naming the missing key.
    """
    refuse_encoders(config, source)
    text = text_part(config)
    read = ConfigReader(text, source)
    groups = layer_groups(read)
    counts = count_parameters(read, groups)
    total = parameters or counts.total
    told = dtype or str(text.get("torch_dtype") or text.get("dtype") or "bf16")
    kept_as = dtype_name(told, where=source)
    quantised = _quantised_dtype(config) if dtype is None else None
    kept_as = quantised or kept_as
    mla = "kv_lora_rank" in text
    heads = read.query_heads() if any(text.get(key) for key in QUERY_KEYS[:3]) else 0
    return ModelShape(
        name=name,
        parameters=total,
        active_parameters=min(counts.active, total),
        embedding_parameters=counts.embedding,
        head_parameters=counts.head,
        weights_bytes=file_bytes or weights_bytes(total, kept_as),
        dtype=kept_as,
        groups=groups,
        attention=attention_words(
            groups,
            heads=heads,
            kv_heads=None if mla or not heads or "block_configs" in text else read.kv_heads(),
            mla=mla,
        ),
        vocabulary=read.whole("vocab_size", "padded_vocab_size", default=0) or None,
        hidden=read.hidden(),
        max_context=read.whole(
            "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=0
        )
        or None,
        expert_choice=counts.expert_choice,
        source=source,
    )


def _quantised_dtype(config: Config) -> str | None:
    """The format that a config's quantization_config keeps its weights in, None when plain."""
    # MLX writes its own under another name.
    settings = config.get("quantization_config") or config.get("quantization")
    if not isinstance(settings, Mapping):
        return None
    method = str(settings.get("quant_method", ""))
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method == "mxfp4":
        return "mxfp4"
    algorithm = str(settings.get("quant_algo") or settings.get("format") or "").lower()
    if "nvfp4" in algorithm:
        return "nvfp4"
    if algorithm == "fp8" or algorithm == "float-quantized":
        return "fp8"
    bits = settings.get("bits") or settings.get("w_bit") or _group_bits(settings)
    if settings.get("load_in_4bit"):
        bits = 4
    if settings.get("load_in_8bit"):
        bits = 8
    return _BY_BITS.get(round(bits)) if isinstance(bits, (int, float)) else None


_BY_BITS = {2: "q2_k", 3: "q3_k_m", 4: "int4", 5: "q5_k_m", 6: "q6_k", 8: "int8"}


def _group_bits(settings: Config) -> Any:
    """Bits of the weights where they are named group by group (compressed-tensors)."""
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("num_bits"):
            return weights["num_bits"]
    return None


_FULL = {
    "full_attention",
    "attention",
    "global",
    "global_attention",
    "indexed_attention",
    "full",
    "*",
    "G",
}
_COMPRESSED = {
    "compressed_sparse_attention": "compressed",
    "heavily_compressed_attention": "heavily compressed",
}
"""DeepSeek V4: what lies behind a short window is kept as one entry for several tokens."""
_SLIDING = {"sliding_attention", "sliding", "local", "local_attention", "chunked_attention", "L"}
_ATTENDING = {"full", "sliding"}
_RECURRENT = {"linear_attention", "mamba", "mamba2", "recurrent", "rglru", "conv", "M", "ssm"}
_NO_ATTENTION = {"mlp", "moe", "-", "E", "none"}


_RWKV = ("rwkv", "rwkv5", "rwkv6", "rwkv7")
RECURRENT_FAMILIES = ("mamba", "mamba2", "falcon_mamba", *_RWKV)
"""Without attention, and without feed-forwards beside their blocks."""


def layer_kinds(read: ConfigReader) -> tuple[str, ...]:
    """The kind of each layer.

    One of `full`, `sliding`, `compressed`, `heavily compressed`, `recurrent`, `hybrid`, `cross`,
    `none`.
    """
    count = read.layers()
    if read.family in RECURRENT_FAMILIES:
        return ("recurrent",) * count
    if read.family == "falcon_h1":
        return ("hybrid",) * count
    ratios = read.numbers("compress_ratios")
    if ratios:
        known = {0: "sliding", 4: "compressed", 128: "heavily compressed"}
        return tuple(known.get(each, "unknown") for each in ratios[:count])
    named = _named_kinds(read, count) or _period_kinds(read, count)
    if named is not None:
        return named
    looks_recurrent = [
        key
        for key in ("mamba_num_heads", "mamba_d_state", "ssm_state_size", "linear_num_value_heads")
        if key in read.config
    ]
    if looks_recurrent:
        if "num_attention_heads" not in read.config:
            return ("recurrent",) * count
        raise read.missing(
            f"which layers keep a KV cache ('{looks_recurrent[0]}' says that some are recurrent)",
            "layer_types",
            "full_attention_interval",
            "hybrid_override_pattern",
        )
    return _window_kinds(read, count)


def _named_kinds(read: ConfigReader, count: int) -> tuple[str, ...] | None:
    """Kinds from a list or a pattern that names each layer."""
    names = read.words("layer_types", "layers_block_type", "block_types", "attention_layers")
    pattern = read.config.get("sliding_window_pattern")
    if read.letters():
        names = tuple(read.letters())
    elif names is None and isinstance(pattern, str) and pattern:
        names = tuple(pattern)
    if names is None:
        return None
    if len(names) < count:
        names = tuple(names[index % len(names)] for index in range(count))
    kinds: list[str] = []
    for name in names[:count]:
        if name in _FULL and "attention_window_size" in read.config:
            kinds.append("sliding")
        elif name in _FULL:
            kinds.append("full")
        elif name in _COMPRESSED:
            kinds.append(_COMPRESSED[name])
        elif name == "hybrid":
            kinds.append("hybrid")
        elif name in _SLIDING:
            kinds.append("sliding")
        elif name in _RECURRENT:
            kinds.append("recurrent")
        elif name in _NO_ATTENTION:
            kinds.append("none")
        else:
            raise ProfileError(
                f"a layer of the kind '{name}' is unknown, so its cache can't be known.",
                where=read.source,
            )
    return tuple(kinds)


def _period_kinds(read: ConfigReader, count: int) -> tuple[str, ...] | None:
    """Kinds from 'every n-th layer attends', as Qwen3-Next, Jamba, Bamba and LFM2 write it."""
    interval = read.whole("full_attention_interval", default=0)
    if interval:
        return tuple("recurrent" if (i + 1) % interval else "full" for i in range(count))
    period = read.whole("attn_layer_period", default=0)
    if period:
        offset = read.whole("attn_layer_offset", default=0)
        return tuple("full" if i % period == offset else "recurrent" for i in range(count))
    windowed = read.numbers("hybrid_layer_pattern")
    if windowed:
        # MiMo marks the layers with a window.
        return tuple("sliding" if windowed[i % len(windowed)] else "full" for i in range(count))
    told = read.numbers("attn_type_list")
    if told is not None:
        if not told:
            raise ProfileError("'attn_type_list' names no layer.", where=read.source)
        return tuple("full" if told[i % len(told)] else "recurrent" for i in range(count))
    if linear := read.part("linear_attn_config"):
        # Kimi Linear counts its layers from 1.
        attending = linear.numbers("full_attn_layers") or ()
        return tuple("full" if i + 1 in attending else "recurrent" for i in range(count))
    crossing = read.numbers("cross_attention_layers")
    if crossing is not None:
        return tuple("cross" if i in crossing else "full" for i in range(count))
    if read.whole("attention_chunk_size", default=0):
        # Llama 4: layers with rotary positions attend within a chunk, every fourth has none.
        local = read.numbers("no_rope_layers") or tuple(int((i + 1) % 4 > 0) for i in range(count))
        return tuple("sliding" if local[i % len(local)] else "full" for i in range(count))
    absent = read.per_layer("attention", "no_op")
    if absent is not None:
        return tuple("none" if gone else "full" for gone in absent[:count])
    for key in ("attn_layer_indices", "full_attn_idxs"):
        indices = read.config.get(key)
        if isinstance(indices, Sequence) and not isinstance(indices, str):
            return tuple("full" if i in indices else "recurrent" for i in range(count))
    return None


def _window_kinds(read: ConfigReader, count: int) -> tuple[str, ...]:
    """Kinds of a model whose layers all attend, some of them through a window."""
    window = read.whole("sliding_window", default=0)
    if not window or read.config.get("use_sliding_window") is False:
        return ("full",) * count
    if window >= read.whole("max_position_embeddings", default=1 << 62):
        # Never full, so it keeps everything.
        return ("full",) * count
    if read.family in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"):
        if not read.flag("use_sliding_window"):
            return ("full",) * count
        first = read.whole("max_window_layers", default=count)
        return tuple("sliding" if i >= first else "full" for i in range(count))
    if read.family in ("gemma2", "gpt_oss"):
        return tuple("full" if i % 2 else "sliding" for i in range(count))
    pattern = read.whole("sliding_window_pattern", "_sliding_window_pattern", default=0)
    if not pattern and read.family.startswith("gemma3"):
        pattern = 5 if read.family.startswith("gemma3n") else 6
    if not pattern and read.family.startswith("cohere2"):
        pattern = 4
    if pattern:
        return tuple("sliding" if (i + 1) % pattern else "full" for i in range(count))
    return ("sliding",) * count


def layer_groups(read: ConfigReader) -> tuple[LayerGroup, ...]:
    """Layers gathered by how they keep their past; raises ProfileError on what is missing."""
    kinds = _with_shared(read, layer_kinds(read))
    alike = Counter(zip(kinds, _counts_by_layer(read, len(kinds)), strict=True))
    return tuple(
        _group(read, kind, counts, layers)
        for (kind, counts), layers in sorted(alike.items(), key=_place)
    )


_Counts = tuple[int | None, int | None, int | None]
"""Query heads, KV heads and width of one layer where layers differ; None as everywhere else."""


def _place(group: tuple[tuple[str, _Counts], int]) -> tuple[str, list[int]]:
    """By which groups are sorted: their kind, then their counts."""
    (kind, counts), _ = group
    return kind, [-1 if count is None else count for count in counts]


def _counts_by_layer(read: ConfigReader, count: int) -> list[_Counts]:
    """Heads of each layer, where a list says so."""
    query, kv = read.numbers(*QUERY_KEYS), read.numbers(*KV_KEYS)
    sharing = read.per_layer("attention", "n_heads_in_group")
    if sharing is not None:
        kv = tuple(read.query_heads() // int(each) if int(each or 0) else 0 for each in sharing)
    for listed in (query, kv):
        if listed and min(listed) < 0:
            raise ProfileError("a layer has fewer than 0 heads.", where=read.source)
        if listed and len(listed) < count:
            raise ProfileError(
                f"a list names the heads of {len(listed)} layers, the model has {count}.",
                where=read.source,
            )
    made: list[_Counts] = [
        (query[i] if query else None, kv[i] if kv else None, None) for i in range(count)
    ]
    # What transformers writes of layers that differ, by their numbers.
    own = read.config.get("per_layer_config")
    for name, held in own.items() if isinstance(own, Mapping) else ():
        if str(name).isdecimal() and int(name) < count and isinstance(held, Mapping):
            layer = ConfigReader(held, f"{read.source}: per_layer_config")
            made[int(name)] = (
                _told(layer, "num_attention_heads"),
                _told(layer, "num_key_value_heads"),
                _told(layer, "head_dim"),
            )
    return made


def _told(layer: ConfigReader, key: str) -> int | None:
    return None if layer.config.get(key) is None else layer.whole(key)


def _group(read: ConfigReader, kind: str, counts: _Counts, layers: int) -> LayerGroup:
    """Layers of one kind with the same heads; without a head they don't attend."""
    if 0 in counts and kind in _ATTENDING:
        kind = "none"
    match kind:
        case "full" | "shared":
            return _attending(read, kind, counts, layers)
        case "sliding" | "shared sliding":
            return _sliding(read, kind, counts, layers)
        case "hybrid":
            both = _attending(read, "full", counts, layers)
            return structs.replace(both, state_elements=_state_elements(read))
        case "compressed" | "heavily compressed":
            return _compressed(read, kind, layers)
        case "recurrent":
            return LayerGroup(kind="recurrent", layers=layers, state_elements=_state_elements(read))
        case "cross":
            return LayerGroup(kind="cross", layers=layers)
        case "unknown":
            raise ProfileError(
                "'compress_ratios' names a ratio that is unknown, so its cache can't be known.",
                where=read.source,
            )
        case _:
            return LayerGroup(kind="none", layers=layers)


def _with_counts(heads: Heads, counts: _Counts) -> Heads:
    query, kv, width = counts
    return Heads(
        query=heads.query if query is None else query,
        kv=heads.kv if kv is None else kv,
        key_dim=heads.key_dim if width is None else width,
        value_dim=heads.value_dim if width is None else width,
    )


def _with_shared(read: ConfigReader, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Marks the layers that use another layer's KV (Gemma 3n and 4, Hunyuan's CLA)."""
    shared = read.whole("num_kv_shared_layers", default=0)
    if shared >= len(kinds):
        raise ProfileError(
            f"'num_kv_shared_layers' is {shared} of {len(kinds)} layers.", where=read.source
        )
    if shared:
        own = len(kinds) - shared
        return (*kinds[:own], *(_SHARED.get(kind, "shared") for kind in kinds[own:]))
    factor = read.whole("cla_share_factor", default=0) if read.flag("use_cla") else 0
    if factor > 1:
        return tuple(
            _SHARED.get(kind, "shared") if i % factor else kind for i, kind in enumerate(kinds)
        )
    return kinds


_SHARED = {"sliding": "shared sliding"}
"""Kinds of layers that attend to another one's KV, where they see only a window of it."""


def _attending(read: ConfigReader, kind: str, counts: _Counts, layers: int) -> LayerGroup:
    """Layers that attend to everything, with a cache of their own unless `shared`."""
    latent = read.whole("kv_lora_rank", default=0)
    if latent:
        rope = read.whole("qk_rope_head_dim")
        width = read.query_heads() * (
            read.whole("qk_nope_head_dim") + rope + read.whole("v_head_dim")
        )
        # DeepSeek Sparse Attention finds its tokens by keys of their own, which are kept too.
        index = read.whole("index_head_dim", default=0)
        return LayerGroup(
            kind="full", layers=layers, kv_elements=latent + rope + index, attention_width=width
        )
    heads = _with_counts(read.full_heads(), counts)
    return LayerGroup(
        kind="full" if kind == "full" else "shared",
        layers=layers,
        kv_elements=heads.kv_elements if kind == "full" else 0,
        attention_width=heads.width,
    )


def _compressed(read: ConfigReader, kind: str, layers: int) -> LayerGroup:
    """Layers that keep a short window, and one entry for every so many tokens behind it.

    Keys and values are one and the same there. The sparse kind finds its entries by index keys.
    """
    width, window = read.head_dim(), read.whole("sliding_window", default=128)
    query, sparse = read.query_heads(), kind == "compressed"
    rates = read.part("compress_rates")
    names = {kind: name for name, kind in _COMPRESSED.items()}
    rate = rates.whole(names[kind]) if rates else (4 if sparse else 128)
    index = read.whole("index_head_dim", default=0) if sparse else 0
    asks = read.whole("index_n_heads", default=0) * index if sparse else 2 * query * width
    return LayerGroup(
        kind="full",
        layers=layers,
        kv_elements=(width + index) // max(rate, 1),
        attention_width=asks // max(rate, 1),
        state_elements=window * width,
    )


def _sliding(read: ConfigReader, kind: str, counts: _Counts, layers: int) -> LayerGroup:
    """Layers that attend to the last tokens alone, with a cache of their own unless shared."""
    heads = _with_counts(read.sliding_heads(), counts)
    window = read.whole(
        "sliding_window",
        "attention_chunk_size",
        "attention_window_size",
        "local_attention_window",
        "sliding_window_size",
        "window_size",
    )
    return LayerGroup(
        kind="sliding" if kind == "sliding" else "shared",
        layers=layers,
        kv_elements=heads.kv_elements if kind == "sliding" else 0,
        window=window,
        attention_width=heads.width,
    )


def _delta_state(heads: int, width: int, kernel: int) -> int:
    """A matrix for each head, and the last tokens of three short convolutions."""
    return heads * width * (width + 3 * (kernel - 1))


def _state_elements(read: ConfigReader) -> int:
    """Numbers of state that one recurrent layer keeps for a conversation."""
    config = read.config
    if "linear_num_value_heads" in config:
        values = read.whole("linear_num_value_heads") * read.whole("linear_value_head_dim")
        keys = read.whole("linear_num_key_heads") * read.whole("linear_key_head_dim")
        window = read.whole("linear_conv_kernel_dim", default=4) - 1
        return values * read.whole("linear_key_head_dim") + window * (2 * keys + values)
    if linear := read.part("linear_attn_config"):
        return _delta_state(
            linear.whole("num_heads"),
            linear.whole("head_dim"),
            linear.whole("short_conv_kernel_size", default=4),
        )
    if "linear_num_heads" in config:
        return _delta_state(
            read.whole("linear_num_heads"),
            read.whole("linear_head_dim"),
            read.whole("linear_conv_kernel_dim", default=4),
        )
    if "layer_group_size" in config:
        # Ling's hybrids: as many heads as attention has.
        kernel = read.whole("short_conv_kernel_size", default=1)
        return _delta_state(read.query_heads(), read.head_dim(), kernel)
    if read.family in _RWKV:
        # A matrix for each head and two earlier tokens; RWKV 4 keeps five rows.
        head = read.whole("head_dim", "head_size", "rwkv_head_size", default=64)
        return (5 if read.family == "rwkv" else head + 2) * read.hidden()
    if read.family.startswith("minimax"):
        return read.query_heads() * read.head_dim() ** 2
    inner = mamba_heads_width(read)
    if inner:
        state = read.whole("ssm_state_size", "mamba_d_state", "state_size")
        window = read.whole("conv_kernel", "mamba_d_conv", default=4) - 1
        groups = read.whole("n_groups", "mamba_n_groups", "mamba_ngroups", default=1)
        return inner * state + window * (inner + 2 * groups * state)
    if "mamba_d_state" in config or "state_size" in config:
        inner = read.whole("mamba_expand", "expand", default=2) * read.hidden()
        state = read.whole("mamba_d_state", "state_size")
        return inner * (state + read.whole("mamba_d_conv", "conv_kernel", default=4) - 1)
    if "lru_width" in config or "conv_L_cache" in config:
        width = read.whole("lru_width", default=read.hidden())
        return width * read.whole("conv1d_width", "conv_L_cache", default=4)
    raise read.missing(
        "the state of the recurrent layers", "linear_num_value_heads", "mamba_num_heads"
    )
