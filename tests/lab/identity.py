"""What makes a machine itself: its name, number, user, keys and service configuration."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from tests.lab.errors import LabError
from tests.lab.files import get, put
from tests.lab.kernel import bind
from tests.lab.records import Node
from tests.lab.sshd import server_config


class HostKeys(NamedTuple):
    """Keys read before the machine's view hides them."""

    private: str
    public: str
    owner_public: str


class Account(NamedTuple):
    """A line of /etc/passwd."""

    uid: int
    gid: int
    home: str
    shell: str


def account(user: str) -> Account:
    """A user of this file system; raises LabError when there is none."""
    for line in get("/etc/passwd").splitlines():
        fields = line.split(":")
        if fields[0] == user and len(fields) == 7:
            return Account(int(fields[2]), int(fields[3]), fields[5], fields[6] or "/bin/sh")
    raise LabError(f"no user {user!r}")


def settle(node: Node, etc: dict[str, str], keys: HostKeys, *, pam: bool) -> None:
    """Write the machine's own files; a second boot keeps what the first made."""
    for name, text in etc.items():
        put(f"/etc/{name}", text)
    _machine_id()
    owner = _owner(node)
    _authorize(node, owner, keys.owner_public)
    _host_keys(keys)
    put("/etc/ssh/sshd_config", server_config(node, pam=pam))
    _avahi(node.name)
    if node.cpu:
        _show_cpus(len(node.cpu.cpus))


def _machine_id() -> None:
    made = Path("/etc/machine-id.lab")
    if not made.exists():
        put("/etc/machine-id", os.urandom(16).hex() + "\n", 0o444)
        put(made, "")


def _owner(node: Node) -> Account:
    try:
        return account(node.user)
    except LabError:
        _add_user(node.user, node.home)
    return account(node.user)


def _add_user(name: str, home: str) -> None:
    lines = [line.split(":") for line in get("/etc/passwd").splitlines()]
    taken = {int(fields[2]) for fields in lines if len(fields) > 2}
    uid = next(number for number in range(1000, 2000) if number not in taken)
    put("/etc/passwd", f"{get('/etc/passwd')}{name}:x:{uid}:{uid}:{name}:{home}:/bin/bash\n")
    put("/etc/group", f"{get('/etc/group')}{name}:x:{uid}:\n")
    # '*' and not '!': without PAM sshd takes '!' for a locked account.
    put("/etc/shadow", f"{get('/etc/shadow')}{name}:*:19700:0:99999:7:::\n", 0o640, 0, 42)
    if os.path.isdir("/etc/skel"):
        shutil.copytree("/etc/skel", home, dirs_exist_ok=True)
    os.makedirs(home, exist_ok=True)
    for folder, _, names in os.walk(home):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.lchown(path, uid, uid)
    os.chmod(home, 0o750)


def _authorize(node: Node, owner: Account, public_key: str) -> None:
    for uid, gid, home in ((owner.uid, owner.gid, owner.home), (0, 0, "/root")):
        folder = Path(home, ".ssh")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(folder, uid, gid)
        authorized = folder / "authorized_keys"
        if node.kind == "refuse":
            authorized.unlink(missing_ok=True)
        elif not authorized.exists():
            put(authorized, public_key, 0o600, uid, gid)


def _host_keys(keys: HostKeys) -> None:
    for path in Path("/etc/ssh").glob("ssh_host_*"):
        path.unlink()
    put("/etc/ssh/ssh_host_ed25519_key", keys.private, 0o600)
    put("/etc/ssh/ssh_host_ed25519_key.pub", keys.public)


_AVAHI = """\
[server]
host-name={name}
use-ipv4=yes
use-ipv6=yes
allow-interfaces=eth0
enable-dbus=no
ratelimit-interval-usec=1000000
ratelimit-burst=1000
[wide-area]
enable-wide-area=no
[publish]
publish-hinfo=no
publish-workstation=yes
[reflector]
[rlimits]
"""
"""[rlimits] stays empty: rlimit-nproc counts the avahi user's processes of all boxes together."""

_AVAHI_SSH = """\
<?xml version="1.0" standalone="no"?><!DOCTYPE service-group SYSTEM "avahi-service.dtd">
<service-group>
  <name replace-wildcards="yes">%h</name>
  <service><type>_ssh._tcp</type><port>22</port></service>
</service-group>
"""


def _avahi(name: str) -> None:
    if os.path.isdir("/etc/avahi"):
        put("/etc/avahi/avahi-daemon.conf", _AVAHI.format(name=name))
        os.makedirs("/etc/avahi/services", exist_ok=True)
        put("/etc/avahi/services/ssh.service", _AVAHI_SSH)


def _show_cpus(count: int) -> None:
    """Have /proc/cpuinfo and /sys tell of the machine's own cores only."""
    if count >= (os.cpu_count() or 1):
        return
    blocks = [block for block in get("/proc/cpuinfo").split("\n\n") if block.strip()]
    put("/run/.cpuinfo", "\n\n".join(blocks[:count]) + "\n\n")
    bind("/run/.cpuinfo", "/proc/cpuinfo", read_only=True)
    put("/run/.online", "0\n" if count == 1 else f"0-{count - 1}\n")
    for name in ("online", "present", "possible"):
        bind("/run/.online", f"/sys/devices/system/cpu/{name}", read_only=True)
