"""The switch, each machine's cable to it, and the network files in /etc."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.lab.files import put
from tests.lab.processes import run_tool
from tests.lab.records import Node
from tests.lab.store import Lab


def wire_up(lab: Lab) -> None:
    """Make the namespaces, the switch and every cable."""
    state = lab.state
    _ip([f"netns add {name}" for name in state.namespaces])
    # mcast_snooping 0: without a querier a snooping bridge stops flooding multicast DNS.
    _ip(
        [
            "link set lo up",
            "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            "link set br0 addrgenmode none",
            "link set br0 up",
            f"addr add {state.router}/24 dev br0",
        ],
        state.switch,
    )
    # A home router whose uplink is down: it answers "no route" at once.
    _sysctl(state.switch, {"net/ipv4/ip_forward": "1"})
    for node in lab.nodes.values():
        plug(lab, node)


def plug(lab: Lab, node: Node) -> None:
    """Connect one machine and give it address, route and network files."""
    no_waiting = "net/ipv6/conf/{}/accept_dad"
    _sysctl(
        node.netns,
        {
            no_waiting.format("default"): "0",
            no_waiting.format("all"): "0",
            "net/ipv4/tcp_congestion_control": lab.state.settings.congestion_control,
            "net/ipv4/ping_group_range": "0 2147483647",
        },
    )
    port = node.port_device
    _ip(
        [
            f"link add {port} type veth peer name eth0 address {node.mac} netns {node.netns}",
            f"link set {port} addrgenmode none",
            f"link set {port} master br0",
            f"link set {port} up",
        ],
        lab.state.switch,
    )
    _ip(
        [
            "link set lo up",
            "link set eth0 up",
            f"addr add {node.address}/24 brd + dev eth0",
            f"route add default via {lab.state.router}",
        ],
        node.netns,
    )
    if node.netns in lab.state.etc_folders:
        folder = Path("/etc/netns") / node.netns
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in etc_files(lab, node.name).items():
            put(folder / name, text)


def set_port(lab: Lab, node: Node, *words: str, check: bool = True) -> None:
    """Change the switch's end of a cable: `up`, `down`, `master br0`, `nomaster`."""
    command = ["ip", "-n", lab.state.switch, "link", "set", node.port_device, *words]
    run_tool(command, check=check)


def etc_files(lab: Lab, name: str) -> dict[str, str]:
    """A machine's hostname, hosts and resolv.conf."""
    hosts = [
        "127.0.0.1\tlocalhost",
        f"127.0.1.1\t{name}",
        "::1\tlocalhost ip6-localhost ip6-loopback",
    ]
    if lab.state.settings.name_hosts:
        others = (node for node in lab.nodes.values() if node.name != name)
        hosts += [f"{node.address}\t{node.name} {node.name}.local" for node in others]
    return {
        "hostname": f"{name}\n",
        "hosts": "\n".join(hosts) + "\n",
        "resolv.conf": "# no name server in this lab\n",
    }


def _ip(commands: list[str], namespace: str | None = None) -> None:
    where = ["-n", namespace] if namespace else []
    run_tool(["ip", *where, "-batch", "-"], text="\n".join(commands))


_WRITE_EACH = """\
while read -r key value; do
    if [ -w "/proc/sys/$key" ]; then echo "$value" > "/proc/sys/$key" || true; fi
done
"""


def _sysctl(namespace: str, values: Mapping[str, str]) -> None:
    """Set kernel network values of a namespace; one that this kernel lacks is passed over."""
    lines = "".join(f"{key} {value}\n" for key, value in values.items())
    run_tool(["sh", "-c", _WRITE_EACH], namespace=namespace, text=lines)
