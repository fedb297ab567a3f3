"""Which way the hand-off goes between two boxes, and how fast that way was measured."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from homesplit.core.candidates import payload
from homesplit.core.found import lacks_zone
from homesplit.core.link import LinkProfile
from homesplit.errors import DeployError, ProfileError
from homesplit.stages.deploy_survey import SeenBox


def choose_addresses(boxes: Sequence[SeenBox], link: LinkProfile | None) -> dict[str, str]:
    """The address each worker listens on: the measured link's, else the one SSH came in by.

    A measured address that the box has no more does not count. Raises DeployError.
    """
    if len(boxes) == 1:
        return {boxes[0].name: "127.0.0.1"}
    chosen: dict[str, str] = {}
    for seen, other in ((boxes[0], boxes[1]), (boxes[1], boxes[0])):
        linked, own = _linked(link, seen.name), seen.facts.addresses
        if linked and (not own or linked.partition("%")[0] in own):
            chosen[seen.name] = linked
        elif seen.box.local:
            chosen[seen.name] = other.facts.desk_address or "127.0.0.1"
        else:
            chosen[seen.name] = seen.facts.own_address or seen.box.address
    for name, address in chosen.items():
        _must_be_an_address(name, address)
        _must_reach_others(name, address, boxes)
    return chosen


def measured_rate(link: LinkProfile | None, addresses: Mapping[str, str]) -> float | None:
    """Payload bytes per second of the measured link's slower direction.

    None, which lets the router learn it, where nothing was measured between these addresses.
    """
    if link is None or any(_linked(link, name) != at for name, at in addresses.items()):
        return None
    try:
        return min(payload(link))
    except ProfileError:
        return None


def _linked(link: LinkProfile | None, name: str) -> str | None:
    if link is None or link.loopback:
        return None
    return {link.a: link.address_a, link.b: link.address_b}.get(name)


def _must_reach_others(name: str, address: str, boxes: Sequence[SeenBox]) -> None:
    """An address with a zone holds on its own machine alone."""
    if "%" in address or lacks_zone(address):
        names = " ".join(seen.name for seen in boxes)
        raise DeployError(
            f"it was reached at {address}, a link-local address by which no other box reaches it.",
            where=name,
            do_next=f"Run `homesplit probe {names}` first: it finds the way between the two.",
        )


def _must_be_an_address(name: str, address: str) -> None:
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError as error:
        raise DeployError(
            f"its address {address} is no IP address that a worker could listen on.",
            where=name,
            do_next="Measure the link first: homesplit probe A B",
        ) from error
