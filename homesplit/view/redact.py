"""Takes names of machines, users and addresses out of what leaves the notebook."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

_IPV4 = re.compile(r"(?<![0-9A-Za-z])(?<!\d\.)\d{1,3}(?:\.\d{1,3}){3}(?![0-9A-Za-z]|\.\d)")
_IPV6 = re.compile(
    r"(?<![0-9a-z])(?!:::)(?:[0-9a-f]{0,4}:){2,8}"
    r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{1,4})?(?![0-9a-z])",
    re.IGNORECASE,
)
"""With which an IPv6 address may begin: times and ratios have colons too."""
_ZONE = re.compile(r"%[\w-]+(?:\.\w+)*")
_MAC = re.compile(r"(?<![0-9a-z])[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,}(?![0-9a-z])", re.IGNORECASE)
_MAC_INTERFACE = re.compile(r"(?<![0-9a-z])(?:enx|wlx)[0-9a-f]{12}(?![0-9a-z])", re.IGNORECASE)
"""A name that Linux gives to an adapter on USB: its hardware address."""
_HOST_KEY = re.compile(r"SHA256:[A-Za-z0-9+/=]{20,}")
_USER_AT = re.compile(r"(?<![\w.+-])[\w.+-]+(?=@)")
_QUOTED = re.compile(
    r"`[^`]*`|\b\w+://[^\s\"'`<>()]+|\bhomesplit (?:bench|calibrate|compare|cost|demo|discover|"
    r"down|mode|model|notebook|plan|probe|remove|status|up)\b(?:[^.,;:()\"`]|[.,;:](?=\S))*"
)
"""A command or an address: what stands there for a name must be one word."""
_HOME = re.compile(r"(?:(?<=/home/)|(?<=/Users/))[^/\s\"'`,;:()<>]*[^/\s\"'`,;:()<>.]")
_DOMAIN = r"(?:\.[a-z][\w-]*)*"
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
_NAME, _KEY = "(name)", "(host key)"
_SHORT = 2
"""Names up to this length are also words, units and parts of words."""
_PERSON_KEYS = ("user", "username", "login", "owner", "hostname")
"""Where a name is one, whatever else it means."""
NOBODYS = ("localhost", "root")
"""Names that every machine has."""
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
    it. So do names of one or two letters. Another such name (a login, this machine's) still goes
    where it means nothing else: before an `@`, under /home, in a field for it.
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
        users = [user for name in names if (user := user_of(name))]
        people: dict[str, None] = {}
        for other in (*users, *others):
            for form in name_forms(other):
                people[form.casefold()] = None
                if not _is_ordinary(form, ordinary):
                    self._by_name.setdefault(form.casefold(), _NAME)
                elif form not in NOBODYS:
                    kept[form] = None
        self._people = frozenset(people)
        self._names = _pattern(self._by_name)
        self._kept = {name.casefold(): name for name in kept}
        self._kept_names = _pattern(dict.fromkeys(self._kept, _NAME))
        self._met: set[str] = set()
        self._addresses: dict[str, int] = {}

    @property
    def kept(self) -> tuple[str, ...]:
        """Names that stay, of those met so far."""
        return tuple(name for known, name in self._kept.items() if known in self._met)

    def value(self, value: Any, untouched: tuple[str, ...] = ()) -> Any:
        """The value with every string in it redacted, keys of objects too.

        What stands under a key that is `untouched` stays.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(key)): inner
                if key in untouched
                else self._field(key, inner, untouched)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(inner, untouched) for inner in value]
        return value

    def _field(self, key: Any, value: Any, untouched: tuple[str, ...]) -> Any:
        if key in _PERSON_KEYS and isinstance(value, str) and value.casefold() in self._people:
            return self._by_name.get(value.casefold(), _NAME)
        return self.value(value, untouched)

    def text(self, text: str) -> str:
        """One string redacted."""
        quoted = [match.span() for match in _QUOTED.finditer(text)]
        made, end = "", 0
        for start, stop, name in self._found(text):
            self._meet(text[end:start])
            self._met.add(name.casefold())
            while quoted and quoted[0][1] <= start:
                quoted.pop(0)
            in_quotes = bool(quoted) and quoted[0][0] <= start
            made += text[end:start] + (_one_word(name) if in_quotes else name)
            end = stop
        self._meet(text[end:])
        made += text[end:]
        return _SENTENCE_BOX.sub(_capital, made) if self._names is not None else made

    def _meet(self, text: str) -> None:
        """Look for names that stay."""
        if self._kept_names is not None:
            self._met.update(met.casefold() for met in self._kept_names.findall(text))

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """What must go and what is put there: from where to where, in order, each beside the next.

        Where two lie over each other, the one that begins first goes, the longer of two such.
        """
        found = [*self._named(text), *((*span, None) for span in _addresses(text))]
        heads = {start for start, _, _ in found}
        for match in _USER_AT.finditer(text) if "@" in text else ():
            host = match.end() + 1
            known = match.group().casefold() in self._people
            if known or host in heads or (text[host : host + 1] == "[" and host + 1 in heads):
                found.append((*match.span(), _NAME))
        found += [(*match.span(), _NAME) for match in _HOME.finditer(text)]
        found += [(*match.span(), _KEY) for match in _HOST_KEY.finditer(text)]
        chosen: list[tuple[int, int, str]] = []
        end = 0
        # A name goes before an address at the same place: a box may be called by one.
        for start, stop, name in sorted(found, key=lambda one: (one[0], -one[1], one[2] is None)):
            if start >= end:
                told = self._address(text[start:stop]) if name is None else name
                chosen.append((start, stop, told))
                end = stop
        return chosen

    def _named(self, text: str) -> Iterable[tuple[int, int, str | None]]:
        if self._names is None:
            return
        for match in self._names.finditer(text):
            known = match.group().casefold()
            while known and known not in self._by_name:
                known = known.rpartition(".")[0]
            yield *match.span(), self._by_name.get(known, _NAME)

    def _address(self, text: str) -> str:
        """One number for each address: two servers must not become one."""
        known = _plain_address(text)
        return f"(address {self._addresses.setdefault(known, len(self._addresses) + 1)})"


def _addresses(text: str) -> Iterable[tuple[int, int]]:
    """Where addresses stand, of a machine or of its network adapter."""
    for pattern in (_IPV4, _MAC, _MAC_INTERFACE):
        for match in pattern.finditer(text):
            yield match.span()
    at = 0
    while match := _IPV6.search(text, at):
        end = match.start() + len(_ipv6(match.group()))
        if end > match.start():
            zone = _ZONE.match(text, end)
            yield match.start(), zone.end() if zone else end
        at = max(end, match.start() + 1)


def _ipv6(text: str) -> str:
    """The longest IPv6 address with which it begins: a port or a colon may follow."""
    while text and not _is_ipv6(text):
        text = text.rpartition(":")[0]
    return text


def _is_ipv6(text: str) -> bool:
    return text.count(":") > 1 and text != "::" and _is_address(text)


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


def _pattern(told: dict[str, str]) -> re.Pattern[str] | None:
    """Any of the names as a whole word, the longest first; a box's with a domain after it."""
    parts = [
        re.escape(name) + (_DOMAIN if told[name] != _NAME else "")
        for name in sorted(told, key=len, reverse=True)
    ]
    return re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)", re.IGNORECASE) if parts else None


def _capital(match: re.Match[str]) -> str:
    return match.group().replace("box", "Box")


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index)
