"""SSH keys of a lab and each machine's OpenSSH server."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.files import get, put
from tests.lab.records import Node
from tests.lab.store import Lab

_SFTP_PLACES = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)


def make_keys(lab: Lab) -> None:
    """The owner's key pair and a host key for each machine."""
    lab.keys.mkdir(mode=0o700, parents=True)
    jobs = [(lab.keys / "id_ed25519", "lab owner")]
    for node in lab.machines():
        lab.node_folder(node.name).mkdir(mode=0o755)
        jobs.append((_host_key(lab, node), f"root@{node.name}"))
    running = [subprocess.Popen(_keygen(path, comment)) for path, comment in jobs]
    if any([process.wait(30) for process in running]):
        raise LabError("ssh-keygen failed")
    write_known_hosts(lab)


def renew_host_key(lab: Lab, node: Node) -> None:
    """Another host key for one machine, as after a new installation; known_hosts is not told."""
    path = _host_key(lab, node)
    path.unlink()
    path.with_suffix(".pub").unlink()
    subprocess.run(_keygen(path, f"root@{node.name}"), check=True, timeout=30)


def write_known_hosts(lab: Lab) -> None:
    """Every machine's name, mDNS name and address with its host key."""
    lines: list[str] = []
    for node in lab.machines():
        key = " ".join(public_host_key(lab, node).split()[:2])
        lines.append(f"{node.name},{node.name}.local,{node.address} {key}\n")
    put(lab.keys / "known_hosts", "".join(lines))


def write_ssh_config(lab: Lab, identity: Path) -> None:
    """A client configuration that reaches each machine by its name."""
    parts = [
        f"Host {node.name} {node.name}.local {node.address}\n"
        f"  HostName {node.address}\n"
        f"  User {node.user}\n"
        for node in lab.machines()
    ]
    parts.append(
        f"Host *\n  IdentityFile {identity}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {lab.keys}/known_hosts\n"
    )
    put(lab.keys / "ssh_config", "".join(parts))


def public_host_key(lab: Lab, node: Node) -> str:
    """A machine's public host key, one line."""
    return get(_host_key(lab, node).with_suffix(".pub")).strip()


def private_host_key(lab: Lab, node: Node) -> str:
    """A machine's private host key."""
    return get(_host_key(lab, node))


def server_config(node: Node, *, pam: bool) -> str:
    """sshd_config of one machine."""
    password = "yes" if node.kind == "refuse" else "no"
    sftp = next((path for path in _SFTP_PLACES if Path(path).exists()), "internal-sftp")
    lines = (
        "Port 22",
        "HostKey /etc/ssh/ssh_host_ed25519_key",
        "PermitRootLogin prohibit-password",
        f"PasswordAuthentication {password}",
        "KbdInteractiveAuthentication no",
        f"UsePAM {'yes' if pam else 'no'}",
        "UseDNS no",
        "PrintMotd no",
        "AcceptEnv LANG LC_*",
        "PidFile /run/sshd.pid",
        f"Subsystem sftp {sftp}",
    )
    return "\n".join(lines) + "\n"


def _host_key(lab: Lab, node: Node) -> Path:
    return lab.node_folder(node.name) / "hostkey"


def _keygen(path: Path, comment: str) -> list[str]:
    return ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
