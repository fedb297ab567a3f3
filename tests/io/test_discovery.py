"""Discovery for real on loopback: announcements come, go and may be malformed; SSH is tried."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import asyncssh
import pytest
from zeroconf import IPVersion
from zeroconf._dns import DNSAddress, DNSPointer, DNSService, DNSText
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from homesplit.core.found import Hint, Tried, merge
from homesplit.io.box_store import KnownBox, load_boxes, remember_box
from homesplit.io.discovery import (
    Browser,
    browsing_addresses,
    configured_hints,
    hints_of,
    own_announcement,
)
from homesplit.io.knock import Knocker, scoped, try_hints
from homesplit.io.known_hosts import remember
from homesplit.io.paths import Paths

SSH = "_ssh._tcp.local."
PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("interfaces", "listened"),
    [
        ("lo eth0 docker0 br-1a2b3c4d5e6f virbr0 tun0 wg0 tailscale0", "eth0"),
        ("lo enp1s0 br-lan br0 vmbr0", "enp1s0 br-lan br0 vmbr0"),
        # Inside a container or a namespace the only network may be named like one.
        ("lo veth7", "veth7"),
        ("docker0", "docker0"),
        ("", ""),
    ],
)
def test_networks_are_listened_on_and_bridges_of_containers_are_not(
    monkeypatch: pytest.MonkeyPatch, interfaces: str, listened: str
) -> None:
    told = {name: [f"{name}'s", "fe80::1"] for name in interfaces.split()}
    monkeypatch.setattr("homesplit.io.discovery.own_addresses", lambda: told)
    assert browsing_addresses() == [f"{name}'s" for name in listened.split()]


async def test_an_announced_machine_appears_and_goes() -> None:
    changed = asyncio.Event()
    browser = Browser(["127.0.0.1"], changed.set)
    assert await browser.start() is None
    announcer = AsyncZeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    info = AsyncServiceInfo(
        SSH,
        f"testbox.{SSH}",
        port=2222,
        addresses=[socket.inet_aton("192.0.2.7")],
        server="testbox.local.",
    )
    try:
        await announcer.async_register_service(info)
        async with asyncio.timeout(PATIENCE_S):
            while not any(h.name == "testbox" for h in browser.hints()):
                await changed.wait()
                changed.clear()
        (hint,) = [h for h in browser.hints() if h.name == "testbox"]
        assert (hint.address, hint.port, hint.found_by) == ("192.0.2.7", 2222, "mDNS: ssh")
        await announcer.async_unregister_service(info)
        async with asyncio.timeout(PATIENCE_S):
            while any(h.name == "testbox" for h in browser.hints()):
                await changed.wait()
                changed.clear()
    finally:
        await announcer.async_close()
        await browser.close()


def test_our_own_announcement_claims_no_name_of_the_machine_and_is_read_as_it() -> None:
    info = own_announcement("atlas.fritz.box", ["10.0.0.7", "10.9.0.7"])
    assert (info.server, info.port) == ("homesplit-atlas.local.", 22)
    hints = hints_of("_homesplit._tcp.local.", info.name, info)
    told = [(hint.name, hint.address, hint.found_by) for hint in hints]
    assert told == [("atlas", at, "mDNS: homesplit") for at in ("10.0.0.7", "10.9.0.7")]


async def test_who_looks_is_announced_but_does_not_find_itself() -> None:
    seen: list[str] = []
    looker = AsyncZeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    browser = Browser(["127.0.0.1"], lambda: None)
    try:
        assert await browser.start() is None
        name = f"{socket.gethostname().split('.')[0]}._homesplit._tcp.local."
        info = AsyncServiceInfo("_homesplit._tcp.local.", name)
        for _ in range(30):
            if await info.async_request(looker.zeroconf, 2000):
                seen += info.parsed_scoped_addresses()
                break
        assert seen == ["127.0.0.1"]
        assert [h for h in browser.hints() if h.found_by == "mDNS: homesplit"] == []
    finally:
        await browser.close()
        await looker.async_close()


async def test_who_announces_without_end_fills_the_list_but_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("homesplit.io.discovery._MOST_HINTS", 3)
    changed = asyncio.Event()
    browser = Browser(["127.0.0.1"], changed.set)
    announcer = AsyncZeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
    services = [
        AsyncServiceInfo(
            SSH,
            f"flood{i}.{SSH}",
            port=22,
            addresses=[socket.inet_aton(f"192.0.2.{i}")],
            server=f"flood{i}.local.",
        )
        for i in range(8)
    ]
    try:
        assert await browser.start() is None
        for info in services:
            await announcer.async_register_service(info, cooperating_responders=True)
        async with asyncio.timeout(PATIENCE_S):
            while not browser.overfull:
                await changed.wait()
                changed.clear()
        assert len(browser.hints()) <= 3
    finally:
        await announcer.async_close()
        await browser.close()


def test_boxes_met_before_are_bounded_and_those_logged_in_to_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.io.box_store.MOST_BOXES", 3)
    paths = Paths(config=tmp_path / "c", cache=tmp_path / "k", data=tmp_path / "d")
    for name, user in (("own", "me"), ("b1", None), ("b2", None), ("b3", None), ("b4", "me")):
        remember_box(paths, KnownBox(name=name, host_key=f"SHA256:{name}", user=user))
    assert [b.name for b in load_boxes(paths)] == ["own", "b3", "b4"]
    for name in ("b5", "b6"):
        remember_box(paths, KnownBox(name=name, host_key=f"SHA256:{name}", user="me"))
    assert [b.name for b in load_boxes(paths)] == ["b4", "b5", "b6"]


def test_hostile_records_give_no_hint() -> None:
    for server in ("-oProxyCommand=touch x.local.", "a\x00b.local.", "\x1b[2J.local."):
        info = SimpleNamespace(server=server, port=22, parsed_scoped_addresses=lambda: ["1.2.3.4"])
        assert hints_of(SSH, f"\x1b.{SSH}", info) == []


async def test_a_server_is_known_by_its_key_and_a_closed_port_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.io.knock._TRY_S", PATIENCE_S)
    monkeypatch.setattr("homesplit.io.knock._HANDSHAKE_S", PATIENCE_S)
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key])
    port = server.get_port()
    hints = [
        Hint(name="a", address="127.0.0.1", port=port, found_by="typed"),
        Hint(name="b", address="127.0.0.1", port=1, found_by="typed"),
        Hint(name="c", address="fe80::1", port=22, found_by="mDNS: ssh"),
        Hint(name="d", address="fe80::1", port=22, found_by="typed"),
    ]
    known = tmp_path / "known_hosts"
    live, dead, zoneless, typed = await try_hints(hints, [known])
    assert (live.host_key, live.trusted, live.why) == (key.get_fingerprint(), False, None)
    assert "refuses" in (dead.why or "")
    assert "zone" in (zoneless.why or "")
    assert zoneless.why == typed.why
    remember(known, [f"[127.0.0.1]:{port}"], key.convert_to_public())
    (again,) = await try_hints(hints[:1], [known])
    assert again.trusted
    server.close()


def test_a_link_local_address_keeps_the_interface_it_was_named_with() -> None:
    number, name = socket.if_nameindex()[0]
    assert scoped("fe80::1", 22, 0, number) == f"fe80::1%{name}"
    assert scoped("fe80::1", 22, 0, 0) == "fe80::1"
    assert scoped("10.0.0.5", 22) == "10.0.0.5"


async def test_hosts_of_the_ssh_configuration_are_hints_with_include_and_without_wildcards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more").write_text("Host mini\n  HostName 10.0.0.8\n  User me\n")
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/more\nHost big *.lan !x\n  Port 2222\nHost *\n")
    monkeypatch.setenv("HOMESPLIT_SSH_CONFIG", str(config))
    hints = {h.name: h for h in await configured_hints()}
    assert set(hints) == {"big", "mini"}
    assert (hints["mini"].address, hints["mini"].user) == ("10.0.0.8", "me")
    assert hints["big"].port == 2222


async def test_a_host_whose_configuration_can_not_be_read_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("Host odd\n  HostName fe80::1%eth0\nHost worse\n  Port no\n")
    monkeypatch.setenv("HOMESPLIT_SSH_CONFIG", str(config))
    boxes = merge(await try_hints(await configured_hints(), []))
    assert [(box.name, box.usable) for box in boxes] == [("odd", False), ("worse", False)]
    for box in boxes:
        assert f"the ssh configuration {config} can't be used: " in (box.why or "")


async def test_a_box_behind_a_jump_host_can_be_used_as_long_as_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homesplit.io.knock._TRY_S", PATIENCE_S)
    monkeypatch.setattr("homesplit.io.knock._HANDSHAKE_S", PATIENCE_S)
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen("127.0.0.1", 0, server_host_keys=[key])
    config = tmp_path / "config"
    config.write_text(
        f"Host jump\n  HostName 127.0.0.1\n  Port {server.get_port()}\n"
        "Host inner\n  HostName 10.0.0.8\n  ProxyJump jump,second\n"
        "Host lost\n  HostName 10.0.0.9\n  ProxyJump me@127.0.0.1:1\n"
        "Host own\n  HostName 10.0.0.10\n  ProxyCommand nc %h %p\n"
        "Host beyond\n  HostName 10.0.0.11\n  ProxyJump inner\n"
    )
    monkeypatch.setenv("HOMESPLIT_SSH_CONFIG", str(config))
    boxes = {b.name: b for b in merge(await try_hints(await configured_hints(), []))}
    server.close()
    usable = {name for name, box in boxes.items() if box.usable}
    assert usable == {"jump", "inner", "own", "beyond"}
    assert boxes["inner"].found_by == ("ssh config: over jump,second",)
    assert [(a.address, a.usable) for a in boxes["inner"].addresses] == [("10.0.0.8", True)]
    assert "its jump host me@127.0.0.1:1: " in (boxes["lost"].why or "")


def announcement(name: str, address: str) -> bytes:
    """What a machine that offers SSH says to everybody."""
    told = DNSOutgoing(0x8400)
    full, host, ttl = f"{name}.{SSH}", f"{name}.local.", 120
    told.add_answer_at_time(DNSPointer(SSH, 12, 1, ttl, full), 0)
    told.add_answer_at_time(DNSService(full, 33, 1, ttl, 0, 0, 22, host), 0)
    told.add_answer_at_time(DNSText(full, 16, 1, ttl, b"\x03a=b"), 0)
    told.add_answer_at_time(DNSAddress(host, 1, 1, ttl, socket.inet_aton(address)), 0)
    (packet,) = told.packets()
    return packet


def damaged(packet: bytes, chance: random.Random) -> bytes:
    """The packet with bytes changed, cut off, doubled, or names that point at themselves."""
    spoilt = bytearray(packet)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(spoilt))
        match chance.randrange(4):
            case 0:
                spoilt[at] = chance.randrange(256)
            case 1:
                spoilt[at : at + 2] = bytes([0xC0 | at >> 8, at & 0xFF])
            case 2:
                del spoilt[max(12, at) :]
            case _:
                spoilt += spoilt[at:]
    return bytes(spoilt[:9000])


async def test_noise_on_the_network_ends_nothing_and_brings_no_name_that_cannot_be() -> None:
    chance = random.Random(8)
    names = ["plain", "-oProxyCommand=x", "$(reboot)", "a b;c", "../up", "\x1b[2J", "é" * 20]
    changed = asyncio.Event()
    browser = Browser(["127.0.0.1"], changed.set)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loud:
        loud.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        loud.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)

        def say(packet: bytes) -> None:
            loud.sendto(packet, ("224.0.0.251", 5353))

        try:
            assert await browser.start() is None
            for turn in range(600):
                packet = announcement(chance.choice(names), "192.0.2.9")
                noise = damaged(packet, chance), packet, chance.randbytes(turn)
                say(noise[max(0, turn % 6 - 3)])
                if turn % 20 == 0:
                    await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                while not any(hint.address == "192.0.2.200" for hint in browser.hints()):
                    say(announcement("steady", "192.0.2.200"))
                    await asyncio.sleep(0.05)
        finally:
            await browser.close()
    for hint in browser.hints():
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", hint.name), hint


async def test_a_server_that_has_just_answered_is_left_in_peace_and_a_silent_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def ask(hint: Hint, _: object) -> Tried:
        asked.append(hint.address)
        return Tried(hint=hint, host_key="K") if hint.address == "10.0.0.1" else Tried(hint=hint)

    monkeypatch.setattr("homesplit.io.knock._try", ask)
    hints = [
        Hint(name=name, address=address, found_by="typed")
        for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "10.0.0.2"))
    ]
    patient, eager = Knocker(3600.0), Knocker(0.0)
    for knocker, again in ((patient, ["10.0.0.2"]), (eager, ["10.0.0.1", "10.0.0.2"])):
        asked.clear()
        first = await knocker.try_hints(hints, [])
        assert sorted(asked) == ["10.0.0.1", "10.0.0.2"]
        asked.clear()
        assert await knocker.try_hints(hints, []) == first
        assert sorted(asked) == again
        # Named by somebody else it is the same answer.
        assert [t.hint.name for t in first] == ["a", "b", "c"]
        asked.clear()
        await knocker.try_hints(hints[:1], [])
        assert asked == again[: len(again) - 1]
