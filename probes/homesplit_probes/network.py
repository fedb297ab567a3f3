"""A machine's addresses, interfaces and RDMA devices as its system tells them."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from homesplit_probes.figures import number

ADDRESSES = 'ip -o addr show 2>/dev/null || ifconfig -a || echo "ssh $SSH_CONNECTION"'
INTERFACES = (
    "for d in /sys/class/net/*; do [ -e $d/mtu ] || continue; n=${d##*/}; k=wired; "
    "[ -d $d/wireless ] || [ -d $d/phy80211 ] && k=wifi; [ -d $d/bridge ] && k=bridge; "
    # What belongs to a bridge or a bond has its addresses there.
    "{ [ -d $d/brport ] || [ -d $d/bonding_slave ]; } && [ $k = wired ] && k=member; "
    "[ -e $d/tun_flags ] && k=tunnel; [ -e $d/device ] || { [ $k = wired ] && k=virtual; }; "
    # A virtual machine's card states a speed that its maker thought of.
    'case $(basename "$(readlink -f $d/device/driver)") in '
    "virtio*|hv_netvsc|vmxnet3|xen*|netfront|vif) k=virtual;; esac; "
    'echo "$n|$(cat $d/speed 2>/dev/null)|$(cat $d/mtu)|$k|$(cat $d/operstate)"; done; '
    "[ -d /sys/class/net ] || { ifconfig -a; networksetup -listallhardwareports; }"
)
RDMA = (
    "for p in /sys/class/infiniband/*/ports/*; do [ -e $p/state ] && "
    'echo "$p $(cat $p/state) $(cat $p/rate)"; done'
)
_UNKNOWN_SPEEDS = (65535, 4294967295)
"""What older kernels say for -1."""
_LOOPBACKS = ("lo", "lo0")


def parse_addresses(text: str) -> List[Dict[str, str]]:
    """Interface and address of `ip -o addr`, or of `ifconfig`; loopback left out.

    Where neither is there, the address that SSH came in by, on an interface without a name.
    """
    found: List[Dict[str, str]] = []
    current = ""
    for line in text.splitlines():
        linux = re.match(r"\d+:\s+(\S+)\s+inet6?\s+([0-9A-Fa-f.:]+)", line)
        if linux:
            found.append({"interface": linux.group(1).split("@")[0], "address": linux.group(2)})
            continue
        known = re.match(r"ssh \S+ \d+ ([0-9A-Fa-f.:]+) \d+$", line)
        if known:
            found.append({"interface": "", "address": known.group(1)})
            continue
        head = re.match(r"(\S+?):? (?:flags=| *Link encap:)", line)
        current = head.group(1) if head else current
        other = re.match(r"\s+inet6? (?:addr: ?)?([0-9A-Fa-f.:]+)", line)
        if other and current:
            found.append({"interface": current, "address": other.group(1)})
    return [
        a for a in found if a["interface"] not in _LOOPBACKS and not a["address"].startswith("127.")
    ]


def parse_interfaces(text: str) -> Dict[str, Dict[str, Any]]:
    """Label speed, MTU and kind of each interface.

    From `name|speed|mtu|kind|state` lines, or from macOS's `ifconfig` and its list of ports.
    """
    found: Dict[str, Dict[str, Any]] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5:
            continue
        # A virtual interface states a speed that no wire stands for.
        speed = number(fields[1]) if fields[3] in ("", "wired", "wifi") else None
        mtu = number(fields[2])
        found[fields[0]] = {
            "label_bytes_per_s": _label(speed),
            "mtu": int(mtu) if mtu is not None else None,
            "kind": fields[3] or "wired",
            "state": fields[4] or None,
        }
    return found or _mac_interfaces(text)


def _label(megabits: Optional[float]) -> Optional[float]:
    if megabits is None or megabits <= 0 or megabits in _UNKNOWN_SPEEDS:
        return None
    return megabits * 1e6 / 8


def _mac_interfaces(text: str) -> Dict[str, Dict[str, Any]]:
    ports = dict(
        (device, port)
        for port, device in re.findall(r"^Hardware Port: (.+)\nDevice: (\S+)", text, re.M)
    )
    found: Dict[str, Dict[str, Any]] = {}
    for block in re.split(r"^(?=\S+: flags=)", text, flags=re.M):
        head = re.match(r"(\S+): flags=\S+ mtu (\d{1,9})\b", block)
        if not head or head.group(1) in _LOOPBACKS:
            continue
        kind = _mac_kind(head.group(1), ports)
        media = re.search(r"^[ \t]+media:.*\((\d{1,9})(G?)base", block, re.M | re.I)
        status = re.search(r"^[ \t]+status: (.+)$", block, re.M)
        speed = int(media.group(1)) * (1000 if media.group(2) else 1) if media else None
        found[head.group(1)] = {
            "label_bytes_per_s": _label(speed) if kind == "wired" else None,
            "mtu": int(head.group(2)),
            "kind": kind,
            "state": status.group(1).strip() if status else None,
        }
    return found


def _mac_kind(device: str, ports: Dict[str, str]) -> str:
    port = ports.get(device, "")
    if re.search(r"wi-?fi|airport", port, re.I):
        return "wifi"
    if device.startswith("bridge"):
        return "bridge"
    if device.startswith(("utun", "ipsec", "ppp", "gif", "stf", "tun")):
        return "tunnel"
    return "wired" if port else "virtual"


def parse_rdma(text: str) -> List[str]:
    """RDMA devices of /sys/class/infiniband with the port's state and rate."""
    return [line.strip() for line in text.splitlines() if line.strip()]
