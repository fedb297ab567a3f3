"""Connections against a real SSH server on loopback: trust, keys, failures, files, forwarding."""
# ruff: noqa: ASYNC240  (small files in a test's own folder)

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import asyncssh
import pytest
from asyncssh.constants import OPEN_CONNECT_FAILED

from homesplit.errors import TrustError, UnreachableError, UsageError, during
from homesplit.io import probe_runner
from homesplit.io.box import Box
from homesplit.io.local_box import LocalBox
from homesplit.io.ssh import Connections
from homesplit.io.ssh_box import SshBox
from homesplit.io.target import split_target
from tests.io.far_end import FEW, PATIENCE_S, Asked, Lab


async def test_an_unknown_key_is_asked_for_once_and_remembered_in_our_own_file(lab: Lab) -> None:
    ask = Asked()
    for _ in range(2):
        async with lab.connections(ask) as connections:
            box = await connections.connect("box")
            assert box.host_key == lab.host_key.get_fingerprint()
    assert ask.asked == [lab.host_key.get_fingerprint()]
    assert lab.paths.known_hosts.stat().st_mode & 0o777 == 0o600
    assert not (lab.home / ".ssh" / "known_hosts").exists()


async def test_a_key_that_nobody_accepts_is_refused(lab: Lab) -> None:
    async with lab.connections(Asked(trust=False)) as connections:
        with pytest.raises(TrustError, match=r"is not known here"):
            await connections.connect("box")


async def test_a_changed_key_is_refused_with_file_line_and_the_one_command(lab: Lab) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    known = lab.home / ".ssh" / "known_hosts"
    known.write_text(f"# mine\n[127.0.0.1]:{lab.port} {other}")
    before = known.read_bytes()
    ask = Asked()
    async with lab.connections(ask) as connections:
        with pytest.raises(TrustError) as caught:
            await connections.connect("box")
    assert f"{known}, line 2" in caught.value.what
    assert f"ssh-keygen -R '[127.0.0.1]:{lab.port}' -f '{known}'" in (caught.value.do_next or "")
    assert ask.asked == []
    assert known.read_bytes() == before


async def test_only_what_lies_between_the_markers_is_read(lab: Lab) -> None:
    async with lab.connections(Asked()) as connections:
        box = await connections.connect("box")
        output = await box.run("cat; echo oops >&2; exit 3", input=b"a\0b\n")
    assert (output.raw, output.stderr, output.code) == (b"a\0b\n", "oops", 3)


async def test_a_connection_is_used_again(lab: Lab) -> None:
    async with lab.connections(Asked()) as connections:
        assert await connections.connect("box") is await connections.connect("box")


async def test_commands_are_counted_however_often_and_however_roughly_they_are_let_go(
    lab: Lab,
) -> None:
    async with lab.connections(Asked()) as connections:
        box = await connections.connect("box")
        assert isinstance(box, SshBox)
        async with box.start("cat", keep_input=True) as running:
            assert box.at_work == 1
            letting_go = asyncio.create_task(running.close())
            await asyncio.sleep(0)
            letting_go.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await letting_go
            assert box.at_work == 0
            await running.close()
        assert box.at_work == 0


async def test_a_server_that_allows_no_further_command_is_told_as_that(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise asyncssh.ChannelOpenError(OPEN_CONNECT_FAILED, "open failed")

    async with lab.connections(Asked()) as connections:
        box = await connections.connect("box")
        assert isinstance(box, SshBox)
        async with box.start("cat", keep_input=True):
            monkeypatch.setattr(box.connection, "create_process", refused)
            with pytest.raises(UnreachableError, match=r"beside the 1 at work .*MaxSessions"):
                await box.run("true", timeout_s=0.5)


async def test_a_box_that_is_lost_is_told_with_how_and_in_the_middle_of_what(
    lab: Lab, tmp_path: Path
) -> None:
    """Before a command, while one is waited for or read from, and while a file is copied."""
    source = tmp_path / "weights"
    source.write_bytes(bytes(3 << 20))

    async def read_a_line(box: Box) -> None:
        async with box.start("echo; sleep 60") as running:
            await running.line(timeout_s=PATIENCE_S)
            lab.cut()
            await running.line(timeout_s=PATIENCE_S)

    async def wait_for_the_end(box: Box) -> None:
        async with box.start("echo; sleep 60") as running:
            await running.line(timeout_s=PATIENCE_S)
            lab.cut()
            await running.finish(timeout_s=PATIENCE_S)

    async def copy(box: Box) -> None:
        target = str(tmp_path / "there")
        await box.put(source, target, resume_key="k", progress=lambda done, _: lab.cut())

    async def begin(box: Box) -> None:
        lab.cut()
        await box.run("true")

    lost = r"box: the connection to it was lost \(it was (closed there without a word|cut there)\)"
    copying = r", while weights was copied there \([123] of 3 MB sent\)\. .*has arrived is kept"
    async with lab.connections(Asked()) as connections:
        for work, says in (
            (begin, lost),
            (read_a_line, lost),
            (wait_for_the_end, lost),
            (copy, lost + copying),
        ):
            with pytest.raises(UnreachableError, match=says):
                await work(await connections.connect("box"))
        left = await connections.connect("box")
    with pytest.raises(UnreachableError, match=r"was lost \(it was closed from here\)"):
        await left.run("true")


async def test_of_boxes_the_one_that_answers_no_more_is_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_runner, "_HERE_S", PATIENCE_S)
    async with lab.connections(Asked()) as connections:
        boxes = (LocalBox("here"), await connections.connect("box"))
        assert await probe_runner._gone(boxes) is None  # pyright: ignore[reportPrivateUsage]
        lab.cut()
        gone = await probe_runner._gone(boxes)  # pyright: ignore[reportPrivateUsage]
        assert gone and gone.where == "box"


