"""A model's shape: what its weights weigh, what its KV cache takes, what its arithmetic costs.

Shapes are read from a config.json by `core.model_config`, from a GGUF header by
`core.gguf_config` and from a profile by `shape_from_profile` here; all give a `ModelShape`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, structs

from homesplit.errors import ProfileError

LayerKind = Literal["full", "sliding", "recurrent", "shared", "cross", "none"]

DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "q8_0": 1.0625,
    "q6_k": 0.8203,
    "q5_k_m": 0.711,
    "q5_k_s": 0.696,
    "q5_1": 0.75,
    "q5_0": 0.6875,
    "q4_k_m": 0.606,
    "q4_k_s": 0.583,
    "q4_0": 0.5625,
    "q4_1": 0.625,
    "iq4_nl": 0.585,
    "iq4_xs": 0.557,
    "int4": 0.5625,
    "mxfp4": 0.5313,
    "nvfp4": 0.5625,
    "q3_k_l": 0.537,
    "q3_k_m": 0.489,
    "q3_k_s": 0.455,
    "iq3_m": 0.470,
    "iq3_s": 0.458,
    "iq3_xs": 0.437,
    "iq3_xxs": 0.407,
    "q2_k": 0.42,
    "q2_k_s": 0.371,
    "iq2_m": 0.366,
    "iq2_s": 0.343,
    "iq2_xs": 0.324,
    "iq2_xxs": 0.298,
    "iq1_m": 0.268,
    "iq1_s": 0.251,
}
"""Bytes per parameter. Block formats carry their scales: llama.cpp's `llama-quantize` table
(Q4_K_M 4.85, Q5_K_M 5.69, Q3_K_M 3.91, Q2_K 3.35 bits on Llama 3 8B; the rest by its newer table
for Llama 3.1 8B), OCP MX v1.0 for MXFP4 (4 bits and one 8-bit scale per 32), NVIDIA's NVFP4 (one
8-bit scale per 16)."""

_DTYPE_NAMES = {
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8",
    "i8": "int8",
    "q8": "q8_0",
    "q6": "q6_k",
    "q5": "q5_k_m",
    "q3": "q3_k_m",
    "q2": "q2_k",
    "8bit": "int8",
    "q4": "q4_k_m",
    "4bit": "int4",
    "awq": "int4",
    "gptq": "int4",
}


def dtype_name(text: str, *, where: str | None = None) -> str:
    """Our name of a number format (`float16` and `F16` are `fp16`); raises ProfileError."""
    plain = text.lower().removeprefix("torch.").replace("-", "_")
    name = _DTYPE_NAMES.get(plain, _DTYPE_NAMES.get(plain.replace("_", ""), plain))
    if name not in DTYPE_BYTES:
        raise ProfileError(
            f"'{text}' is no number format that we know.",
            where=where,
            do_next=f"Use one of {', '.join(sorted(DTYPE_BYTES))}.",
        )
    return name


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Layers that keep their past in the same way."""

    kind: LayerKind
    layers: int
    kv_elements: int = 0
    """Numbers that one layer keeps per token: 2 x KV heads x head_dim, or the MLA latent."""
    window: int | None = None
    """Tokens that a sliding layer looks back on and keeps."""
    attention_width: int = 0
    """Query heads x (key width + value width): what one pair of tokens costs in arithmetic."""
    state_elements: int = 0
    """Numbers that one recurrent layer keeps per conversation, however long that is."""


