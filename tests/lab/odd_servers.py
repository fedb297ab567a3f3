"""SSH servers and accounts in a box as people have them, each on a port or under a user of its own.

`SET_UP` runs once as the box's root; `HOSTS` is what the desk's ssh configuration calls each.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.lab.api import RunningLab

FOLDER = "/etc/odd"
PASSWORD = "a pass word"


class Host(NamedTuple):
    """An account, the server's port, and more lines for the ssh configuration."""

    user: str = "owner"
    port: int = 22
    lines: str = ""


class Account(NamedTuple):
    """A user's home, login shell, and a start file with its content."""

    home: str
    shell: str = "/bin/bash"
    start_file: str = ""
    content: str = ""


ACCOUNTS = {
    "fishy": Account("/home/fishy", "/usr/bin/fish"),
    "tcshy": Account("/home/tcshy", "/usr/bin/tcsh"),
    "dashy": Account("/home/dashy", "/usr/bin/dash"),
    "spacy": Account("/srv/o'wner's hömé \"q\""),
    "noisy": Account(
        "/home/noisy", start_file=".bashrc", content="echo hello; echo oh >&2; printf '\\033[1m{'"
    ),
    "exact": Account("/home/exact", start_file=".bashrc", content="exec fish"),
    "curious": Account("/home/curious", start_file=".bashrc", content="read -r x; cat; exit"),
    "nowhere": Account("/home/nowhere", start_file=".bashrc", content="PATH=/nowhere"),
    "bound": Account("/home/bound", "/usr/bin/rbash"),
    "closed": Account("/home/closed", "/usr/sbin/nologin"),
}

SERVERS = {
    "few": (2201, "MaxSessions 1"),
    "unforwarded": (2202, "DisableForwarding yes"),
    "one_port": (2211, "PermitOpen 127.0.0.1:47612"),
    "forced": (2203, "ForceCommand echo for backups only"),
    "impatient": (2204, "MaxAuthTries 3"),
    "jump": (2222, f"Banner {FOLDER}/banner"),
    "stock": (2206, f"HostKey {FOLDER}/rsa\nHostKey {FOLDER}/ecdsa"),
    "certified": (2207, f"HostCertificate {FOLDER}/host-cert.pub"),
    "by_certificate": (2208, f"TrustedUserCAKeys {FOLDER}/ca.pub\nAuthorizedKeysFile none"),
    "twofold": (2209, "AuthenticationMethods publickey,password\nPasswordAuthentication yes"),
    "ancient": (2210, "KexAlgorithms diffie-hellman-group1-sha1"),
}
"""Each server's port and what it has beyond a plain one."""

_PLAIN = """Port {port}
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile none
UsePAM no
StrictModes no
KbdInteractiveAuthentication no
"""

_ADD_USERS = r"""
# Of each its name, number, home, shell, start file and that file's content.
while [ $# -gt 0 ]; do
  printf '%s:x:%s:%s::%s:%s\n' "$1" "$2" "$2" "$3" "$4" >>/etc/passwd
  echo "$1:x:$2:" >>/etc/group
  echo "$1:*:19700:0:99999:7:::" >>/etc/shadow
  mkdir -p "$3/.ssh"
  cp /home/owner/.ssh/authorized_keys "$3/.ssh/"
  [ -z "$5" ] || printf '%s\n' "$6" >"$3/$5"
  chown -R "$2:$2" "$3"
  shift 6
done
"""

_START = rf"""
# Of each its name and settings.
while [ $# -gt 0 ]; do
  printf %s "$2" >{FOLDER}/"$1"
  $(command -v sshd) -f {FOLDER}/"$1" || exit 1
  shift 2
done
"""

_KEYS = rf"""
set -e
mkdir -p {FOLDER} && cd {FOLDER}
printf 'line {{\n\033[31mline\n' >banner
for kind in rsa ecdsa; do ssh-keygen -q -t $kind -N '' -f $kind; done
ssh-keygen -q -t ed25519 -N '' -f ca
cp /etc/ssh/ssh_host_ed25519_key.pub host.pub
ssh-keygen -q -s ca -I box -h -n certified host.pub
cp /home/owner/.ssh/authorized_keys mine.pub
ssh-keygen -q -s ca -I me -n owner mine.pub
printf 'owner:%s' '{PASSWORD}' | chpasswd
cat ca.pub mine-cert.pub
"""


def set_up(lab: RunningLab, box: str, folder: Path) -> Path:
    """Make accounts and servers in the box; the desk's ssh configuration for them.

    The folder gets the certificates that the desk needs.
    """

    def as_root(script: str, *words: str) -> str:
        done = lab.box(box, ["sh", "-c", script, "sh", *words], root=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    authority, certificate = as_root(_KEYS).splitlines()
    words: list[str] = []
    for number, (name, account) in enumerate(ACCOUNTS.items(), start=1200):
        words += [name, str(number), *account]
    as_root(_ADD_USERS, *words)
    words = []
    for name, (port, more) in SERVERS.items():
        words += [name, f"{_PLAIN.format(port=port)}{more}\n"]
    as_root(_START, *words)
    key = folder / "key"
    key.write_bytes(Path(lab.env["identity"]).read_bytes())
    key.chmod(0o600)
    (folder / "key-cert.pub").write_text(certificate)
    known = folder / "known_hosts"
    known.write_text(f"@cert-authority certified {authority}\n")
    return _configuration(lab, box, folder, key)


def _configuration(lab: RunningLab, box: str, folder: Path, key: Path) -> Path:
    hosts = {name: Host(user=name) for name in ACCOUNTS}
    hosts |= {name: Host(port=port) for name, (port, _) in SERVERS.items()}
    hosts["certified"] = Host(port=2207, lines="  HostKeyAlias certified\n")
    hosts["by_certificate"] = Host(port=2208, lines=f"  IdentityFile {key}\n")
    hosts["over"] = Host(lines="  ProxyJump jump\n")
    hosts["terminal"] = Host(lines="  RequestTTY force\n  RemoteCommand tmux\n")
    hosts["lost"] = Host(port=2204, lines=f"  IdentitiesOnly no\n  IdentityFile {folder}/none\n")
    address = lab.address(box)
    parts = [
        f"Host {name}\n  HostName {address}\n  Port {host.port}\n  User {host.user}\n{host.lines}"
        for name, host in hosts.items()
    ]
    parts.append(f"Host unstartable\n  HostName {address}\n  ProxyCommand /no/such %h %p\n")
    parts.append(f"Host * !lost\n  IdentityFile {lab.env['identity']}\n")
    parts.append(f"Host *\n  UserKnownHostsFile {folder}/known_hosts\n")
    path = folder / "ssh_config"
    path.write_text("".join(parts))
    return path