async def test_a_command_that_is_ended_from_outside_is_told_as_that(box: Box) -> None:
    with pytest.raises(UnreachableError, match=r"ended before it was through .*short of memory"):
        await box.run("kill -9 $$", timeout_s=PATIENCE_S)


async def test_a_box_that_takes_nothing_more_is_told_with_what_to_look_at(box: Box) -> None:
    with (
        pytest.raises(UnreachableError, match=r"taken nothing for 0\.5 s, while .* awake"),
        during("its files were brought"),
    ):
        async with box.start("sleep 60", keep_input=True) as running:
            await running.write(bytes(64 << 20), timeout_s=0.5)


async def test_a_locked_key_is_opened_by_the_passphrase_and_a_wrong_one_asks_again(
    lab: Lab,
) -> None:
    lab.client_key.write_private_key(
        str(lab.home / ".ssh" / "id_ed25519"), passphrase="open", **FEW
    )
    ask = Asked(secrets=["wrong", "open"])
    async with lab.connections(ask) as connections:
        await connections.connect("box")
    first, second = [a for a in ask.asked if "Passphrase" in a]
    assert second == f"That was not accepted. {first}"


async def test_a_password_is_asked_for_when_no_key_fits(lab: Lab) -> None:
    (lab.home / ".ssh" / "id_ed25519").unlink()
    async with lab.connections(Asked(secrets=["wrong", "right"])) as connections:
        assert (await connections.connect("box")).user == "owner"


async def test_without_a_person_a_refused_login_ends_in_one_sentence(lab: Lab) -> None:
    (lab.home / ".ssh" / "id_ed25519").unlink()
    async with lab.connections(Asked()) as connections:
        with pytest.raises(UnreachableError, match="does not let owner in"):
            await connections.connect("box")


async def test_a_closed_port_is_told_as_refused(lab: Lab) -> None:
    async with lab.connections(Asked()) as connections:
        with pytest.raises(UnreachableError, match="refuses the connection"):
            await connections.connect("127.0.0.1:1")


async def test_a_server_that_is_not_ssh_is_told_within_the_deadline(lab: Lab) -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 3)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with lab.connections(Asked()) as connections:
        with pytest.raises(UnreachableError, match=r"SSH"):
            await connections.connect(f"127.0.0.1:{port}")
    server.close()


async def test_a_link_local_address_without_its_interface_is_told_as_that(lab: Lab) -> None:
    async with lab.connections(Asked()) as connections:
        with pytest.raises(UnreachableError, match="without its zone") as caught:
            await connections.connect("me@[fe80::1]:2222")
    assert "%eth0" in (caught.value.do_next or "")


async def test_a_silent_server_runs_into_the_deadline(lab: Lab) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connections = Connections(paths=lab.paths, ask=Asked(), connect_s=0.5)
    with pytest.raises(UnreachableError, match=r"no answer from .* within 0.5 s"):
        await connections.connect(f"127.0.0.1:{port}")
    server.close()


async def test_a_jump_host_carries_the_connection_and_is_named_when_it_is_down(lab: Lab) -> None:
    lab.config(
        f"Host hop\n  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n"
        "Host deadhop\n  HostName 127.0.0.1\n  Port 1\n  User owner\n"
        f"Host inner\n  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n  ProxyJump hop\n"
        f"Host lost\n  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n  ProxyJump deadhop\n"
    )
    async with lab.connections(Asked()) as connections:
        assert (
            await (await connections.connect("inner")).run("echo through")
        ).stdout == "through\n"
        with pytest.raises(UnreachableError, match="jump host deadhop"):
            await connections.connect("lost")


