"""Takes names of machines, users and addresses out of what leaves the notebook."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_COLONS = re.compile(r"(?<![\w:.])[0-9a-f:]*:[0-9a-f.:]*[0-9a-f:](?:%\w+)?(?!\w)", re.IGNORECASE)
_MAC = re.compile(r"(?<![\w:])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}(?![\w:])", re.IGNORECASE)
_HOST_KEY = re.compile(r"SHA256:[A-Za-z0-9+/=]{20,}")
_USER_AT = re.compile(r"[\w.+-]+@(?=\[?(?:box \w|\(name\)|\(address \d+\)))")
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s\"']+")
_BOX_KEYS = ("box", "boxes", "prefill_box", "decode_box", "router_box", "box_from", "box_to")
_LONE_KEYS = ("a", "b", "name", "hostname")
_SENTENCE_BOX = re.compile(r"((?<=[.!?] )|^(?=box \w+ .*[.!?)]$))box (?=[A-Z0-9])", re.DOTALL)
"""A box's letter where a sentence begins: after another one, or at the head of a whole one."""
_SHORT = 2
"""Names up to this length are also words and parts of words: they count only as written."""


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
            if key == "url" and isinstance(inner, str) and (host := _host_of(inner)):
                found[host] = None
            named = key in _BOX_KEYS or (is_box and key in _LONE_KEYS)
            _collect(inner, found, boxes=named)
    elif isinstance(value, list | tuple):
        for inner in value:
            _collect(inner, found, boxes=boxes)
    elif boxes and isinstance(value, str) and value:
        found[value] = None


def _host_of(url: str) -> str | None:
    """The host in a URL; None for this machine."""
    host = urlsplit(url).hostname
    return host if host and host != "localhost" and not _is_address(host) else None


def name_forms(name: str) -> tuple[str, ...]:
    """All ways in which a box's name may be written, the whole host first.

    `alice@gandalf.local:2222` gives `gandalf.local`, `gandalf`, and the name as it is.
    """
    host = name.rpartition("@")[2]
    bracketed = re.fullmatch(r"\[(.+)\](?::\d+)?", host)
    if bracketed:
        host = bracketed[1]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    forms = [host] if _is_address(host) else [host, host.partition(".")[0]]
    return tuple(dict.fromkeys(form for form in (*forms, name) if form))


def user_of(name: str) -> str | None:
    """The user in a name such as `alice@gandalf`."""
    return name.rpartition("@")[0] or None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Redaction:
    """Replaces box names by `box A`, `box B`, …, other names given, addresses and host keys.

    An address has the same number wherever this redaction meets it.

    Case makes no difference, and every form of a name counts: with a user, a port or a domain,
    or without.
    """

    def __init__(self, boxes: Iterable[str], others: Iterable[str] = ()) -> None:
        names = list(dict.fromkeys(boxes))
        self._by_name: dict[str, str] = {}
        letters: dict[str, str] = {}
        for name in names:
            forms = name_forms(name)
            machine = forms[0].casefold().removesuffix(".local")
            letter = letters.setdefault(machine, f"box {_letter(len(letters))}")
            for form in forms:
                self._by_name.setdefault(_key(form), letter)
        users = [user for name in names if (user := user_of(name))]
        for other in (*users, *others):
            for form in name_forms(other):
                if len(form) > _SHORT:
                    self._by_name.setdefault(_key(form), "(name)")
        self._names = _pattern(self._by_name)
        self._addresses: dict[str, int] = {}

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
            text = self._names.sub(lambda match: self._by_name[_key(match.group())], text)
            text = _SENTENCE_BOX.sub(_capital, text)
        text = _HOST_KEY.sub("(host key)", text)
        if ":" in text or "-" in text:
            text = _MAC.sub(self._address, text)
            text = _COLONS.sub(self._address_or_same, text)
        text = _IPV4.sub(self._address, text)
        return _USER_AT.sub("(name)@", _HOME.sub(r"\1(name)", text))

    def _address(self, match: re.Match[str]) -> str:
        """One number for each address: two servers must not become one."""
        known = _plain_address(match.group())
        return f"(address {self._addresses.setdefault(known, len(self._addresses) + 1)})"

    def _address_or_same(self, match: re.Match[str]) -> str:
        """Times and ratios have colons too: only what is an IPv6 address goes."""
        text = match.group()
        bare = text.partition("%")[0]
        address = bare.count(":") > 1 and _is_address(bare) and bare != "::"
        return self._address(match) if address else text


def _plain_address(text: str) -> str:
    """One way to write an address that may be written in several."""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return text.casefold().replace("-", ":")


def _key(name: str) -> str:
    return name if len(name) <= _SHORT else name.casefold()


def _pattern(names: Iterable[str]) -> re.Pattern[str] | None:
    """Any of the names as a whole word, the longest first."""
    longest_first = sorted(names, key=len, reverse=True)
    parts = [
        re.escape(name) if len(name) <= _SHORT else f"(?i:{re.escape(name)})"
        for name in longest_first
    ]
    return re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)") if parts else None


def _capital(match: re.Match[str]) -> str:
    return match.group().replace("box", "Box")


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index)
