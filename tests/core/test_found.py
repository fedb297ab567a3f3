"""One list of machines out of many hints: each machine once, each dead way with its reason."""

from __future__ import annotations

import pytest

from homesplit.core.found import Hint, Tried, address_trouble, advice_when_empty, clean_name, merge


def tried(name: str, address: str, by: str, key: str | None, why: str | None = None) -> Tried:
    return Tried(hint=Hint(name=name, address=address, found_by=by), host_key=key, why=why)


def test_a_machine_with_two_names_and_addresses_is_listed_once_under_the_persons_own_name() -> None:
    boxes = merge(
        [
            tried("atlas", "10.0.0.5", "mDNS: ssh", "K1"),
            tried("atlas", "10.1.0.5", "mDNS: ssh", "K1"),
            tried("gpu", "10.0.0.5", "ssh config", "K1"),
        ]
    )
    assert [b.name for b in boxes] == ["gpu"]
    assert [a.address for a in boxes[0].addresses] == ["10.0.0.5", "10.1.0.5"]
    assert boxes[0].found_by == ("mDNS: ssh", "ssh config")


def test_two_machines_of_one_name_stay_two_and_are_numbered_the_same_every_time() -> None:
    told = [tried("pc", "1.1.1.1", "mDNS: ssh", "K2"), tried("PC", "1.1.1.2", "mDNS: ssh", "K1")]
    for order in (told, told[::-1]):
        assert {b.host_key: b.name for b in merge(order)} == {"K1": "PC", "K2": "pc-2"}
    # Numbered once, a machine keeps its name also when the other one is off or comes first.
    met = [tried("pc-2", "1.1.1.1", "used before", "K2"), *told]
    assert {b.host_key: b.name for b in merge(met)} == {"K1": "PC", "K2": "pc-2"}
    assert [b.name for b in merge(met[:2])] == ["pc-2"]
    third = [tried("pc", "1.1.1.3", "ssh config", "K3"), *told]
    assert {b.host_key: b.name for b in merge(third)} == {"K1": "PC-2", "K2": "pc-3", "K3": "pc"}


def test_a_dead_address_of_a_living_machine_is_shown_with_its_reason() -> None:
    boxes = merge(
        [
            tried("atlas", "10.0.0.5", "mDNS: ssh", "K1"),
            tried("atlas", "172.17.0.1", "mDNS: ssh", None, "no answer"),
        ]
    )
    assert len(boxes) == 1
    assert [(a.usable, a.why) for a in boxes[0].addresses] == [(True, None), (False, "no answer")]


def test_a_machine_that_never_answers_is_listed_as_not_usable() -> None:
    (box,) = merge([tried("printer", "10.0.0.9", "mDNS: smb", None, "refuses")])
    assert (box.usable, box.why) == (False, "refuses")


def test_this_machine_is_usable_without_ssh_and_known_by_its_own_key() -> None:
    boxes = merge(
        [
            tried("desk", "127.0.0.1", "this machine", "K0"),
            tried("desk", "10.0.0.2", "mDNS: ssh", "K0"),
        ],
        own_key="K0",
    )
    assert [(b.name, b.this_machine, b.usable) for b in boxes] == [("desk", True, True)]
    (bare,) = merge([tried("desk", "127.0.0.1", "this machine", None)])
    assert bare.usable


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("atlas.local.", "atlas"),
        ("spark-1a2b.local", "spark-1a2b"),
        ("-oProxyCommand=x.local.", None),
        ("a\x00b", None),
        ("\x1b[31mred", None),
        ("two words", None),
        ("", None),
        ("x" * 64, None),
    ],
)
def test_names_are_made_fit_or_dropped(raw: str, clean: str | None) -> None:
    assert clean_name(raw) == clean


@pytest.mark.parametrize(
    ("address", "port", "part"),
    [
        ("fe80::1", 22, "without its zone"),
        ("127.0.0.1", 22, "loopback"),
        ("0.0.0.0", 22, "not the address"),
        ("224.0.0.1", 22, "not the address"),
        ("10.0.0.1", 0, "port 0"),
        ("nonsense", 22, "not an IP address"),
    ],
)
def test_addresses_that_lead_nowhere_say_why(address: str, port: int, part: str) -> None:
    assert part in (address_trouble(address, port) or "")


@pytest.mark.parametrize("address", ["172.17.0.9", "10.0.0.1", "fe80::1%eth0", "fd00::2"])
def test_no_network_vanishes_by_its_prefix(address: str) -> None:
    assert address_trouble(address, 22) is None


def test_nothing_found_says_what_to_do_and_something_found_does_not() -> None:
    assert "openssh-server" in (advice_when_empty(()) or "")
    boxes = merge([tried("a", "10.0.0.5", "typed", "K")])
    assert advice_when_empty(boxes) is None
