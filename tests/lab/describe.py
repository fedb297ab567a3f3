"""What a test or a person needs to know about a lab that is up, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tests.lab.inside import exec_command
from tests.lab.rates import goodput_bits_per_s
from tests.lab.records import DESK, Node
from tests.lab.sshd import public_host_key
from tests.lab.store import Lab


def environment(lab: Lab) -> dict[str, Any]:
    """Addresses, keys and ways in: `boxes` are ordinary, `others` odd, `desk` runs the product."""
    state = lab.state
    told: dict[str, Any] = {
        "lab": lab.name,
        "state": str(lab.folder),
        "subnet": state.subnet,
        "router": state.router,
        "identity": str(lab.keys / "id_ed25519"),
        "known_hosts": str(lab.keys / "known_hosts"),
        "ssh_config": str(lab.keys / "ssh_config"),
        "up_s": state.up_s,
        "boxes": {},
        "others": {},
    }
    for node in lab.nodes.values():
        if node.kind == DESK:
            told["desk"] = _desk(lab, node)
        else:
            told["boxes" if node.kind == "box" else "others"][node.name] = _box(lab, node)
    return told


def _any_node(lab: Lab, node: Node) -> dict[str, Any]:
    rate = node.rate_bits_per_s
    told: dict[str, Any] = {
        "name": node.name,
        "kind": node.kind,
        "address": node.address,
        "mac": node.mac,
        "netns": node.netns,
        "netns_exec": ["ip", "netns", "exec", node.netns],
        "exec": exec_command(lab, node.name),
        "link": asdict(node.link),
        "fault": asdict(node.fault),
    }
    if rate:
        told["goodput_bits_per_s"] = round(goodput_bits_per_s(rate))
    return told


def _desk(lab: Lab, node: Node) -> dict[str, Any]:
    return {
        **_any_node(lab, node),
        "home": node.home,
        "identity": f"{node.home}/.ssh/id_ed25519",
        "known_hosts": f"{node.home}/.ssh/known_hosts",
    }


def _box(lab: Lab, node: Node) -> dict[str, Any]:
    told = {**_any_node(lab, node), "pid": node.pid, "up": lab.alive(node.name)}
    if node.full:
        told |= {
            "hostname": node.name,
            "mdns_host": f"{node.name}.local",
            "port": 22,
            "user": node.user,
            "home": node.home,
            "cpu": asdict(node.cpu) if node.cpu else None,
            "memory_gib": node.memory_gib,
            "root": f"/proc/{node.pid}/root" if node.pid else None,
            "host_fs_exec": exec_command(lab, node.name, "--host-fs"),
            "host_key": public_host_key(lab, node),
        }
    return told


def status_line(lab: Lab, node: Node) -> str:
    """One machine on one line."""
    on = node.kind == DESK or lab.alive(node.name)
    rate = node.rate_bits_per_s
    parts = [
        f"{node.name:10} {node.kind:8} {node.address:15} {'on' if on else 'off':4}",
        f"{rate / 1e6:g} Mbit/s" if rate else "not shaped",
    ]
    if node.cpu:
        parts.append(f"{node.cpu.share:g} cores of {node.cpu.cpus}")
    if node.memory_gib:
        parts.append(f"{node.memory_gib:g} GiB")
    broken = {key: value for key, value in asdict(node.fault).items() if value}
    if broken:
        parts.append(f"fault {broken}")
    return "  ".join(parts)
