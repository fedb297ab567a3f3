"""What the engine itself was measured to do, in dated JSON files.

A fit of each box and model, of each pair's hand-offs, and each comparison of modes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

import msgspec

from homesplit.core.calibration import Calibration, Weights
from homesplit.core.compared import Compared, plain
from homesplit.core.handoff_fit import HandoffFit
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
    paths: Paths,
    box: str,
    host_key: str | None,
    model: str,
    kv_sizes: Collection[int],
    weights: Weights = "same",
) -> Calibration | None:
    """The newest fit of this box with this model, whose KV takes one of these sizes a token."""
    return next(
        (
            fit
            for fit in list_all(paths)
            if (fit.host_key == host_key if fit.host_key and host_key else fit.box == box)
            and plain(fit.model) == plain(model)
            and fit.kv_bytes_per_token in kv_sizes
            and fit.weights == weights
        ),
        None,
    )


def save_handoff(paths: Paths, fit: HandoffFit) -> Path:
    """Write what hand-offs take in the place of the last fit of the same two boxes and way."""
    key = "\n".join((fit.sender_key or fit.sender, fit.receiver_key or fit.receiver))
    return _write(paths, "handoffs", key, fit)


def load_handoff(
    paths: Paths, sender: tuple[str, str | None], receiver: tuple[str, str | None]
) -> HandoffFit | None:
    """The newest fit of hand-offs from one box (name, host key) to another."""
    found = [
        fit
        for fit in _read_all(paths, "handoffs", HandoffFit)
        if _same((fit.sender, fit.sender_key), sender)
        and _same((fit.receiver, fit.receiver_key), receiver)
    ]
    return max(found, key=lambda fit: fit.at, default=None)


def save_compared(paths: Paths, seen: Compared) -> Path:
    """Write a comparison in the place of the last one of the same question."""
    question = (
        *(sorted(seen.boxes), plain(seen.model), seen.workload, seen.link_bytes_per_s),
        seen.weights,
    )
    return _write(paths, "comparisons", msgspec.json.encode(question).decode(), seen)


def list_compared(paths: Paths) -> tuple[Compared, ...]:
    """All kept comparisons, the newest first; a broken file is passed over."""
    found = _read_all(paths, "comparisons", Compared)
    return tuple(sorted(found, key=lambda seen: seen.at, reverse=True))


def _same(one: tuple[str, str | None], other: tuple[str, str | None]) -> bool:
    """By host key where both are known, else by name."""
    return one[1] == other[1] if one[1] and other[1] else one[0] == other[0]


def _write(paths: Paths, folder: str, key: str, value: HandoffFit | Compared) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()[:24] + ".json"
    path = paths.probes / folder / name
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=1))
    return path


_T = TypeVar("_T")


def _read_all(paths: Paths, folder: str, kind: type[_T]) -> list[_T]:
    found: list[_T] = []
    where = paths.probes / folder
    for file in sorted(where.glob("*.json")) if where.is_dir() else []:
        try:
            found.append(msgspec.json.decode(file.read_bytes(), type=kind))
        except (OSError, msgspec.MsgspecError):
            continue
    return found