class ModelShape(Struct, frozen=True, kw_only=True):
    """What a model weighs and costs, whatever its file format.

    `attention` names the kind in words (`GQA`, `MLA`, …). Where the parameters' number is
    only stated by a profile, `counted` is False.
    """

    name: str
    parameters: int
    active_parameters: int
    """Parameters that one token's pass multiplies with (MoE: the chosen experts)."""
    embedding_parameters: int = 0
    """Parameters that a token only looks up, which cost no arithmetic."""
    head_parameters: int = 0
    """The output head's, which a prompt pays for its last token only."""
    weights_bytes: int
    table_bytes: int = 0
    """Of these, what tokens only look up, where that has another format; 0 where all is alike."""
    dtype: str
    groups: tuple[LayerGroup, ...]
    attention: str
    vocabulary: int | None = None
    hidden: int | None = None
    max_context: int | None = None
    expert_choice: float | None = None
    """Experts chosen per token over experts there are; None for a dense model or when unknown."""
    counted: bool = True
    source: str = ""

    @property
    def layers(self) -> int:
        """All layers, with or without a cache of their own."""
        return sum(group.layers for group in self.groups)

    def kv_bytes_per_token(self, kv_dtype: str = "fp16") -> int:
        """KV bytes that one more token takes while no sliding window is full."""
        elements = sum(group.layers * group.kv_elements for group in self.groups)
        return round(elements * DTYPE_BYTES[kv_dtype])

    def kv_bytes_per_token_beyond_windows(self, kv_dtype: str = "fp16") -> int:
        """KV bytes that one more token takes once every sliding window is full."""
        elements = sum(g.layers * g.kv_elements for g in self.groups if g.window is None)
        return round(elements * DTYPE_BYTES[kv_dtype])

    def state_bytes(self, kv_dtype: str = "fp16") -> int:
        """Bytes that the recurrent layers keep of one conversation, however long it is."""
        elements = sum(group.layers * group.state_elements for group in self.groups)
        return round(elements * DTYPE_BYTES[kv_dtype])

    def handoff_bytes(self, tokens: int, kv_dtype: str = "fp16", *, last: bool = True) -> float:
        """What goes over a link after `tokens` were read; the state goes with the `last` ones."""
        state = self.state_bytes(kv_dtype) if last else 0
        return float(tokens * self.kv_bytes_per_token(kv_dtype) + state)

    def kv_bytes(self, tokens: int, kv_dtype: str = "fp16") -> int:
        """KV bytes of one conversation of `tokens`: windows cap, recurrent state counts whole."""
        total = 0
        for group in self.groups:
            kept = tokens if group.window is None else min(tokens, group.window)
            state = group.state_elements if tokens else 0
            total += group.layers * (group.kv_elements * kept + state)
        return round(total * DTYPE_BYTES[kv_dtype])

    def matmul_flops(self, tokens: int, *, heads: int) -> float:
        """Operations of the weight matrices over `tokens`, of which `heads` need the output."""
        body = self.active_parameters - self.embedding_parameters - self.head_parameters
        return 2.0 * (body * tokens + self.head_parameters * heads)

    def attention_flops(self, tokens: int, cached: int = 0) -> float:
        """Operations of attention while `tokens` are read after `cached` ones."""
        total = 0.0
        for group in self.groups:
            if group.attention_width:
                pairs = _pairs(tokens, cached, group.window)
                total += 2.0 * group.layers * group.attention_width * pairs
        return total

    def prefill_flops(self, tokens: int, cached: int = 0) -> float:
        """Floating-point operations of reading `tokens` after `cached` ones are there."""
        if tokens <= 0:
            return 0.0
        return self.matmul_flops(tokens, heads=1) + self.attention_flops(tokens, cached)

    def batch_kv_bytes(self, batch: int, context_tokens: int, kv_dtype: str = "fp16") -> float:
        """KV bytes that one decode step reads for `batch` requests of `context_tokens` in all."""
        each = context_tokens / batch
        elements = 0.0
        for g in self.groups:
            kept = each if g.window is None or each < g.window else g.window
            elements += g.layers * (g.kv_elements * kept + g.state_elements)
        return batch * elements * DTYPE_BYTES[kv_dtype]

    def step_weight_bytes(self, tokens: int) -> float:
        """Weight bytes that one step over `tokens` tokens reads; MoE: the experts they hit.

        With experts chosen evenly, tokens hit a share 1 - (1 - c)^tokens of them, where `c`
        is the share that one token chooses.
        """
        per_parameter = self._bytes_per_parameter()
        idle = self.parameters - self.active_parameters
        read = self.parameters - self.embedding_parameters
        if idle > 0 and tokens > 0:
            chosen = self.expert_choice or self.active_parameters / self.parameters
            experts = idle / (1.0 - chosen) if chosen < 1.0 else 0.0
            read -= experts * (1.0 - chosen) ** tokens
        return max(read, 0) * per_parameter

    def _bytes_per_parameter(self) -> float:
        """Of the parameters that a step multiplies with."""
        if not self.table_bytes:
            return self.weights_bytes / self.parameters
        multiplied = self.parameters - self.embedding_parameters
        return (self.weights_bytes - self.table_bytes) / multiplied

    def with_int8_linears(self) -> ModelShape:
        """The same model with its linear layers in 8 bits, as `up --weights int8` keeps it.

        What is looked up stays as it is; an output head that shares that table becomes a
        quantised one of its own.
        """
        wide = self.weights_bytes / self.parameters
        looked_up = self.embedding_parameters or self.head_parameters
        table = round(looked_up * wide)
        linear = round((self.parameters - self.embedding_parameters) * DTYPE_BYTES["int8"])
        return structs.replace(self, weights_bytes=table + linear, table_bytes=table)

    def with_dtype(self, dtype: str) -> ModelShape:
        """The same model with its weights kept in another number format."""
        name = dtype_name(dtype)
        size = weights_bytes(self.parameters, name)
        return structs.replace(self, dtype=name, weights_bytes=size, table_bytes=0)


