"""Finds and reads hardware, link, model and workload profiles: built in, the user's, or a path."""

from __future__ import annotations

import contextlib
import difflib
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from homesplit.core import profile_names
from homesplit.core.link import LinkProfile
from homesplit.core.machine import BoxProfile
from homesplit.core.profile_files import (
    box_from_table,
    link_from_table,
    model_from_table,
    parse_rate,
    typed_link,
    workload_from_table,
)
from homesplit.core.profile_names import plain
from homesplit.core.reading import stated
from homesplit.core.shape import ModelShape
from homesplit.core.workload import Workload
from homesplit.errors import ProfileError
from homesplit.io.model_files import shape_of_config, shape_of_folder, shape_of_gguf
from homesplit.io.paths import Paths

Kind = Literal["hardware", "links", "models", "workloads"]
MAX_FILE_BYTES = 1024 * 1024
GIB = 1024**3


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table; raises ProfileError naming the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ProfileError("is too large for a profile.", where=str(path))
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"can't be read: {error.strerror}.", where=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"is not valid TOML: {error}.", where=str(path)) from error


@cache
def built_in(kind: Kind) -> Mapping[str, Path]:
    """Short name to file of the profiles that ship."""
    folder = Path(str(resources.files("homesplit_profiles"))) / kind
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def names(kind: Kind, paths: Paths) -> tuple[str, ...]:
    """Every profile's short name, the user's own first."""
    own = _own(kind, paths)
    return (*own, *(name for name in built_in(kind) if name not in own))


def _own(kind: Kind, paths: Paths) -> dict[str, Path]:
    folder = paths.user_profiles / kind
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder.is_dir() else {}


@cache
def _all_names(kind: Kind) -> Mapping[str, tuple[str, ...]]:
    """Every name that a built-in profile has, by its short one."""
    found: dict[str, tuple[str, ...]] = {}
    for short, path in built_in(kind).items():
        held = read_toml(path)
        found[short] = (short, str(held.get("name", short)), *held.get("aliases", ()))
    return found


@cache
def _aliases(kind: Kind) -> Mapping[str, str]:
    """Plain form of every name and alias to the short name."""
    found: dict[str, str] = {}
    for short, names_ in _all_names(kind).items():
        for text in names_:
            found.setdefault(plain(text), short)
    return found


def find(kind: Kind, text: str, paths: Paths) -> Path:
    """The profile file that `text` names; raises ProfileError with the nearest names."""
    if text.endswith(".toml"):
        path = Path(text).expanduser()
        if path.is_file():
            return path
        raise ProfileError("there is no such file.", where=text)
    own = _own(kind, paths)
    mine = {plain(name): path for name, path in own.items()}
    if plain(text) in mine:
        return mine[plain(text)]
    for written in _as_written(kind, text):
        short = _aliases(kind).get(plain(written))
        if short is not None:
            return built_in(kind)[short]
    for written in _as_written(kind, text):
        possible = profile_names.meant(kind, written, _all_names(kind))
        if len(possible) == 1:
            return built_in(kind)[possible[0]]
        if possible:
            raise ProfileError(
                f"'{text}' may be more than one {_WORDS[kind]}.",
                do_next=f"Say which: {', '.join(possible[:6])}.",
            )
    raise ProfileError(f"there is no {_WORDS[kind]} '{text}'.", do_next=_suggest(kind, text, own))


_TUNED = re.compile(
    r"[-_ :](instruct|it|chat|base|hf|thinking|gguf|mlx|bnb|ud|qat|latest|v0\.\d|\d{4})$",
    re.IGNORECASE,
)


def _as_written(kind: Kind, text: str) -> list[str]:
    """A name as typed; of a model also without its maker and its tuning, which change no shape."""
    found = [text]
    if kind != "models":
        return found
    name = text.rsplit("/", 1)[-1]
    found.append(name)
    while shorter := _TUNED.sub("", name):
        if shorter == name:
            break
        name = shorter
        found.append(name)
    return found


_WORDS = {
    "hardware": "probed box or hardware profile",
    "links": "link profile or rate",
    "models": "model folder or model profile",
    "workloads": "workload",
}


def _suggest(kind: Kind, text: str, own: Mapping[str, Path]) -> str:
    known = [*own, *built_in(kind)]
    typed = plain(text)
    near = difflib.get_close_matches(typed, [*_aliases(kind)], n=3, cutoff=0.5)
    held = [name for name in known if typed and typed in plain(name)]
    shown = list(dict.fromkeys([*held[:3], *(_aliases(kind)[name] for name in near)]))[:4]
    if shown:
        return f"Did you mean {', '.join(shown)}?"
    return f"Some that are known: {', '.join(known[:8])}. All: homesplit profiles {kind}."


def load_hardware(text: str, paths: Paths) -> BoxProfile:
    """A hardware profile by name, or of a TOML file; a name may tell how much memory there is."""
    path = _find_machine(text, paths)
    box = box_from_table(read_toml(path), where=_told(path))
    # A built-in's short name is what one types and what fits a table.
    return _with_memory(replace(box, name=path.stem), text) if _is_built_in(path) else box


