"""Takes names of machines and addresses out of what leaves the notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b|fe80::[0-9a-f:]+(?:%\w+)?",
    re.IGNORECASE,
)
_HOST_KEY = re.compile(r"SHA256:[A-Za-z0-9+/=]{20,}")
_BOX_KEYS = ("box", "boxes", "prefill_box", "decode_box", "router_box", "box_from", "box_to")
_LONE_KEYS = ("a", "b", "name", "hostname")


def box_names(values: Iterable[Any]) -> tuple[str, ...]:
    """Every name of a box that stands in the values, in order of appearance."""
    found: dict[str, None] = {}
    for value in values:
        _collect(value, found, boxes=False)
    return tuple(found)


def _collect(value: Any, found: dict[str, None], *, boxes: bool) -> None:
    if isinstance(value, dict):
        is_box = "host_key" in value or "a_to_b" in value
        for key, inner in value.items():
            named = key in _BOX_KEYS or (is_box and key in _LONE_KEYS)
            _collect(inner, found, boxes=named)
    elif isinstance(value, list | tuple):
        for inner in value:
            _collect(inner, found, boxes=boxes)
    elif boxes and isinstance(value, str) and value:
        found[value] = None


class Redaction:
    """Replaces box names by `box A`, `box B`, …, other names given, addresses and host keys."""

    def __init__(self, boxes: Iterable[str], others: Iterable[str] = ()) -> None:
        names = list(dict.fromkeys(boxes))
        self._by_name = {name: f"box {_letter(index)}" for index, name in enumerate(names)}
        self._by_name |= {name: "(name)" for name in others if len(name) > 2}
        longest_first = sorted(self._by_name, key=len, reverse=True)
        joined = "|".join(re.escape(name) for name in longest_first)
        self._names = re.compile(rf"(?<!\w)(?:{joined})(?!\w)") if joined else None

    def value(self, value: Any) -> Any:
        """The value with every string in it redacted, keys of objects too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value

    def text(self, text: str) -> str:
        """One string redacted."""
        if self._names is not None:
            text = self._names.sub(lambda match: self._by_name[match.group()], text)
        return _HOST_KEY.sub("(host key)", _ADDRESS.sub("(address)", text))


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index)