async def test_a_later_hop_is_opened_by_its_passphrase_and_the_box_by_its_password(
    lab: Lab,
) -> None:
    keys = {name: lab.home / ".ssh" / name for name in ("first", "second", "none")}
    for name in ("first", "second"):
        lab.client_key.write_private_key(str(keys[name]), passphrase=f"open {name}", **FEW)
    hosts = [("hop1", "first", "none"), ("hop2", "second", "none"), ("box", "none", "hop1,hop2")]
    lab.config(
        "".join(
            f"Host {name}\n  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n"
            f"  IdentityFile {keys[key]}\n  ProxyJump {jump}\n"
            for name, key, jump in hosts
        )
    )
    ask = Asked(secrets=["open first", "open second", "wrong", "right"])
    async with lab.connections(ask) as connections:
        box = await connections.connect("box")
        assert (await box.run("echo through both")).stdout == "through both\n"
    asked = [a for a in ask.asked if not a.startswith("SHA256")]
    assert [a.split()[0] for a in asked] == ["Passphrase", "Passphrase", "Password", "That"]


async def test_a_stopped_middle_hop_is_named_within_the_deadline(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The first hop has let it through: from here on nothing comes but the deadline.
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + PATIENCE_S)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    middle = server.sockets[0].getsockname()[1]
    lab.config(
        f"Host first\n  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n"
        f"Host middle\n  HostName 127.0.0.1\n  Port {middle}\n  User owner\n"
        "Host box\n  HostName 127.0.0.1\n  User owner\n  ProxyJump first,middle\n"
    )
    connections = Connections(paths=lab.paths, ask=Asked(), connect_s=PATIENCE_S)
    with pytest.raises(
        UnreachableError, match=r"jump host middle .* over first within 60 s"
    ) as told:
        await connections.connect("box")
    assert told.value.where == "box"
    await connections.close()
    server.close()


@contextlib.asynccontextmanager
async def an_agent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """A real ssh-agent that holds a stranger's key and ours; no private key is left in a file."""
    agent = await asyncio.create_subprocess_exec(
        "ssh-agent", "-D", "-a", str(lab.home / "agent"), stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    await agent.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(lab.home / "agent"))
    stranger = lab.home / "stranger"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(stranger))
    stranger.with_suffix(".pub").write_bytes(
        asyncssh.read_private_key(str(stranger)).export_public_key()
    )
    ours = lab.home / ".ssh" / "id_ed25519"
    ours.with_suffix(".pub").write_bytes(lab.client_key.export_public_key())
    try:
        for path in (stranger, ours):
            path.chmod(0o600)
            add = await asyncio.create_subprocess_exec(
                "ssh-add", "-q", str(path), stderr=asyncio.subprocess.DEVNULL
            )
            assert await add.wait() == 0
            path.unlink()
        yield
    finally:
        agent.terminate()
        await agent.wait()