def _pairs(tokens: int, cached: int, window: int | None) -> float:
    """Query-key pairs of `tokens` causal queries after `cached` tokens, at most `window` each."""
    first, last = cached + 1, cached + tokens
    if window is None or last <= window:
        return tokens * (first + last) / 2.0
    if first > window:
        return float(tokens * window)
    growing = window - cached
    return growing * (first + window) / 2.0 + (tokens - growing) * window


def weights_bytes(parameters: int, dtype: str) -> int:
    """Bytes of `parameters` in a number format."""
    return round(parameters * DTYPE_BYTES[dtype_name(dtype)])


_PROFILE_KEYS = {
    "name",
    "parameters",
    "active_parameters",
    "expert_choice",
    "embedding_parameters",
    "head_parameters",
    "weights_bytes",
    "dtype",
    "layers",
    "kv_heads",
    "head_dim",
    "heads",
    "hidden",
    "vocabulary",
    "max_context",
    "latent_elements",
    "sliding_layers",
    "sliding_window",
    "sliding_kv_heads",
    "sliding_head_dim",
    "shared_layers",
    "recurrent_layers",
    "state_elements",
    "plain_layers",
    "tied",
    "source",
    "date",
    "description",
    "aliases",
}


def shape_from_profile(profile: Mapping[str, Any], *, where: str) -> ModelShape:
    """A shape from a profile's table; raises ProfileError naming the key that is wrong or missing.

    `layers` counts all; of them `sliding_layers` keep `sliding_window` tokens,
    `recurrent_layers` keep `state_elements` each, `shared_layers` attend but keep nothing and
    `plain_layers` do neither. An MLA model gives `latent_elements` in place of `kv_heads` and
    `head_dim`.
    """
    unknown = sorted(set(profile) - _PROFILE_KEYS)
    if unknown:
        raise ProfileError(
            f"the key '{unknown[0]}' is unknown in a model profile.",
            where=where,
            do_next=f"Known keys: {', '.join(sorted(_PROFILE_KEYS))}.",
        )
    need = _Needed(profile, where)
    layers = need.count("layers")
    groups = _profile_groups(need, layers)
    parameters = need.count("parameters")
    dtype = dtype_name(str(profile.get("dtype", "fp16")), where=where)
    active = need.count("active_parameters", parameters)
    hidden, vocabulary = need.count("hidden", 0), need.count("vocabulary", 0)
    table = hidden * vocabulary
    tied = bool(profile.get("tied", False))
    if active > parameters:
        raise ProfileError("'active_parameters' is larger than 'parameters'.", where=where)
    embedding = need.count("embedding_parameters", 0 if tied else table)
    head = need.count("head_parameters", table)
    if active < embedding + head:
        said = "'active_parameters' is less than the embedding and the output head have."
        raise ProfileError(said, where=where)
    return ModelShape(
        name=name_of(profile, where),
        parameters=parameters,
        active_parameters=active,
        embedding_parameters=embedding,
        head_parameters=head,
        weights_bytes=need.count("weights_bytes", weights_bytes(parameters, dtype)),
        dtype=dtype,
        groups=groups,
        attention=attention_words(groups, heads=need.count("heads", 0)),
        vocabulary=vocabulary or None,
        hidden=hidden or None,
        max_context=need.count("max_context", 0) or None,
        expert_choice=_share(profile.get("expert_choice"), where),
        counted=False,
        source=f"profile: {where}",
    )


def name_of(profile: Mapping[str, Any], where: str) -> str:
    """A profile's name, its place where it has none; raises ProfileError where it is no text."""
    name = profile.get("name", where)
    if not isinstance(name, str) or not name:
        raise ProfileError("'name' is no text.", where=where)
    return name


_MOST = {"layers": 10_000, "parameters": 1 << 56, "weights_bytes": 1 << 60}
"""No model that exists is near these; any other count is below 2^40."""
_NEVER_NONE = {"layers", "parameters", "active_parameters", "weights_bytes", "sliding_window"}
"""Counts that are above 0 wherever they are told."""


