"""What two workers must share before one may decode from the other's KV. No torch here.

The weights are not hashed in full, which takes minutes for a large model: each file adds
its name, its size, its head (with safetensors: the whole header) and evenly spaced samples
over its length. A damaged byte between samples goes unseen; another model or revision, or
another quantisation, does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from homesplit_engine.wire.messages import WIRE_VERSION

WEIGHT_ENDINGS = (".safetensors", ".bin", ".gguf", ".pt")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "added_tokens.json",
    "special_tokens_map.json",
)
_OWN_FIELDS = {
    "model_type": "model_type",
    "num_hidden_layers": "layers",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "rope_theta": "rope_theta",
    "rope_scaling": "rope_scaling",
    "rope_parameters": "rope_parameters",
    "sliding_window": "sliding_window",
    "vocab_size": "vocab_size",
}
"""Settings that are shown under their own name, so that a mismatch can be read at a glance."""
_WITHOUT_EFFECT = {"transformers_version", "_name_or_path", "use_cache", "torch_dtype", "dtype"}
_HEAD_BYTES = 2**20
_SAMPLE_BYTES = 2**16
_SAMPLES = 32


def fingerprint_fields(model_dir: Path, *, dtype: str, weights: str = "same") -> dict[str, str]:
    """Everything that goes into the fingerprint: name to value, or to a short hash.

    `dtype` is the dtype of weights and KV as loaded, `weights` what the linear layers were made
    into. Raises OSError and ValueError when the
    folder has no readable config.json.
    """
    config = cast("dict[str, Any]", json.loads((model_dir / "config.json").read_bytes()))
    fields = {
        name: _text(config[key]) for key, name in _OWN_FIELDS.items() if config.get(key) is not None
    }
    rest = {k: v for k, v in config.items() if k not in _OWN_FIELDS and k not in _WITHOUT_EFFECT}
    fields["other_config"] = _short(_text(rest).encode())
    fields["weights"] = _weights(model_dir)
    fields["tokenizer"] = _tokenizer(model_dir)
    fields["kv_dtype"] = dtype
    fields["weights_as"] = weights
    fields["kv_layout"] = "token-major"
    fields["wire_version"] = str(WIRE_VERSION)
    return fields


def fingerprint(fields: Mapping[str, str]) -> str:
    """One hash over all fields."""
    return sha256(_text(dict(fields)).encode()).hexdigest()


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """The names of the fields that differ, in alphabetical order."""
    return sorted(k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _short(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


def _weights(model_dir: Path) -> str:
    digest = sha256()
    for path in sorted(p for p in model_dir.iterdir() if p.suffix in WEIGHT_ENDINGS):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            start = file.read(_HEAD_BYTES)
            header = int.from_bytes(start[:8], "little") if path.suffix == ".safetensors" else 0
            digest.update(start)
            # A header is rarely over a mebibyte; never trust its length beyond the file's.
            digest.update(file.read(max(0, min(header + 8, size) - _HEAD_BYTES)))
            for number in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _tokenizer(model_dir: Path) -> str:
    found = [model_dir / name for name in TOKENIZER_FILES if (model_dir / name).is_file()]
    if not found:
        return "none"
    digest = sha256()
    for path in found:
        digest.update(path.name.encode() + b":" + path.read_bytes())
    return digest.hexdigest()[:16]