async def test_the_agent_opens_what_no_file_does(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async with an_agent(lab, monkeypatch), lab.connections(Asked()) as connections:
        assert (await connections.connect("box")).user == "owner"


@pytest.mark.parametrize("name", ["id_ed25519", "id_ed25519.pub"])
async def test_identities_only_offers_the_named_key_of_the_agent(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    base = f"Host box\n  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n"
    base += "  IdentitiesOnly yes\n  IdentityFile "
    async with an_agent(lab, monkeypatch):
        lab.config(f"{base}{lab.home}/.ssh/{name}\n")
        async with lab.connections(Asked()) as connections:
            await connections.connect("box")
        lab.config(f"{base}{lab.home}/stranger\n")
        async with lab.connections(Asked()) as connections:
            with pytest.raises(UnreachableError, match="does not let owner in"):
                await connections.connect("box")


async def test_a_wrong_line_in_the_ssh_configuration_is_named(lab: Lab) -> None:
    lab.config("Host box\n  Port many\n")
    async with lab.connections(Asked()) as connections:
        with pytest.raises(UsageError, match="ssh_config"):
            await connections.connect("box")


@pytest.mark.parametrize(
    "name", ["", "-oProxyCommand=x", "a b", "x:0", "x:99999", "x:²", f"x:{'9' * 5000}", "@"]
)
async def test_names_that_cannot_be_are_refused(lab: Lab, name: str) -> None:
    async with lab.connections(Asked()) as connections:
        with pytest.raises(UsageError):
            await connections.connect(name)


@pytest.fixture(params=["ssh", "local"])
async def box(request: pytest.FixtureRequest, lab: Lab) -> AsyncIterator[Box]:
    async with lab.connections(Asked()) as connections:
        yield await connections.connect("box") if request.param == "ssh" else LocalBox("here")


async def test_files_are_put_whole_with_their_mode_and_continued(box: Box, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 8192)
    target = tmp_path / "a folder" / "it's here"
    seen: list[int] = []
    target.parent.mkdir()
    Path(f"{target}.key1.part").write_bytes(source.read_bytes()[:1000])
    await box.put(
        source, str(target), mode=0o640, resume_key="key1", progress=lambda d, t: seen.append(d)
    )
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640
    assert seen[-1] == source.stat().st_size
    assert [p.name for p in target.parent.iterdir()] == ["it's here"]


async def test_a_disk_that_fills_midway_is_named_and_the_push_goes_on_once_there_is_room(
    box: Box, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("making a small disk needs root")
    disk, source = tmp_path / "disk", tmp_path / "source"
    disk.mkdir()
    source.write_bytes(os.urandom(6 << 20))
    target = disk / "weights"
    await mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk))
    try:
        with pytest.raises(UnreachableError) as told:
            await box.put(source, str(target), resume_key="k")
        assert "No space left on device" in told.value.what
        assert "free space" in (told.value.do_next or "")
        assert not target.exists()
        await mount("-o", "remount,size=20m", str(disk))
        seen: list[int] = []
        await box.put(
            source, str(target), resume_key="k", progress=lambda done, _: seen.append(done)
        )
        assert seen[0] > 3 << 20
        assert target.read_bytes() == source.read_bytes()
    finally:
        await mount(str(disk), program="umount")


async def mount(*words: str, program: str = "mount") -> None:
    process = await asyncio.create_subprocess_exec(program, *words)
    assert await process.wait() == 0


async def test_small_files_are_written_and_read(box: Box, tmp_path: Path) -> None:
    target = str(tmp_path / "new" / "x y")
    await box.write(target, b"secret\0")
    assert await box.read(target) == b"secret\0"
    assert Path(target).stat().st_mode & 0o777 == 0o600
    assert await box.read(target + "?") is None


async def test_a_box_that_cannot_write_says_so(box: Box) -> None:
    with pytest.raises(UnreachableError, match="can't write /proc/nothing/x"):
        await box.write("/proc/nothing/x", b"")


async def test_a_script_talks_back_line_by_line(box: Box) -> None:
    script = "while read x; do echo got $x; done"
    async with box.start(script, keep_input=True) as running:
        for word in ("one", "two"):
            await running.write(word.encode() + b"\n")
            assert await running.line(timeout_s=PATIENCE_S) == f"got {word}"
        running.end_input()
        assert await running.line(timeout_s=PATIENCE_S) is None
        assert (await running.finish(timeout_s=PATIENCE_S)).code == 0


async def test_a_command_that_does_not_end_is_given_up(box: Box) -> None:
    with pytest.raises(UnreachableError, match="did not end within"):
        await box.run("sleep 60", timeout_s=0.5)


async def test_a_background_process_does_not_hold_the_answer(box: Box) -> None:
    assert (await box.run("sleep 2 & echo started", timeout_s=PATIENCE_S)).stdout == "started\n"


async def test_a_forwarded_port_leads_to_the_box_loopback(box: Box) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    forward = await box.forward("127.0.0.1", server.sockets[0].getsockname()[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
    assert await reader.read() == b"hello"
    writer.close()
    await forward.close()
    server.close()


async def test_each_server_on_the_way_begins_a_session_before_it_carries_a_port(lab: Lab) -> None:
    """OpenSSH's sends small packets at once only from a connection's first session on."""
    host = f"  HostName 127.0.0.1\n  Port {lab.port}\n  User owner\n"
    lab.config(f"Host hop\n{host}Host inner\n{host}  ProxyJump hop\n")

    async def hello(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    async with lab.connections(Asked()) as connections:
        inner = await connections.connect("inner")
        assert lab.begun == ["forwarding"]
        for _ in range(2):
            forward = await inner.forward("127.0.0.1", server.sockets[0].getsockname()[1])
            reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
            assert await reader.read() == b""
            writer.close()
            await forward.close()
    server.close()
    assert lab.begun == ["forwarding", "session", "session", "forwarding", "forwarding"]


def test_targets_are_taken_apart() -> None:
    assert split_target("me@box:2222") == ("me", "box", 2222)
    assert split_target("[fe80::1%eth0]:22") == (None, "fe80::1%eth0", 22)
    assert split_target("fe80::1") == (None, "fe80::1", None)