class _Needed:
    """Reads whole positive numbers of a profile and names the one that is missing."""

    def __init__(self, profile: Mapping[str, Any], where: str) -> None:
        self.profile = profile
        self.where = where

    def count(self, key: str, default: int | None = None) -> int:
        value = self.profile.get(key, default)
        if value is None:
            raise ProfileError(f"'{key}' is missing.", where=self.where)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ProfileError(f"'{key}' is not a number of 0 or more.", where=self.where)
        if value == float("inf") or value != value or int(value) != value:
            raise ProfileError(f"'{key}' is not a whole number.", where=self.where)
        if value == 0 and key in _NEVER_NONE and key in self.profile:
            raise ProfileError(f"'{key}' is 0.", where=self.where)
        if value > _MOST.get(key, 1 << 40):
            raise ProfileError(f"'{key}' is more than any model has.", where=self.where)
        return int(value)


def _share(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ProfileError("'expert_choice' is no share between 0 and 1.", where=where)
    return float(value)


def _profile_groups(need: _Needed, layers: int) -> tuple[LayerGroup, ...]:
    sliding = need.count("sliding_layers", 0)
    shared = need.count("shared_layers", 0)
    recurrent = need.count("recurrent_layers", 0)
    plain = need.count("plain_layers", 0)
    full = layers - sliding - shared - recurrent - plain
    if layers < 1 or full < 0:
        raise ProfileError(
            "'sliding_layers', 'shared_layers', 'recurrent_layers' and 'plain_layers' are more "
            "than 'layers'.",
            where=need.where,
        )
    latent = need.count("latent_elements", 0)
    kv_heads = 0 if latent else need.count("kv_heads")
    head_dim = 0 if latent else need.count("head_dim")
    heads = need.count("heads", kv_heads or 1)
    for key, count in (("kv_heads", kv_heads), ("head_dim", head_dim), ("heads", heads)):
        # Only a model whose layers all do without attention has none.
        if not count and not latent and full + sliding + shared:
            raise ProfileError(f"'{key}' is 0.", where=need.where)
    elements = latent or 2 * kv_heads * head_dim
    width = 2 * heads * (head_dim or 160)
    if "heads" not in need.profile:
        width = max(width, 2 * _stream_width(need, layers))
    slide_elements = (
        2 * need.count("sliding_kv_heads", kv_heads) * need.count("sliding_head_dim", head_dim)
        or elements
    )
    state = need.count("state_elements") if recurrent else 0
    window = need.count("sliding_window") if sliding else None
    made = (
        LayerGroup(kind="full", layers=full, kv_elements=elements, attention_width=width),
        LayerGroup(
            kind="sliding",
            layers=sliding,
            kv_elements=slide_elements,
            window=window,
            attention_width=width,
        ),
        LayerGroup(kind="shared", layers=shared, attention_width=width),
        LayerGroup(kind="recurrent", layers=recurrent, state_elements=state),
        LayerGroup(kind="none", layers=plain),
    )
    return tuple(group for group in made if group.layers)


def _stream_width(need: _Needed, layers: int) -> int:
    """The width of the model's stream, which its query heads share out in most models.

    Where it isn't told, by the twelve matrices of that width squared that a layer has in most.
    """
    active = need.count("active_parameters", need.count("parameters"))
    return need.count("hidden", 0) or round(math.sqrt(active / (12 * layers)))


def attention_words(
    groups: tuple[LayerGroup, ...], *, heads: int, kv_heads: int | None = None, mla: bool = False
) -> str:
    """The kind of attention in words, as `GQA, 24 of 48 layers sliding 1024`."""
    keeping = [g for g in groups if g.kv_elements]
    if mla:
        kind = "MLA"
    elif not keeping:
        kind = "none"
    elif kv_heads is None:
        kind = "GQA" if heads else "attention"
    elif kv_heads == heads:
        kind = "MHA"
    else:
        kind = "MQA" if kv_heads == 1 else "GQA"
    total = sum(g.layers for g in groups)
    notes = [
        f"{g.layers} of {total} layers sliding {g.window}" for g in groups if g.kind == "sliding"
    ]
    hybrid = sum(g.layers for g in groups if g.kv_elements and g.state_elements)
    if hybrid:
        notes.append(f"{hybrid} of {total} layers recurrent as well")
    others = {
        "recurrent": "recurrent",
        "shared": "sharing KV",
        "cross": "over an image",
        "none": "without attention",
    }
    for word, said in others.items():
        count = sum(g.layers for g in groups if g.kind == word)
        if count:
            notes.append(f"{count} of {total} layers {said}")
    return ", ".join([kind, *notes])
