"""What deployment must know of a box before it changes anything: one `sh` script, one parser."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from homesplit_probes.facts import TOOLS, WITHIN

from homesplit.core.machine import silent_nvidia
from homesplit.errors import DeployError
from homesplit.io.box import Box
from homesplit.io.said import count

ROOT = ".local/share/homesplit/box"
"""Everything on a box lies here, under the home of its user."""

_DEADLINE_S = 30.0

WHOLE = r"""
whole() {
  [ -f "$1/.complete" ] && [ -z "$(find "$1" -name __pycache__ -prune -o -type f \
    -newer "$1/.complete" -print 2>/dev/null | head -n 1)" ]
}
"""
"""`whole FOLDER`: it was marked as complete, and no file in it was written afterwards.

What a running program compiles into `__pycache__` does not count."""

USER_MANAGER = r"""
# A server without PAM does not say where the user's systemd listens.
if [ -z "$XDG_RUNTIME_DIR" ] && [ -d "/run/user/$(id -u)/systemd" ]; then
  XDG_RUNTIME_DIR="/run/user/$(id -u)"; export XDG_RUNTIME_DIR
fi
"""

ADDRESSES = r"""
addresses() {
  if command -v ip >/dev/null 2>&1; then
    ip -o addr show 2>/dev/null | awk '{split($4, a, "/"); print "address=" a[1]}'
  else
    # Older ones say `inet addr:192.168.1.2` and `inet6 addr: fe80::1/64`.
    ifconfig 2>/dev/null | awk '$1 ~ /^inet6?$/ {
      sub(/^addr:/, "", $2); split($2 == "" ? $3 : $2, a, "[%/]"); print "address=" a[1]
    }'
  fi
}
"""

SCRIPT = (
    f'PATH="$PATH:{TOOLS}"; export PATH\n'
    + WITHIN
    + WHOLE
    + ADDRESSES
    + USER_MANAGER
    + r"""
export LC_ALL=C
say() { printf '%s=%s\n' "$1" "$2"; }
root="$HOME/.local/share/homesplit/box"
say home "$HOME"
say user "$(id -un)"
say system "$(uname -s)"
say machine "$(uname -m)"
# A kernel of 64 bits may run a system of 32, as on many a Raspberry Pi.
say bits "$(getconf LONG_BIT 2>/dev/null)"
if ldd --version 2>&1 | grep -qi musl; then say libc musl
else say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"; fi
case "$(uname -s) $(uname -m)" in
  "Linux x86_64") loader=/lib64/ld-linux-x86-64.so.2 ;;
  "Linux aarch64") loader=/lib/ld-linux-aarch64.so.1 ;;
  *) loader=/ ;;
esac
# NixOS has one that starts nothing, unless nix-ld is in its place.
[ -e "$loader" ] || say no_loader "$loader"
[ -e /etc/NIXOS ] && [ ! -e /run/current-system/sw/share/nix-ld ] && say no_loader nix-ld
for p in python3.13 python3.12 python3.11 python3.14 python3; do
  path=$(command -v "$p" 2>/dev/null) || continue
  # On a Mac without developer tools this one only asks its user to install them.
  [ "$path" = /usr/bin/python3 ] && [ "$(uname -s)" = Darwin ] &&
    ! xcode-select -p >/dev/null 2>&1 && continue
  # One that was built without these, or is only a part of one, can't load torch or transformers.
  version=$(within 5 "$path" -I -c 'import ctypes, ssl, sys, zlib
print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
  [ -n "$version" ] || continue
  say python "$version $path"
done
at="$root"; while [ -n "$at" ] && [ ! -d "$at" ]; do at=${at%/*}; done; at=${at:-/}
# A device's name and a mount's may hold blanks.
say free_kb "$(within 8 df -Pk "$at" 2>/dev/null | awk 'NR == 2 {
  for (i = 5; i <= NF; i++) if ($i ~ /^[0-9]+%$/) { print ($(i-1) > 0 ? $(i-1) : 0); exit }
}')"
[ -w "$at" ] || say closed "can't be written to"
# The mount that holds it is the one with the longest path that it begins with.
[ -r /proc/self/mounts ] && cd "$at" 2>/dev/null && awk -v at="$(pwd -P)/" '
  {
    where = $2; gsub(/\\040/, " ", where); if (where != "/") where = where "/"
    if (index(at, where) == 1 && length(where) >= most) { most = length(where); words = $4 }
  }
  END { if ("," words "," ~ /,noexec,/) print "closed=lets no program run (it is mounted noexec)" }
' /proc/self/mounts
for vendor in /sys/class/drm/card[0-9]*/device/vendor; do
  [ -r "$vendor" ] &&
    say graphics "$(cat "$vendor") $(basename "$(readlink "${vendor%vendor}driver")")"
done
# A driver that was updated and not loaded yet is there and does not answer.
if command -v nvidia-smi >/dev/null 2>&1; then
  within 8 nvidia-smi -L >/dev/null 2>&1 && say gpu nvidia
elif [ -e /dev/nvidiactl ]; then say gpu nvidia; fi
if [ -r /var/lib/systemd/linger/"$(id -un)" ] &&
  within 4 systemctl --user show-environment >/dev/null 2>&1
then say unit yes; fi
case "$(within 4 busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
  org.freedesktop.login1.Manager KillUserProcesses 2>/dev/null)" in
  *true) [ "$(id -u)" = 0 ] || say log_out kills ;;
