"""Which ports a deployment takes on each box, and on which box its router can be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homesplit_engine.records import ModeSetting

from homesplit.errors import DeployError, UsageError
from homesplit.io.deploy_store import Memory
from homesplit.stages.deploy_survey import FIRST_PORT, SeenBox, firsts

Ports = tuple[int, int, int]
"""Control, hand-off and API port."""
PORTS = (1024, 65_533)
"""Where the first of the three may lie: those below are root's."""


def choose_ports(seen: SeenBox, first: int | None, memory: Memory | None) -> Ports:
    """Those in use by our own processes stay; raises DeployError and UsageError.

    Where the SSH server carries only named ports, the API gets one of these if it may.
    """
    old = memory.box(seen.name) if memory else None
    if old and (first is None or old.control_port == first):
        return old.control_port, old.kv_port, old.control_port + 2
    start = first or FIRST_PORT
    if not PORTS[0] <= start <= PORTS[1]:
        raise UsageError(
            f"--port {start}: it lies between {PORTS[0]:,} and {PORTS[1]:,}.",
            do_next="Give such a number, or leave --port out to have one chosen.",
        )
    busy = seen.facts.listening - _own_ports(seen)
    free: list[int] = []
    for tried in firsts(first):
        taken = sorted(busy & {tried, tried + 1, tried + 2})
        if first is not None and taken:
            raise DeployError(
                f"port {taken[0]} is taken by another program.",
                where=seen.name,
                do_next="Choose another with --port, or leave --port out.",
            )
        if not taken:
            free.append(tried)
    if not free:
        raise DeployError(
            f"no free ports from {start} on.",
            where=seen.name,
            do_next="Choose the first of three free ones with --port.",
        )
    # A box that carries none of them can still be the one without the API.
    chosen = next((tried for tried in free if seen.carries(tried + 2)), free[0])
    return chosen, chosen + 1, chosen + 2


def choose_router_box(
    boxes: Sequence[SeenBox],
    setting: ModeSetting,
    memory: Memory | None,
    ports: Mapping[str, Ports],
) -> str:
    """Where the router is already, else the box that writes answers, if we reach its port there."""
    open_to_us = [seen.name for seen in boxes if seen.carries(ports[seen.name][2])]
    if not open_to_us:
        first = boxes[0]
        raise DeployError(
            "its SSH server forwards no ports, or only named ones; the router's API comes to this "
            "machine by one.",
            where=first.name,
            do_next="Set `AllowTcpForwarding local` in /etc/ssh/sshd_config there, and where "
            f"PermitOpen names ports add 127.0.0.1:{ports[first.name][2]} to it (`--port N` makes "
            "it N + 2); then restart it.",
        )
    if memory and memory.deployment.router_box in open_to_us:
        return memory.deployment.router_box
    return setting.decode_box if setting.decode_box in open_to_us else open_to_us[0]


def _own_ports(seen: SeenBox) -> set[int]:
    """Ports that our own processes hold there, which a restart frees."""
    own: set[int] = set()
    if seen.worker and seen.runs("worker"):
        own |= {seen.worker.control_port, seen.worker.kv_port}
    if seen.router and seen.runs("router"):
        own.add(seen.router.http_port)
    return own