def _find_machine(text: str, paths: Paths) -> Path:
    """The profile of a machine as typed, else without its memory, else of its Mac's chip."""
    try:
        return find("hardware", text, paths)
    except ProfileError:
        bare, memory = profile_names.memory_typed(text)
        chip = profile_names.apple_chip(text)
        for other in (bare if memory else None, chip):
            with contextlib.suppress(ProfileError):
                if other:
                    return find("hardware", other, paths)
        raise


def _with_memory(box: BoxProfile, text: str) -> BoxProfile:
    """The box with the memory that was typed, where its kind is sold with more or less.

    A graphics card with other memory is another card.
    """
    _, typed = profile_names.memory_typed(text)
    held = round((box.memory_bytes.value or 0) / GIB)
    if typed is None or typed == held:
        return box
    if not (box.unified or box.device == "cpu"):
        raise ProfileError(
            f"'{text}': the profile {box.name} is of a card with {held} GB.",
            do_next=f"Name that one, or give {typed} GB's figures in a TOML file.",
        )
    said = f"{box.source}, with {typed} GB of memory"
    return replace(
        box,
        name=re.sub(r"-\d+gb$", "", box.name) + f"-{typed}gb",
        source=said,
        memory_bytes=stated(float(typed * GIB), unit="bytes", source="typed"),
    )


def load_link(text: str, a: str, b: str, paths: Paths) -> LinkProfile:
    """A typed rate, a link profile by name, or of a TOML file."""
    rate = parse_rate(text)
    if rate is not None:
        return typed_link(rate, a, b, text=text)
    _refuse_bits_or_bytes(text)
    path = find("links", text, paths)
    return link_from_table(read_toml(path), a, b, where=_told(path))


_BITS_OR_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([GM])B|([gm])b)\s*")


_BARE_NUMBER = re.compile(r"\s*[-+]?[\d.]+(?:e[-+]?\d+)?\s*", re.IGNORECASE)


def _refuse_bits_or_bytes(text: str) -> None:
    """Raise ProfileError on `1GB`: Gigabit Ethernet, or eight times that; and on `1`."""
    if _BARE_NUMBER.fullmatch(text):
        raise ProfileError(
            f"'{text}' is a rate without a unit.", do_next="Give one as 2.35Gbit/s or 118MB/s."
        )
    found = _BITS_OR_BYTES.fullmatch(text)
    if found is None:
        return
    number, prefix = found.group(1), (found.group(2) or found.group(3)).upper()
    raise ProfileError(
        f"'{text}' may be {number} {prefix}B/s or {number} {prefix}bit/s Ethernet.",
        do_next=f"Say which: {number}{prefix}B/s or {number}{prefix}bE.",
    )


def load_model(text: str, paths: Paths) -> ModelShape:
    """A model folder, config.json, GGUF file, TOML file, fetched model or profile by name."""
    path = Path(text).expanduser()
    if text.endswith(".safetensors") and path.is_file():
        path = path.parent
        if not (path / "config.json").is_file():
            raise ProfileError(
                "there is no config.json beside it, and weights alone do not tell heads.",
                where=text,
                do_next="Put the model's config.json there, or give a model profile.",
            )
    if path.is_dir() and (path / "config.json").exists():
        return shape_of_folder(path.resolve())
    if text.endswith(".json") and path.is_file():
        return shape_of_config(path)
    if text.endswith(".gguf") and path.is_file():
        return shape_of_gguf(path)
    fetched = paths.models / text.replace("/", "--")
    if re.fullmatch(r"[\w.\-/]+", text) and (fetched / "config.json").is_file():
        return shape_of_folder(fetched)
    quantised = profile_names.format_typed(text)
    try:
        found = find("models", text, paths)
    except ProfileError:
        if path.is_dir():
            raise _no_config(path) from None
        if quantised is None:
            raise
        name, dtype = quantised
        shape = load_model(name, paths)
        return shape if shape.dtype == dtype else shape.with_dtype(dtype)
    return model_from_table(read_toml(found), where=_told(found))


def _no_config(folder: Path) -> ProfileError:
    """What a folder without a config.json lacks, and what in it can be named instead."""
    held = sorted(folder.glob("*.gguf"))
    return ProfileError(
        "the folder holds no config.json.",
        where=str(folder),
        do_next=f"Name {held[0]}." if held else "Give a model's folder, or a model profile.",
    )


def load_workload(text: str, paths: Paths) -> Workload:
    """A workload by name, or of a TOML file."""
    path = find("workloads", text, paths)
    return workload_from_table(read_toml(path), where=_told(path))


def _told(path: Path) -> str:
    """A built-in profile by its short name, any other by its path."""
    return path.stem if _is_built_in(path) else str(path)


def _is_built_in(path: Path) -> bool:
    return path.parent.parent.name == "homesplit_profiles"
