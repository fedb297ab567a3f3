"""By which addresses two boxes reach each other: what is tried, and what came of it."""

from __future__ import annotations

from typing import Any

from homesplit.core.link import Way

_NO_ADDRESS = (
    "it has only a link-local IPv6 address; give both ends of that cable an IPv4 address and probe "
    "again"
)


def link_addresses(
    listener: dict[str, Any], driver: dict[str, Any], first: str, *, most: int = 6
) -> tuple[str, ...]:
    """Addresses on which the listener may be reached, the one in use first.

    Left out are link-local IPv6 (no zone to dial it by) and what both boxes call their own
    (a container bridge's address on each), which would lead a box to itself.
    """
    others = {a["address"] for a in driver.get("addresses") or []}
    own: list[str] = [a["address"] for a in listener.get("addresses") or []]
    usable = [
        a for a in own if a not in others and not a.startswith("127.") and not _is_link_local_6(a)
    ]
    # A cable between two boxes may have nothing but what both gave themselves, 169.254.x.y.
    ordered = sorted(usable, key=lambda a: (a != first, ":" in a, a.startswith("169.254.")))
    return tuple(ordered[:most])


def _is_link_local_6(address: str) -> bool:
    return address.lower().startswith("fe80:")


def interface_of(facts: dict[str, Any], address: str | None) -> str | None:
    """The interface that has this address, None where that is not told."""
    known = facts.get("addresses") or []
    return next((a["interface"] for a in known if a["address"] == address), None) or None


def interface(facts: dict[str, Any], name: str | None) -> dict[str, Any]:
    """What is told of an interface; nothing of one that is not known."""
    return (facts.get("interfaces") or {}).get(name or "", {})


def ways_of(
    answer: dict[str, Any], facts_a: dict[str, Any], facts_b: dict[str, Any]
) -> tuple[Way, ...]:
    """Every pair of addresses that was tried, and cables that could be if they had some."""
    # The only way there is has no trial of its own before it is measured.
    whole = (answer.get("out_1") or {}).get("value")
    tried = tuple(
        Way(
            address_a=way.get("local"),
            address_b=way["peer"],
            interface_a=interface_of(facts_a, way.get("local")),
            interface_b=interface_of(facts_b, way["peer"]),
            bytes_per_s=way.get("rate") or (whole if way["peer"] == answer.get("peer") else None),
            used=way["peer"] == answer.get("peer"),
            why=way.get("why"),
        )
        for way in answer.get("ways") or []
    )
    return tried + _cables_without_addresses(facts_a, facts_b)


def _cables_without_addresses(facts_a: dict[str, Any], facts_b: dict[str, Any]) -> tuple[Way, ...]:
    """Wires of both boxes that have but a link-local IPv6 address, which no other box can dial."""
    near, far = _only_link_local(facts_a), _only_link_local(facts_b)
    if not near:
        return ()
    return tuple(
        Way(address_a=None, address_b=address, interface_b=interface, why=_NO_ADDRESS)
        for interface, address in far.items()
    )


def _only_link_local(facts: dict[str, Any]) -> dict[str, str]:
    """By wired interface that is up, its link-local IPv6 address where it has no other."""
    found: dict[str, list[str]] = {}
    for one in facts.get("addresses") or []:
        known = interface(facts, one["interface"])
        if known.get("kind") == "wired" and known.get("state") in ("up", "active"):
            found.setdefault(one["interface"], []).append(one["address"])
    return {name: own[0] for name, own in found.items() if all(map(_is_link_local_6, own))}
