"""Servers with several host keys, certificates of authorities, machines that are copies."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest
from msgspec.structs import replace

from homesplit.core.found import Hint
from homesplit.errors import TrustError, UnreachableError
from homesplit.io import ssh, ssh_keys
from homesplit.io.box_store import KnownBox, remember_box
from homesplit.io.discovery import remembered_hints
from homesplit.io.knock import try_hints
from homesplit.io.known_hosts import remember
from homesplit.io.local_box import LocalBox
from homesplit.io.running import Output
from homesplit.io.same_machine import refuse_copies
from tests.io.far_end import FEW, Asked, Lab, serving

KINDS = {
    kind: asyncssh.generate_private_key(name)
    for kind, name in (
        ("rsa", "ssh-rsa"),
        ("ecdsa", "ecdsa-sha2-nistp256"),
        ("ed25519", "ssh-ed25519"),
    )
}
"""The keys that a new Debian or Ubuntu has."""


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ((), "ed25519"),
        (("rsa",), "rsa"),
        (("ecdsa", "rsa"), "ecdsa"),
        (("rsa", "ecdsa", "ed25519"), "ed25519"),
    ],
)
async def test_a_server_with_several_keys_is_one_machine_to_whoever_looks_and_logs_in(
    lab: Lab, known: tuple[str, ...], shown: str
) -> None:
    files = [lab.home / ".ssh" / "known_hosts", lab.paths.known_hosts]
    async with serving(0, list(KINDS.values()), lab.home / "authorized") as port:
        for kind in known:
            remember(files[0], [f"[127.0.0.1]:{port}"], KINDS[kind].convert_to_public())
        lab.config(f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  User owner\n")
        hint = Hint(name="box", address="127.0.0.1", port=port, found_by="typed")
        (looked,) = await try_hints([hint], files)
        ask = Asked()
        async with lab.connections(ask) as connections:
            box = await connections.connect("box")
        (again,) = await try_hints([hint], files)
    fingerprint = KINDS[shown].get_fingerprint()
    assert [looked.host_key, box.host_key, again.host_key] == [fingerprint] * 3
    assert (looked.trusted, again.trusted) == (bool(known), True)
    assert ask.asked == ([] if known else [fingerprint])


async def test_a_key_of_another_kind_than_the_known_one_is_a_changed_one(lab: Lab) -> None:
    known = lab.home / ".ssh" / "known_hosts"
    remember(known, [f"[127.0.0.1]:{lab.port}"], KINDS["rsa"].convert_to_public())
    async with lab.connections(Asked()) as connections:
        with pytest.raises(TrustError, match=r"its host key has changed"):
            await connections.connect("box")


async def test_another_machine_at_a_remembered_address_is_not_taken_for_the_one_met_before(
    lab: Lab,
) -> None:
    for name, key in (("atlas", "SHA256:other"), ("borea", lab.host_key.get_fingerprint())):
        met = KnownBox(name=name, host_key=key, addresses=("127.0.0.1",), port=lab.port)
        remember_box(lab.paths, met)
    # As typed: an announcement of loopback is not tried at all.
    hints = [replace(hint, found_by="typed") for hint in remembered_hints(lab.paths)]
    atlas, borea = await try_hints(hints, [])
    assert (atlas.host_key, borea.host_key) == (None, lab.host_key.get_fingerprint())
    assert "installed afresh" in (atlas.why or "")


async def test_a_key_trusted_at_that_address_does_not_make_it_the_box_met_before(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nowhere(host_key: str) -> None:
        assert host_key == "SHA256:other"

    monkeypatch.setattr(ssh, "find_again", nowhere)
    met = KnownBox(name="atlas", host_key="SHA256:other", addresses=("127.0.0.1",), port=lab.port)
    async with lab.connections(Asked()) as connections:
        await connections.connect(f"owner@127.0.0.1:{lab.port}")
        remember_box(lab.paths, met)
        with pytest.raises(TrustError, match="another machine than before answers"):
            await connections.connect("owner@atlas")


@pytest.mark.parametrize("met_at", ["127.0.0.1", "127.0.0.3"], ids=["met there", "looked for"])
async def test_a_box_whose_address_in_the_configuration_is_stale_is_found_by_its_key(
    lab: Lab, met_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def announced(host_key: str) -> tuple[str, int] | None:
        return ("127.0.0.1", lab.port) if host_key == own else None

    monkeypatch.setattr(ssh, "find_again", announced)
    own = lab.host_key.get_fingerprint()
    # Nobody listens at 127.0.0.2 and 127.0.0.3.
    lab.config(f"Host box\n  HostName 127.0.0.2\n  Port {lab.port}\n  User owner\n")
    for key in (own, "SHA256:other"):
        remember_box(
            lab.paths, KnownBox(name="box", host_key=key, addresses=(met_at,), port=lab.port)
        )
        asked = Asked()
        async with lab.connections(asked) as connections:
            if key == own:
                assert (await connections.connect("box")).user == "owner"
                continue
            with pytest.raises(UnreachableError, match=f"127.0.0.2:{lab.port} refuses"):
                await connections.connect("box")
            assert asked.asked == []


async def test_a_certificate_beside_the_key_lets_in_who_has_nothing_else(lab: Lab) -> None:
    authority = asyncssh.generate_private_key("ssh-ed25519")
    authorized = lab.home / "authorities"
    authorized.write_bytes(b"cert-authority " + authority.export_public_key())
    async with serving(0, [lab.host_key], authorized) as port:
        lab.config(f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  User owner\n")
        certificate = authority.generate_user_certificate(
            lab.client_key, "me", principals=["owner"]
        )
        beside = lab.home / ".ssh" / "id_ed25519-cert.pub"
        certificate.write_certificate(str(beside))
        async with lab.connections(Asked()) as connections:
            assert (await connections.connect("box")).user == "owner"
        named = lab.home / "mine.pub"
        beside.rename(named)
        lab.config(
            f"Host box\n  HostName 127.0.0.1\n  Port {port}\n  User owner\n"
            f"  CertificateFile {lab.home}/gone.pub\n  CertificateFile {named}\n"
        )
        async with lab.connections(Asked()) as connections:
            assert (await connections.connect("box")).user == "owner"


async def test_a_terminal_that_the_configuration_asks_for_does_not_change_the_bytes(
    lab: Lab,
) -> None:
    text = f"Host box\n  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n"
    lab.config(f"{text}  RequestTTY force\n  RemoteCommand tmux\n")
    async with lab.connections(Asked()) as connections:
        box = await connections.connect("box")
        assert (await box.run("cat", input=b"a\r\n\x03\x04b")).raw == b"a\r\n\x03\x04b"


class Pair:
    """An agent's key, as far as its place in the order goes."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        self.public_data = key.public_data


