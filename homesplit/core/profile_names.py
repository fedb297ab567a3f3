"""Which profile a typed name means: `GeForce RTX 3060 (12 GB)`, `10GBASE-T`, `llama3.1:70b-q4_K_M`.

A name is cut into words, and filler such as the maker's is left out. A profile is meant when its
words are those typed, each as often, or those and nothing besides but sizes (`24 GB`, `A3B`).
`Ti`, `Pro` or `laptop` make another machine, so they are never left out; a Mac is its chip.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from homesplit.core.shape import dtype_name
from homesplit.errors import ProfileError

Names = Mapping[str, Sequence[str]]
"""A profile's short name to every name it has, the short one among them."""

_MAKERS = {"nvidia", "geforce", "amd", "radeon", "intel", "apple", "tm"}
_MACHINE = {"gpu", "desktop", "pc", "cpu", "server", "workstation", "system", "machine", "computer"}
_MEMORY_WORDS = {"ram", "vram", "memory", "unified", "with", "the"}
_LINK_WORDS = {"ethernet", "base", "t", "tx", "s", "ps", "link", "cable", "lan", "network", "nic"}
_CABLE_WORDS = {"port", "card", "switch", "direct", "over", "the", "sfp", "rj", "networking"}
_FILLER = {
    "hardware": _MAKERS | _MACHINE | _MEMORY_WORDS,
    "links": _LINK_WORDS | _CABLE_WORDS | {"fibre", "fiber", "copper", "dac", "bridge"},
    "models": {"the", "model"},
}
_SAME: Mapping[str, Mapping[str, str]] = {
    "links": {
        **dict.fromkeys(("gbe", "gbit", "gbits", "gbps", "gb", "gbase", "gig", "gigabit"), "g"),
        **dict.fromkeys(("mbe", "mbit", "mbits", "mbps", "mb", "mbase", "megabit"), "m"),
        "wlan": "wifi",
        "tb": "thunderbolt",
    }
}
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)*")
_UNITS = frozenset(("gb", "core", "cores", "b"))
_ALONE = frozenset(("core", "cores"))
"""Left out though no number stands before them: `Core i5`."""
_SIZE = re.compile(r"a?(\d+(?:\.\d+)*)(?:gb|cores?|b)$")


def plain(text: str) -> str:
    """Letters, digits and dots alone, small."""
    return re.sub(r"[^a-z0-9.]+", "", text.lower())


def words(kind: str, text: str) -> tuple[str, ...]:
    """The words of a name that tell it from others, in order."""
    joined = re.sub(r"\bwi[- ]fi\b", "wifi", text.lower())
    same, filler = _SAME.get(kind, dict[str, str]()), _FILLER.get(kind, set[str]())
    found = [same.get(word, word) for word in _WORD.findall(joined)]
    return tuple(word for word in found if word not in filler)


def meant(kind: str, text: str, known: Names) -> tuple[str, ...]:
    """The short names of the profiles that `text` may mean; one alone is certain."""
    typed = _parts(kind, text)
    if not typed:
        return ()
    chip = apple_chip(text) if kind == "hardware" else None
    held = {
        short: [_parts(kind, name) for name in names]
        for short, names in known.items()
        if chip is None or chip in map(apple_chip, names)
    }
    equal = [short for short, all_ in held.items() if typed in all_]
    return tuple(equal) or tuple(
        short for short, all_ in held.items() if any(_typed_and_sizes(w, typed) for w in all_)
    )


def _parts(kind: str, text: str) -> Counter[str]:
    """A name's words, each as often as it stands there, and a size with its unit as one."""
    parts: list[str] = []
    for word in words(kind, text):
        if word not in _UNITS or not parts or not parts[-1][-1].isdigit():
            parts.append(word)
            continue
        parts[-1] += word
        if word == "b" and parts[-2:-1] == ["a"]:
            parts[-2:] = ["a" + parts[-1]]
    return Counter(parts)


def _typed_and_sizes(held: Counter[str], typed: Counter[str]) -> bool:
    """Whether a name holds what was typed, and beyond that only says how large the thing is."""
    rest = held - typed
    for word in (typed - held).elements():
        # A size may be typed without its unit.
        size = next((part for part in rest if _SIZE.sub(r"\1", part) == word), None)
        if size is None:
            return False
        rest -= Counter((size,))
    return all(part in _ALONE or _SIZE.match(part) for part in rest)


_MEMORY = re.compile(r"(?<![\w.])(\d{1,4})[ -]?(?:gb|gib)\b", re.IGNORECASE)


def memory_typed(text: str) -> tuple[str, int | None]:
    """A machine's name without the memory that it tells, and that memory in GiB."""
    found = _MEMORY.findall(text)
    if len(found) != 1:
        return text, None
    return _MEMORY.sub(" ", text).strip(" -_()"), int(found[0])


_CHIP = re.compile(r"(?<![a-z0-9])m([1-9])(?:[ -]?(pro|max|ultra))?(?![a-z0-9])", re.IGNORECASE)
_MAC = re.compile(r"\b(mac|macbook|imac|apple)\b", re.IGNORECASE)


def apple_chip(text: str) -> str | None:
    """The chip of a Mac, which decides how fast it is: `m4-max` of `MacBook Pro 16 M4 Max`."""
    found = _CHIP.search(text) if _MAC.search(text) else None
    if found is None:
        return None
    number, kind = found.groups()
    return f"m{number}-{kind.lower()}" if kind else f"m{number}"


_FORMAT = re.compile(
    r"[\s:_@/.(-]+((?:i?q)\d\w*|[bf]?fp?\d+(?:_e4m3)?|int[48]|[48][ -]?bits?|awq|gptq|mxfp4|nvfp4"
    r"|w[48]a(?:8|16))\)?$",
    re.IGNORECASE,
)
_PACKED = {"w4a16": "int4", "w4a8": "int4", "w8a8": "int8", "w8a16": "int8"}


def format_typed(text: str) -> tuple[str, str] | None:
    """A model's name without the weights' format at its end, and our name of that format."""
    found = _FORMAT.search(text)
    if found is None or not found.start():
        return None
    written = found.group(1).lower().replace(" ", "").replace("-", "").removesuffix("s")
    written = found.group(1) if written.startswith(("q", "iq")) else written
    try:
        return text[: found.start()], dtype_name(_PACKED.get(written, written))
    except ProfileError:
        return None
