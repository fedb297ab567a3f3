"""Fits to the engine's own steps, a dated JSON file for each box and model."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import msgspec

from homesplit.core.calibration import Calibration
from homesplit.io.atomic import write_atomically
from homesplit.io.paths import Paths


def save(paths: Paths, fit: Calibration) -> Path:
    """Write a fit in the place of the last one of the same box and model."""
    key = "\n".join((fit.host_key or fit.box, fit.fingerprint))
    name = hashlib.sha256(key.encode()).hexdigest()[:24] + ".json"
    path = paths.probes / "calibrations" / name
    write_atomically(path, msgspec.json.format(msgspec.json.encode(fit), indent=1))
    return path


def list_all(paths: Paths) -> tuple[Calibration, ...]:
    """All kept fits, the newest first; a broken file is passed over."""
    folder = paths.probes / "calibrations"
    found: list[Calibration] = []
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            found.append(msgspec.json.decode(file.read_bytes(), type=Calibration))
        except (OSError, msgspec.MsgspecError):
            continue
    return tuple(sorted(found, key=lambda fit: fit.at, reverse=True))


def load(
    paths: Paths, box: str, host_key: str | None, model: str, kv_sizes: Collection[int]
) -> Calibration | None:
    """The newest fit of this box with this model, whose KV takes one of these sizes a token."""
    return next(
        (
            fit
            for fit in list_all(paths)
            if (fit.host_key == host_key if fit.host_key and host_key else fit.box == box)
            and plain(fit.model) == plain(model)
            and fit.kv_bytes_per_token in kv_sizes
        ),
        None,
    )


def plain(name: str) -> str:
    """A model's name as folders and profiles may both write it."""
    return "-".join(name.lower().replace("_", "-").split())
