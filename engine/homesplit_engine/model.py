"""Loads a causal language model from a local folder, and refuses what cannot be served.

Refusals name the kind of layer. What static checks miss is found by trying: the model's
logits with our attention function must equal those with its own.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from homesplit_engine.attention import LayerSeen, Plug, UnsupportedAttention
from homesplit_engine.cache import KvShape
from homesplit_engine.compiled.warm import compile_all
from homesplit_engine.devices import why_no_device
from homesplit_engine.fingerprint import fingerprint, fingerprint_fields
from homesplit_engine.kernels import (
    can_hasten,
    copy_fits,
    hasten_linears,
    left_wide,
    quantise_linears,
    why_no_int8,
)
from homesplit_engine.layer_kinds import refusal_of, rope_types, unlike_kind
from homesplit_engine.lean import LeanModel, make_lean
from homesplit_engine.narrow import computed_wide, half_dtype, narrow_class
from homesplit_engine.own_attention import adapt, own_way
from homesplit_engine.packed_weights import unpacking, why_packed

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WEIGHTS = ("same", "int8")
_TRIAL_TOKENS = 40
_CONTEXT_KEYS = ("max_position_embeddings", "max_seq_len", "seq_length")
_UNNAMED = {"bloom": 2048}
"""Of families whose files may name no context, as slopes know no end: what they were trained on."""


class ModelError(Exception):
    """The model can't be served; the message says which, why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to be stepped."""

    model: Any
    plug: Plug
    kv_shape: KvShape
    name: str
    max_context: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    device: torch.device
    dtype: str
    fields: dict[str, str]

    @property
    def fingerprint(self) -> str:
        """Hash over `fields`."""
        return fingerprint(self.fields)


def load_model(model_dir: Path, *, device: str, dtype: str, weights: str = "same") -> LoadedModel:
    """Load weights and check that this engine can serve them; raises ModelError.

    `weights` is `same` (as `dtype`) or `int8` (the linear layers quantised, on a CPU).
    """
    _refuse_settings(device=device, dtype=dtype, weights=weights)
    config = _config_of(model_dir)
    text_config = config.get_text_config(decoder=True)
    model = _load(model_dir, config, device, DTYPES[dtype], int8=weights == "int8")
    if can_hasten(torch.device(device), DTYPES[dtype]):
        compile_all(int8=weights == "int8", threads=torch.get_num_threads())
    plug = Plug()
    fields = fingerprint_fields(model_dir, dtype=dtype, weights=weights)
    eos_token_ids = _eos_token_ids(model)
    hasten = weights == "same" and can_hasten(torch.device(device), DTYPES[dtype])
    model, shape = _looked_at(
        model, model_dir.name, plug, text_config, device, DTYPES[dtype], hasten
    )
    if weights == "int8":
        # Only now: what was compared above are the weights as they came.
        quantise_linears(model, copy=copy_fits(model, int8=True))
        wide = left_wide(model)
        if wide is not None:
            raise ModelError(
                f"{model_dir.name} has layers that have no int8 form here ({wide}); "
                "leave the weights as they are"
            )
        model.float()
    if isinstance(model, LeanModel):
        model.ready()
    loaded = LoadedModel(
        model=model,
        plug=plug,
        kv_shape=shape,
        name=model_dir.name,
        max_context=max_context_of(text_config),
        eos_token_ids=eos_token_ids,
        vocab_size=int(text_config.vocab_size),
        device=torch.device(device),
        dtype=dtype,
        fields=fields,
    )
    if (device, dtype, weights) == ("cpu", "float32", "same") and not isinstance(model, LeanModel):
        # In lower precision other experts may be chosen. Imported here, as it imports this module.
        from homesplit_engine.trial import try_steps

        try_steps(loaded)
    return loaded


def _refuse_settings(*, device: str, dtype: str, weights: str) -> None:
    """Raises ModelError for what no model can be loaded as, or not on this box."""
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not known; one of: {', '.join(DTYPES)}")
    if weights not in WEIGHTS:
        raise ModelError(f"weights {weights!r} are not known; one of: {', '.join(WEIGHTS)}")
    no_device = why_no_device(device)
    if no_device is not None:
        raise ModelError(f"{no_device}; choose another device for this box")
    no_int8 = why_no_int8(torch.device(device), DTYPES[dtype]) if weights == "int8" else None
    if no_int8 is not None:
        raise ModelError(f"{no_int8}; leave the weights as they are, or choose another dtype")


def _config_of(model_dir: Path) -> Any:
    """The model's configuration; raises ModelError where its decoder can't be served."""
    from transformers import AutoConfig

    if not (model_dir / "config.json").is_file():
        raise ModelError(f"{model_dir}: no config.json; give a model folder in Hugging Face layout")
    try:
        config: Any = AutoConfig.from_pretrained(
            str(model_dir), local_files_only=True, trust_remote_code=False
        )
        text_config = config.get_text_config(decoder=True)
    except Exception as error:  # families check their settings in ways, and errors, of their own
        raise ModelError(f"{model_dir}: the configuration can't be read: {_said(error)}") from error
    refusal = refusal_of(text_config)
    if refusal is not None:
        raise ModelError(f"{model_dir.name}: {refusal}; this engine can't serve it")
    packed = why_packed(config)
    if packed is not None:
        raise ModelError(f"{model_dir.name}: {packed}")
    return config