def test_keys_of_the_users_files_are_offered_before_the_agents_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, locked, strange = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))
    own.write_private_key(str(tmp_path / "own"))
    locked.write_private_key(str(tmp_path / "locked"), passphrase="x", **FEW)
    locked.write_public_key(str(tmp_path / "locked.pub"))
    found = ssh_keys.find_keys([str(tmp_path / "own"), str(tmp_path / "locked")])
    agent = [Pair(strange), Pair(locked)]
    offered = ssh_keys.in_order(agent, found.open, found)  # pyright: ignore[reportArgumentType]
    assert [key.public_data for key in offered] == [
        each.public_data for each in (locked, own, strange)
    ]
    agent.append(Pair(own))
    offered = ssh_keys.in_order(agent, found.open, found)  # pyright: ignore[reportArgumentType]
    assert len(offered) == 3
    read: list[Path] = []
    really = asyncssh.read_public_key

    def reading(path: Path) -> asyncssh.SSHKey:
        read.append(path)
        return really(path)

    monkeypatch.setattr(asyncssh, "read_public_key", reading)
    ssh_keys.in_order(agent, found.open, found)  # pyright: ignore[reportArgumentType]
    assert read == [tmp_path / "locked.pub"], "each file is read once, however many keys there are"


class Elsewhere(LocalBox):
    """This machine under another name and key, or one that `says` something else of itself."""

    def __init__(self, name: str, key: str | None, says: str = "") -> None:
        super().__init__(name)
        self.host_key = key
        self._says = says

    async def run(
        self, script: str, *, input: bytes | None = None, timeout_s: float = 60.0
    ) -> Output:
        return await super().run(f"echo {self._says}" if self._says else script)


async def test_a_copied_disk_is_told_from_one_machine_with_two_names() -> None:
    await refuse_copies([Elsewhere("a", "K"), Elsewhere("b", "K")])
    await refuse_copies([Elsewhere("a", "K"), Elsewhere("b", "L", "other")])
    await refuse_copies([Elsewhere("a", None), Elsewhere("b", None, "other")])
    with pytest.raises(TrustError, match="two machines that show the same SSH host key") as told:
        await refuse_copies([Elsewhere("a", "K"), Elsewhere("b", "K", "other")])
    assert "ssh-keygen -A" in (told.value.do_next or "")
