"""Reads one model config under its many key names; every miss is an error naming the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from homesplit.errors import ProfileError

Config = Mapping[str, Any]
MOST_LAYERS = 10_000
_MOST = 1 << 40
"""No count of a model that exists is near these: a config that says more is broken."""

_LETTERS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}
_OF_EACH_LAYER = ("layer_types", "layers_block_type", "block_types", "attention_layers")
QUERY_KEYS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "num_query_heads",
    "attention_heads",
)
KV_KEYS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "n_kv_head",
    "n_head_kv",
    "num_query_groups",
    "num_attention_groups",
    "num_key_value_heads_per_layer",
)


class Heads(Struct, frozen=True, kw_only=True):
    """Head counts and widths of one kind of layer."""

    query: int
    kv: int
    key_dim: int
    value_dim: int

    @property
    def kv_elements(self) -> int:
        """Numbers kept per token."""
        return self.kv * (self.key_dim + self.value_dim)

    @property
    def width(self) -> int:
        """What one pair of tokens multiplies."""
        return self.query * (self.key_dim + self.value_dim)


class ConfigReader:
    """Reads one config under its many key names; every miss is an error naming the keys."""

    def __init__(self, config: Config, source: str) -> None:
        self.config = config
        self.source = source
        self.family = str(config.get("model_type", ""))

    def missing(self, what: str, *keys: str) -> ProfileError:
        """The error for something that can't be known."""
        said = " or ".join(f"'{key}'" for key in keys)
        return ProfileError(
            f"{what} can't be known: {said} is missing.",
            where=self.source,
            do_next="Give a config.json that has it, or a model profile.",
        )

    def whole(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is there, as a whole number of 0 or more."""
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = self._alike(key, list(value))
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ProfileError(
                    f"'{key}' is {value!r}, not a whole number of 0 or more.", where=self.source
                )
            if value > _MOST:
                raise ProfileError(f"'{key}' is more than any model has.", where=self.source)
            return value
        if default is None:
            raise self.missing("the model's shape", *keys)
        return default

    def _alike(self, key: str, values: list[Any]) -> Any:
        """The value of a list that says the same of every layer."""
        if not values or any(value != values[0] for value in values):
            raise ProfileError(
                f"'{key}' differs from layer to layer, which is not read.",
                where=self.source,
                do_next="Give a model profile.",
            )
        return values[0]

    def per_layer(self, key: str, name: str) -> tuple[Any, ...] | None:
        """`name` of every layer's entry under `key`, as in `block_configs`; None without one."""
        blocks = self.config.get("block_configs")
        if not isinstance(blocks, Sequence) or isinstance(blocks, str):
            return None
        parts = [block.get(key) if isinstance(block, Mapping) else None for block in blocks]
        found = [part.get(name) if isinstance(part, Mapping) else None for part in parts]
        for value in found:
            if value is not None and not (isinstance(value, int | float) and 0 <= value <= _MOST):
                raise ProfileError(f"'{name}' is {value!r}, not a number.", where=self.source)
        return tuple(found)

    def numbers(self, *keys: str) -> tuple[int, ...] | None:
        """The list of whole numbers under the first of `keys`; None when there is none."""
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, Sequence) and not isinstance(value, str):
                return tuple(int(entry) for entry in value if isinstance(entry, int))
        return None

    def part(self, key: str) -> ConfigReader | None:
        """A table inside the config, read in the same way; None when there is none."""
        value = self.config.get(key)
        if not isinstance(value, Mapping):
            return None
        return ConfigReader(value, f"{self.source}: {key}")

    def forward_widths(self) -> tuple[int, ...] | None:
        """The width of each layer's feed-forward where layers differ in it; None elsewhere."""
        widths = self.numbers("intermediate_size")
        if widths:
            return widths if len(set(widths)) > 1 else None
        times = self.config.get("ffn_multipliers")
        if not isinstance(times, Sequence) or isinstance(times, str):
            return None
        # OpenELM rounds to the nearest multiple of a divisor.
        step, hidden = self.whole("ffn_dim_divisor", default=256), self.hidden()
        return tuple(max(step, int(each * hidden + step / 2) // step * step) for each in times)

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes-or-no key."""
        return bool(self.config.get(key, default))

    def words(self, *keys: str) -> tuple[str, ...] | None:
        """The first of `keys` that holds a list, as strings; None when there is none."""
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, Sequence) and not isinstance(value, str):
                if not value and key in _OF_EACH_LAYER:
                    raise ProfileError(f"'{key}' names no layer.", where=self.source)
                return tuple(str(entry) for entry in value)
        return None

    def letters(self) -> str:
        """Nemotron-H's pattern, a letter a layer; empty elsewhere."""
        pattern = self.config.get("hybrid_override_pattern")
        if isinstance(pattern, str):
            return pattern
        if self.family != "nemotron_h":
            return ""
        words = self.words("layers_block_type", "layer_types") or ()
        return "".join(_LETTERS.get(word, "?") for word in words)

    def hidden(self) -> int:
        """Width of the residual stream."""
        width = self.whole("hidden_size", "n_embd", "n_embed", "d_model", "dim", "model_dim")
        if width < 1:
            raise ProfileError("'hidden_size' is 0.", where=self.source)
        return width

    def layers(self) -> int:
        """Number of layers."""
        if self.letters():
            return len(self.letters())
        named = self.words("layers_block_type", "layer_types")
        count = self.whole(
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "num_transformer_layers",
            default=len(named) if named else None,
        )
        if self.family == "longcat_flash":
            # Each of its layers attends twice.
            count *= 2
        if count < 1:
            raise ProfileError("the model has no layers.", where=self.source)
        if count > MOST_LAYERS:
            raise ProfileError(f"{count} layers are more than any model has.", where=self.source)
        return count

    def query_heads(self) -> int:
        """Number of query heads; the most that a layer has, where layers differ."""
        listed = self.numbers(*QUERY_KEYS)
        count = max(listed) if listed else self.whole(*QUERY_KEYS)
        if count < 1:
            raise ProfileError("the number of attention heads is 0.", where=self.source)
        return count

    def kv_heads(self) -> int:
        """Number of KV heads; the most that a layer has, where layers differ.

        A config without one keeps a K and V for every query head.
        """
        attention = self.part("attn_config")
        if attention is not None and attention.config.get("kv_n_heads"):
            return attention.whole("kv_n_heads")
        if self.family in ("falcon", "RefinedWeb", "RefinedWebModel"):
            if self.flag("new_decoder_architecture"):
                return self.whole("num_kv_heads", "n_head_kv", default=self.query_heads())
            return 1 if self.flag("multi_query", default=True) else self.query_heads()
        if self.flag("multi_query_attention"):
            return self.whole("multi_query_group_num")
        if self.family == "gpt_bigcode" and self.flag("multi_query", default=True):
            return 1
        listed = self.numbers(*KV_KEYS)
        return max(listed) if listed else self.whole(*KV_KEYS, default=self.query_heads())

    def head_dim(self) -> int:
        """Width of one head: declared, else the hidden width shared out evenly."""
        declared = self.whole(
            "head_dim", "attention_head_dim", "kv_channels", "head_size", default=0
        )
        if declared:
            return declared
        hidden, heads = self.hidden(), self.query_heads()
        if hidden % heads:
            raise ProfileError(
                f"the head width can't be known: 'head_dim' is missing and {hidden} does not "
                f"divide by {heads} heads.",
                where=self.source,
            )
        return hidden // heads

    def heads(self) -> Heads:
        """Heads of an ordinary attention layer."""
        width = self.head_dim()
        return Heads(
            query=self.query_heads(),
            kv=self.kv_heads(),
            key_dim=width,
            value_dim=self.whole("v_head_dim", default=0) or width,
        )

    def full_heads(self) -> Heads:
        """Heads of a global layer where those have a width or count of their own (Gemma 4)."""
        own, width = self.heads(), self.whole("global_head_dim", default=0)
        kv = self.whole("num_global_key_value_heads", "global_kv_heads", default=0)
        return Heads(
            query=own.query,
            kv=kv or own.kv,
            key_dim=width or own.key_dim,
            value_dim=width or own.value_dim,
        )

    def sliding_heads(self) -> Heads:
        """Heads of a layer with a window where those have a width or count of their own (MiMo)."""
        own, width = self.heads(), self.whole("swa_head_dim", default=0)
        value = self.whole("swa_v_head_dim", default=0)
        # MiMo's class doubles them where its config says nothing.
        unsaid = 2 * own.kv if self.family == "mimo_v2_flash" else own.kv
        return Heads(
            query=self.whole("swa_num_attention_heads", default=0) or own.query,
            kv=self.whole("swa_num_key_value_heads", default=0) or unsaid,
            key_dim=width or own.key_dim,
            value_dim=value or width or own.value_dim,
        )