def max_context_of(config: Any) -> int:
    """The most tokens of prompt and answer together.

    With longrope only up to the original length: beyond it, all of a batch's positions would
    change with its longest sequence, and cached keys with them.
    """
    named = [getattr(config, name, None) for name in _CONTEXT_KEYS]
    longest = int(next((each for each in named if each), _UNNAMED.get(config.model_type, 0)))
    if longest <= 0:
        raise ModelError(f"{config.model_type}: the configuration names no context length")
    if "longrope" in rope_types(config):
        settings: Any = config.rope_parameters
        original = settings.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        longest = min(longest, int(original or longest))
    return longest


def slack_of(dtype: torch.dtype) -> float:
    """How far two ways to the same logits may lie apart, as a share of the largest."""
    return 1e-3 if dtype == torch.float32 else 0.1


def _load(model_dir: Path, config: Any, device: str, dtype: torch.dtype, *, int8: bool) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        half = half_dtype(model_dir) if int8 and not unpacking(config) else None
        kind: Any = AutoModelForCausalLM if half is None else narrow_class(config, half)
        # No code that lies beside a model is run, and no pickle opened, whatever it is named.
        model: Any = kind.from_pretrained(
            str(model_dir),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=own_way(config),
            **unpacking(config),
        )
    except Exception as error:  # a model's code meets settings that it can't be made of unprepared
        said = _said(error)
        if said.startswith("Unrecognized configuration class"):
            said = "transformers knows no decoder-only language model of its kind"
        raise ModelError(f"{model_dir}: the model can't be loaded: {said}") from error
    try:
        return model.to(device).eval()
    except RuntimeError as error:
        raise ModelError(f"{model_dir.name} can't be put onto {device}: {error}") from error


def _looked_at(
    model: Any,
    name: str,
    plug: Plug,
    config: Any,
    device: str,
    dtype: torch.dtype,
    hasten: bool,
) -> tuple[Any, KvShape]:
    """The model with our layers and attention, compared with its own over a few tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, config.vocab_size, (1, _TRIAL_TOKENS), generator=generator).to(device)
    positions = torch.arange(_TRIAL_TOKENS, device=device)[None]
    last = torch.tensor([_TRIAL_TOKENS - 1], device=device)
    wide = computed_wide() if dtype == torch.float32 else contextlib.nullcontext()
    with torch.inference_mode(), wide:
        try:
            own = model(tokens, position_ids=positions, use_cache=False).logits[0, -1:]
        except Exception as error:  # models ask for what they need in words of their own
            raise ModelError(
                f"{name}: transformers itself can't compute it from tokens alone: {_said(error)}"
            ) from error
        try:
            if not adapt(model, plug):
                model.set_attn_implementation(plug.name)
            model = make_lean(model, plug) or model
            if hasten:
                hasten_linears(model, copy=copy_fits(model))
            ours = model(
                tokens, position_ids=positions, use_cache=False, logits_to_keep=last
            ).logits[0]
        except UnsupportedAttention as error:
            raise ModelError(f"{name} has {error}; this engine can't serve it") from error
        except Exception as error:  # as above
            raise ModelError(
                f"{name} has {unlike_kind(model, plug.seen)}, which this engine can't compute: "
                f"{_said(error)}"
            ) from error
    layers = int(config.num_hidden_layers)
    if set(plug.seen) != set(range(layers)):
        raise ModelError(f"{name} has {unlike_kind(model, plug.seen)}; this engine can't serve it")
    seen = [plug.seen[layer] for layer in range(layers)]
    if _hides_its_window(config, seen):
        raise ModelError(
            f"{name} has sliding-window layers whose code does not tell their window; "
            "this engine can't serve it"
        )
    scale = float(own.abs().max()) + 1e-6
    if ours.shape != own.shape or float((ours - own).abs().max()) > slack_of(dtype) * scale:
        raise ModelError(
            f"{name}: its logits under this engine's attention differ from its own; it has "
            f"{unlike_kind(model, plug.seen)}; this engine can't serve it"
        )
    shape = KvShape(
        kv_heads=tuple(one.kv_heads for one in seen),
        head_dim=tuple(one.head_dim for one in seen),
        dtype=dtype,
    )
    return model, shape


def _said(error: Exception) -> str:
    """An error's words, with its kind where they alone may tell nothing, as a missing key's."""
    plain = isinstance(error, (OSError, ValueError)) and str(error)
    return str(error) if plain else f"{type(error).__name__}: {error}"


def _hides_its_window(config: Any, seen: list[LayerSeen]) -> bool:
    """Whether layers that the configuration gives a sliding window showed none."""
    kinds: Any = getattr(config, "layer_types", None)
    if kinds:
        pairs = zip(kinds, seen, strict=True)
        return any(kind == "sliding_attention" and one.window is None for kind, one in pairs)
    given: Any = getattr(config, "sliding_window", None)
    # One as long as the context hides nothing.
    shorter = given is not None and int(given) < max_context_of(config)
    used = shorter and getattr(config, "use_sliding_window", True)
    return bool(used) and all(one.window is None for one in seen)


def _eos_token_ids(model: Any) -> tuple[int, ...]:
    eos: Any = getattr(model.generation_config, "eos_token_id", None)
    if eos is None:
        eos = getattr(model.config, "eos_token_id", None)
    if eos is None:
        return ()
    return (int(eos),) if isinstance(eos, int) else tuple(int(one) for one in eos)