esac
say ssh "$SSH_CONNECTION"
addresses
for kind in env engine models; do
  for marker in "$root/$kind"/*/.complete; do
    [ -f "$marker" ] || continue
    folder=${marker%/.complete}
    whole "$folder" && say "$kind" "${folder##*/}"
  done
done
for file in "$root"/bin/uv-*; do [ -x "$file" ] && say uv "${file##*/uv-}"; done
[ -f "$root/run/owner.json" ] && say owner "$(tr -d '\n' <"$root/run/owner.json")"
[ -d "$root" ] && say present yes
if [ -r /proc/net/tcp ]; then
  awk '$4 == "0A" {split($2, a, ":"); print "listen_hex=" a[2]}' \
    /proc/net/tcp /proc/net/tcp6 2>/dev/null
else
  netstat -an 2>/dev/null | awk '/LISTEN/ {n = split($4, a, "."); print "listen=" a[n]}'
fi
"""
)

INTERNET_SCRIPT = r"""
if command -v curl >/dev/null 2>&1; then
  curl -sS -m 4 -o /dev/null https://www.python.org/ 2>/dev/null && echo yes
elif command -v wget >/dev/null 2>&1; then
  wget -q -T 4 -t 1 -O /dev/null https://www.python.org/ 2>/dev/null && echo yes
fi
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """An interpreter found on the box."""

    version: tuple[int, int, int]
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFacts:
    """One box as deployment finds it."""

    home: str
    user: str
    system: str
    machine: str
    bits: int | None = None
    """Of the system's programs, which may be fewer than the kernel's."""
    libc: str = ""
    no_loader: str | None = None
    """What is missing there, without which no program made for other systems starts."""
    pythons: tuple[Python, ...] = ()
    free_bytes: int | None = None
    closed: str | None = None
    """What the home folder does not allow, in words."""
    gpu: str | None = None
    unused_gpus: tuple[str, ...] = ()
    """Makers of GPUs that are there and that the engine can't use."""
    unit: bool = False
    """Whether a systemd user unit outlives the login here."""
    log_out_kills: bool = False
    """Whether its systemd ends what a user without units that linger leaves running."""
    desk_address: str | None = None
    """This machine's address as the box sees it."""
    own_address: str | None = None
    """The box's address that the SSH connection came in by."""
    addresses: frozenset[str] = frozenset()
    """All addresses of the box, without zones; empty where it doesn't tell them."""
    envs: frozenset[str] = frozenset()
    engines: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    uvs: frozenset[str] = frozenset()
    owner: str | None = None
    """The owner file's JSON."""
    present: bool = False
    listening: frozenset[int] = field(default_factory=frozenset[int])

    @property
    def root(self) -> str:
        """The one folder, absolute."""
        return f"{self.home}/{ROOT}"

    @property
    def device(self) -> str:
        """Where the engine runs: `cuda`, `mps` or `cpu`."""
        if self.gpu == "nvidia":
            return "cuda"
        return "mps" if (self.system, self.machine) == ("Darwin", "arm64") else "cpu"


