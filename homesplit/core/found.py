"""Puts together what was heard, configured, remembered and tried into one list of machines."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from homesplit.core.machine import Address, FoundBox

SHOW_HOST_KEYS = "cat /etc/ssh/ssh_host_*_key.pub | ssh-keygen -lf -"
"""The command that tells, on a box, the fingerprints of whatever keys it has."""
_LONGEST_NAME = 63
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
NO_ZONE = "a link-local IPv6 address without its zone (%interface) can't be dialled"


class Hint(Struct, frozen=True, kw_only=True):
    """One source's word that a machine may be at an address, not yet tried."""

    name: str
    address: str
    port: int = 22
    found_by: str
    """`mDNS: <service type>`, `ssh config`, `used before`, `typed` or `this machine`."""
    interface: str | None = None
    user: str | None = None
    host_key: str | None = None
    """The key that the machine meant had, where that is known."""
    through: str | None = None
    """The jump hosts, or `ProxyCommand`, by which the user's configuration leads there."""
    trouble: str | None = None
    """Why there is no way to try it, in words."""


class Tried(Struct, frozen=True, kw_only=True):
    """A hint, and the host key that answered or why none did."""

    hint: Hint
    host_key: str | None = None
    trusted: bool = False
    interface: str | None = None
    """The interface of this machine that the connection took."""
    why: str | None = None


def clean_name(raw: str) -> str | None:
    """A host name made fit to show and to use, None when nothing of it is.

    Control characters, escapes and blanks make a name unusable; a leading dash would read
    as an option.
    """
    name = raw.strip().rstrip(".")
    name = name.removesuffix(".local").removesuffix(".lan")
    if not name or len(name) > _LONGEST_NAME or name[0] in "-.":
        return None
    return name if set(name) <= _NAME_CHARACTERS else None


def address_trouble(address: str, port: int) -> str | None:
    """Why an address can't lead to another machine, None when it may."""
    bare = address.partition("%")[0]
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return "not an IP address"
    if not 0 < port < 65536:
        return f"port {port} can't be"
    if parsed.is_loopback:
        return "a loopback address leads back to this machine"
    if parsed.is_unspecified or parsed.is_multicast:
        return "not the address of a machine"
    return NO_ZONE if lacks_zone(address) else None


def lacks_zone(address: str) -> bool:
    """Whether this is a link-local IPv6 address that doesn't say on which interface."""
    bare, _, zone = address.partition("%")
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:
        return False
    return parsed.version == 6 and parsed.is_link_local and not zone


def merge(tried: Iterable[Tried], *, own_key: str | None = None) -> tuple[FoundBox, ...]:
    """Each machine once, known by its host key; those without one by their name."""
    groups: dict[str, list[Tried]] = {}
    for one in tried:
        groups.setdefault(one.host_key or f"name {one.hint.name.lower()}", []).append(one)
    keyed = {t.hint.name.lower() for key, ts in groups.items() if key[:5] != "name " for t in ts}
    boxes = [
        _box(group, own_key)
        for key, group in groups.items()
        # A name that answered elsewhere only adds an address that doesn't; it is shown there.
        if not (key.startswith("name ") and key[5:] in keyed)
    ]
    named = {key[5:]: group for key, group in groups.items() if key.startswith("name ")}
    extra = {name: group for name, group in named.items() if name in keyed}
    return tuple(sorted(_told_apart([_with_dead(b, extra) for b in boxes]), key=_order))


def _told_apart(boxes: Sequence[FoundBox]) -> list[FoundBox]:
    """Machines that bear one name are numbered, those that the person named last."""
    taken: set[str] = set()
    named: list[FoundBox] = []
    for box in sorted(boxes, key=lambda b: (_rank(b), b.host_key or "")):
        name, number = box.name, 2
        while name.lower() in taken:
            name, number = f"{box.name}-{number}", number + 1
        taken.add(name.lower())
        named.append(structs.replace(box, name=name))
    return named


def _rank(box: FoundBox) -> int:
    return min(_NAMING.get(source.split(":")[0], 9) for source in box.found_by)


def _with_dead(box: FoundBox, extra: dict[str, list[Tried]]) -> FoundBox:
    dead = extra.get(box.name.lower(), [])
    if not dead:
        return box
    known = {(a.address, a.port) for a in box.addresses}
    added = [_address(t) for t in dead if (t.hint.address, t.hint.port) not in known]
    return structs.replace(
        box,
        addresses=(*box.addresses, *_once(added)),
        found_by=tuple(dict.fromkeys([*box.found_by, *(t.hint.found_by for t in dead)])),
    )


def _box(group: Sequence[Tried], own_key: str | None) -> FoundBox:
    best = min(group, key=lambda t: _NAMING.get(t.hint.found_by.split(":")[0], 9))
    key = best.host_key
    this = any(t.hint.found_by == "this machine" for t in group)
    this = this or (key is not None and key == own_key)
    usable = this or key is not None or any(t.hint.through and t.why is None for t in group)
    return FoundBox(
        name=best.hint.name,
        host_key=key or (own_key if this else None),
        addresses=_once([_address(t) for t in group if t.hint.address]),
        found_by=tuple(dict.fromkeys(t.hint.found_by for t in group)),
        this_machine=this,
        usable=usable,
        why=None if usable else group[0].why,
        trusted=this or any(t.trusted for t in group),
        user=next((t.hint.user for t in group if t.hint.user), None),
    )


_NAMING = {"this machine": 0, "ssh config": 1, "used before": 2, "mDNS": 3, "typed": 4}
"""Whose name for a machine is taken, the smallest first: the person's own before others'."""


def _address(one: Tried) -> Address:
    return Address(
        address=one.hint.address,
        port=one.hint.port,
        interface=one.interface or one.hint.interface,
        usable=one.why is None,
        why=one.why,
    )


def _once(addresses: Sequence[Address]) -> tuple[Address, ...]:
    """Each address once, those that answered first."""
    found: dict[tuple[str, int], Address] = {}
    for address in sorted(addresses, key=lambda a: (not a.usable, ":" in a.address, a.address)):
        found.setdefault((address.address, address.port), address)
    return tuple(found.values())


def _order(box: FoundBox) -> tuple[bool, bool, str]:
    return (not box.this_machine, not box.usable, box.name.lower())


def advice_when_empty(boxes: Sequence[FoundBox]) -> str | None:
    """What to do when no other machine can be used, None when one can."""
    if any(b.usable and not b.this_machine for b in boxes):
        return None
    return (
        "No other machine can be used yet. A stock Ubuntu or Debian announces no SSH even when "
        "it runs: install openssh-server there (macOS: System Settings, General, Sharing, Remote "
        "Login), then name it by its address, e.g. `homesplit probe user@192.168.1.20`, or put "
        "it into ~/.ssh/config as a Host. Wi-Fi guest networks and VPNs carry no announcements."
    )
