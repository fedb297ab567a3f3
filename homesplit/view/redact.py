"""Takes names of machines, users and addresses out of what leaves the notebook."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

Written = Callable[[str], str]
"""How a name that is put in is written."""
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_COLONS = re.compile(r"(?<![\w:.])[0-9a-f:]*:[0-9a-f.:]*[0-9a-f:](?:%\w+)?(?!\w)", re.IGNORECASE)
_MAC = re.compile(r"(?<![\w:])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}(?![\w:])", re.IGNORECASE)
_HOST_KEY = re.compile(r"SHA256:[A-Za-z0-9+/=]{20,}")
_USER_AT = re.compile(r"[\w.+-]+@(?=\[?(?:box \w|BOX_\w|\(name\)|NAME|\(address \d+\)|ADDRESS_\d))")
_QUOTED = re.compile(
    r"`[^`]*`|\b\w+://[^\s\"'`<>()]+|\bhomesplit (?:bench|calibrate|compare|cost|demo|discover|"
    r"down|mode|model|notebook|plan|probe|remove|status|up)\b[^.;:()\"`]*"
)
"""A command or an address: what stands there for a name must be one word."""
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s\"']+")
_BOX_KEYS = (
    "box",
    "boxes",
    "prefill_box",
    "decode_box",
    "router_box",
    "box_from",
    "box_to",
    "curve_boxes",
)
_LONE_KEYS = ("a", "b", "name", "hostname")
_SENTENCE_BOX = re.compile(r"((?<=[.!?] )|^(?=box \w+ .*[.!?)]$))box (?=[A-Z0-9])", re.DOTALL)
"""A box's letter where a sentence begins: after another one, or at the head of a whole one."""
_SHORT = 2
"""Names up to this length are also words, units and parts of words."""
ANSWERS = ("text", "reasoning")
"""What a model wrote, in a request's record: its words name no machine of anybody."""


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
            if key in ("url", "address") and isinstance(inner, str) and (host := _host_of(inner)):
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

    In commands and addresses one word stands for each: `BOX_A`. An address has the same number
    wherever this redaction meets it. Case makes no difference, and every form of a name counts:
    with a user, a port or a domain, or without.

    `ordinary` are names, in lower case, that are words of our own texts as well: a box called
    `left` keeps that name, without its domain. It tells nobody's, and no other word is taken for
    it. So do names of one or two letters.
    """

    def __init__(
        self,
        boxes: Iterable[str],
        others: Iterable[str] = (),
        ordinary: frozenset[str] = frozenset(),
    ) -> None:
        names = list(dict.fromkeys(boxes))
        self._by_name: dict[str, str] = {}
        letters: dict[str, str] = {}
        kept: dict[str, None] = {}
        for name in names:
            forms = name_forms(name)
            machine, bare = forms[0].casefold().removesuffix(".local"), forms[:2][-1]
            if _is_ordinary(bare, ordinary):
                kept[bare] = None
                letter = bare
            else:
                letter = letters.setdefault(machine, f"box {_letter(len(letters))}")
            for form in forms:
                if form != letter:
                    self._by_name.setdefault(form.casefold(), letter)
        self.kept = tuple(kept)
        """Names that stay."""
        users = [user for name in names if (user := user_of(name))]
        for other in (*users, *others):
            for form in name_forms(other):
                if not _is_ordinary(form, ordinary):
                    self._by_name.setdefault(form.casefold(), "(name)")
        self._names = _pattern(self._by_name)
        self._addresses: dict[str, int] = {}

    def value(self, value: Any, untouched: tuple[str, ...] = ()) -> Any:
        """The value with every string in it redacted, keys of objects too.

        What stands under a key that is `untouched` stays.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(key)): inner if key in untouched else self.value(inner, untouched)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(inner, untouched) for inner in value]
        return value

    def text(self, text: str) -> str:
        """One string redacted."""
        made, end = "", 0
        for quoted in _QUOTED.finditer(text):
            made += self._part(text[end : quoted.start()], _as_it_is)
            made += self._part(quoted.group(), _one_word)
            end = quoted.end()
        made += self._part(text[end:], _as_it_is)
        return _SENTENCE_BOX.sub(_capital, made) if self._names is not None else made

    def _part(self, text: str, written: Written) -> str:
        """A part of a string, what is put in as it is `written` there."""

        def address(match: re.Match[str]) -> str:
            return written(self._address(match.group()))

        def address_or_same(match: re.Match[str]) -> str:
            return address(match) if _is_ipv6(match.group()) else match.group()

        if self._names is not None:
            text = self._names.sub(lambda m: written(self._by_name[m.group().casefold()]), text)
        text = _HOST_KEY.sub(written("(host key)"), text)
        if ":" in text or "-" in text:
            text = _MAC.sub(address, text)
            text = _COLONS.sub(address_or_same, text)
        text = _IPV4.sub(address, text)
        name = written("(name)")
        return _USER_AT.sub(f"{name}@", _HOME.sub(rf"\1{name}", text))

    def _address(self, text: str) -> str:
        """One number for each address: two servers must not become one."""
        known = _plain_address(text)
        return f"(address {self._addresses.setdefault(known, len(self._addresses) + 1)})"


def _is_ipv6(text: str) -> bool:
    """Times and ratios have colons too: only what is an IPv6 address goes."""
    bare = text.partition("%")[0]
    return bare.count(":") > 1 and _is_address(bare) and bare != "::"


def _as_it_is(name: str) -> str:
    return name


def _one_word(name: str) -> str:
    """`BOX_A` for `box A`, `ADDRESS_1` for `(address 1)`; a name that stays as it is."""
    if not name.startswith(("box ", "(")):
        return name
    return name.strip("()").replace(" ", "_").upper()


def _is_ordinary(name: str, ordinary: frozenset[str]) -> bool:
    return len(name) <= _SHORT or name.casefold() in ordinary


def _plain_address(text: str) -> str:
    """One way to write an address that may be written in several."""
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return text.casefold().replace("-", ":")


def _pattern(names: Iterable[str]) -> re.Pattern[str] | None:
    """Any of the names as a whole word, the longest first."""
    parts = [re.escape(name) for name in sorted(names, key=len, reverse=True)]
    return re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)", re.IGNORECASE) if parts else None


def _capital(match: re.Match[str]) -> str:
    return match.group().replace("box", "Box")


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index)
