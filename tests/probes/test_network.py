"""Interfaces, their labels and addresses, on recorded output."""

from __future__ import annotations

from pathlib import Path

import pytest
from homesplit_probes import facts

GOLDEN = Path(__file__).parent / "golden"


def test_a_speed_of_minus_1_and_that_of_a_virtual_interface_are_unknown() -> None:
    found = facts.parse_interfaces(
        "a|-1|1400|wired|up\nb|1000|9000|wired|up\nc|10000|1500|virtual|up"
    )
    assert [found[n]["label_bytes_per_s"] for n in "abc"] == [None, 125e6, None]
    assert found["b"]["mtu"] == 9000


@pytest.mark.parametrize("speed", ["65535", "4294967295", "", "Unknown!", "0"])
def test_a_speed_that_older_kernels_do_not_know_is_unknown(speed: str) -> None:
    assert facts.parse_interfaces(f"a|{speed}|1500|wired|up")["a"]["label_bytes_per_s"] is None


MAC_INTERFACES = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 1c:57:dc:00:00:01
\tinet6 fe80::1%en0 prefixlen 64 secured scopeid 0xe
\tinet 192.168.1.20 netmask 0xffffff00 broadcast 192.168.1.255
\tmedia: autoselect (10Gbase-T <full-duplex,flow-control>)
\tstatus: active
en1: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tmedia: autoselect
\tstatus: active
en7: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 9000
\tmedia: autoselect (1000baseT <full-duplex>)
\tstatus: active
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tinet 169.254.10.1 netmask 0xffff0000 broadcast 169.254.255.255
\tmedia: <unknown type>
\tstatus: active
utun3: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1280
Hardware Port: Ethernet
Device: en0
Ethernet Address: 1c:57:dc:00:00:01

Hardware Port: Wi-Fi
Device: en1
Ethernet Address: 1c:57:dc:00:00:02

Hardware Port: USB 10/100/1000 LAN
Device: en7
Ethernet Address: 1c:57:dc:00:00:03

Hardware Port: Thunderbolt Bridge
Device: bridge0
Ethernet Address: 36:00:00:00:00:01
"""


def test_a_macs_interfaces_have_label_mtu_and_kind() -> None:
    found = facts.parse_interfaces(MAC_INTERFACES)
    told = {name: (each["kind"], each["label_bytes_per_s"]) for name, each in found.items()}
    assert told == {
        "en0": ("wired", 1.25e9),
        "en1": ("wifi", None),
        "en7": ("wired", 125e6),
        "bridge0": ("bridge", None),
        "utun3": ("tunnel", None),
    }
    assert (found["en7"]["mtu"], found["en0"]["state"]) == (9000, "active")
    assert facts.parse_addresses(MAC_INTERFACES) == [
        {"interface": "en0", "address": "fe80::1"},
        {"interface": "en0", "address": "192.168.1.20"},
        {"interface": "bridge0", "address": "169.254.10.1"},
    ]


def test_addresses_are_read_from_busyboxs_ifconfig_and_from_ssh_where_nothing_else_is() -> None:
    old = (
        "eth0      Link encap:Ethernet  HWaddr 02:42:AC:11:00:02\n"
        "          inet addr:172.17.0.2  Bcast:172.17.255.255  Mask:255.255.0.0\n"
        "          inet6 addr: fd00::2/64 Scope:Global\n"
        "lo        Link encap:Local Loopback\n"
        "          inet addr:127.0.0.1  Mask:255.0.0.0\n"
    )
    assert [a["address"] for a in facts.parse_addresses(old)] == ["172.17.0.2", "fd00::2"]
    assert facts.parse_addresses("ssh 10.0.0.2 50412 10.0.0.11 22\n") == [
        {"interface": "", "address": "10.0.0.11"}
    ]
    assert facts.parse_addresses("ssh \n") == []


def test_addresses_of_linux_and_macos_leave_loopback_out() -> None:
    linux = "1: lo    inet 127.0.0.1/8\n2: eth0@if4    inet 10.0.0.5/24 brd\n"
    linux += "2: eth0    inet6 fe80::1/64"
    assert facts.parse_addresses(linux) == [
        {"interface": "eth0", "address": "10.0.0.5"},
        {"interface": "eth0", "address": "fe80::1"},
    ]
    mac = (
        "lo0: flags=8049\n\tinet 127.0.0.1 netmask\nen0: flags=8863\n\tinet 10.0.0.7 netmask 0xff\n"
    )
    assert facts.parse_addresses(mac) == [{"interface": "en0", "address": "10.0.0.7"}]