_NVIDIA = "0x10de"
_UNUSED = {"0x1002": "AMD", "0x8086": "Intel"}
"""Makers by their PCI number."""


async def read_facts(box: Box) -> BoxFacts:
    """Ask a box; raises UnreachableError, or DeployError when its answer makes no sense."""
    output = await box.run(SCRIPT, timeout_s=_DEADLINE_S)
    return parse(output.stdout, box.name)


async def reaches_internet(box: Box) -> bool:
    """Whether the box reaches the internet, where uv finds packages."""
    output = await box.run(INTERNET_SCRIPT, timeout_s=_DEADLINE_S)
    return output.stdout.strip() == "yes"


async def read_addresses(box: Box) -> frozenset[str]:
    """All addresses of the box now, without zones; empty where it doesn't tell them."""
    output = await box.run(f"{ADDRESSES}addresses", timeout_s=_DEADLINE_S)
    pairs = (line.partition("=") for line in output.stdout.splitlines())
    return frozenset(value.strip() for key, _, value in pairs if key == "address")


def parse(text: str, box: str) -> BoxFacts:
    """The facts in the script's output."""
    many: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            many.setdefault(key, []).append(value.strip())
    one = {key: values[-1] for key, values in many.items()}
    missing = [key for key in ("home", "user", "system", "machine") if not one.get(key)]
    if missing:
        raise DeployError(
            f"it does not say its {missing[0]}.",
            where=box,
            do_next="See whether `sh`, `id` and `uname` work for that user.",
        )
    client, _, server = _connection(one.get("ssh", ""))
    hexes = {int(text, 16) for text in many.get("listen_hex", []) if _is_hex(text)}
    plain = {port for port in map(count, many.get("listen", [])) if port is not None}
    free = count(one.get("free_kb", ""))
    return BoxFacts(
        home=one["home"],
        user=one["user"],
        system=one["system"],
        machine=one["machine"],
        bits=count(one.get("bits", "")),
        libc=one.get("libc", ""),
        no_loader=one.get("no_loader") or None,
        pythons=tuple(p for p in map(_python, many.get("python", [])) if p),
        free_bytes=None if free is None else free * 1024,
        closed=one.get("closed") or None,
        gpu=one.get("gpu"),
        unused_gpus=_unused(many.get("graphics", []), one.get("gpu")),
        unit=one.get("unit") == "yes",
        log_out_kills=one.get("log_out") == "kills",
        desk_address=client,
        own_address=server,
        addresses=frozenset(many.get("address", [])),
        envs=frozenset(many.get("env", [])),
        engines=frozenset(many.get("engine", [])),
        models=frozenset(many.get("models", [])),
        uvs=frozenset(many.get("uv", [])),
        owner=one.get("owner") or None,
        present=one.get("present") == "yes",
        listening=frozenset(hexes | plain),
    )


def _unused(cards: list[str], used: str | None) -> tuple[str, ...]:
    """Makers of `maker driver` cards that are not used; NVIDIA's only where it does not answer."""
    pairs = [card.partition(" ") for card in cards]
    idle = {_UNUSED[maker] for maker, _, _ in pairs if maker in _UNUSED}
    nvidia = [driver for maker, _, driver in pairs if maker == _NVIDIA]
    idle |= {silent_nvidia(nvidia)} if nvidia and used != "nvidia" else set()
    return tuple(sorted(idle))


def _connection(text: str) -> tuple[str | None, str | None, str | None]:
    """Client address, client port and own address of `SSH_CONNECTION`."""
    parts = text.split()
    return (parts[0], parts[1], parts[2]) if len(parts) == 4 else (None, None, None)


def _python(text: str) -> Python | None:
    match = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4}) (/.+)", text)
    if match is None:
        return None
    return Python(version=(int(match[1]), int(match[2]), int(match[3])), path=match[4])


def _is_hex(text: str) -> bool:
    return re.fullmatch(r"[0-9A-Fa-f]{1,4}", text) is not None
