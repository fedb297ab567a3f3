"""What is kept about a lab: its machines, links, limits and faults, as JSON on disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["desk", "box", "refuse", "mdns", "printer"]
"""`refuse` refuses the key, `mdns` announces nonsense, `printer` is only a printer."""

DESK = "desk"


@dataclass(slots=True, kw_only=True)
class Link:
    """A machine's cable to the switch; a rate of None is not shaped.

    `latency_ms` is the round trip that it adds between two such machines, `jitter_ms` the most
    that a crossing waits on top, `loss_percent` is per direction.
    """

    label: str
    rate_bits_per_s: float | None = None
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0


@dataclass(slots=True, kw_only=True)
class CpuLimit:
    """How many cores' worth of time, on which cores, counted over which period."""

    share: float
    cpus: list[int]
    period_us: int = 5000


@dataclass(slots=True, kw_only=True)
class Fault:
    """What is broken on a machine now."""

    paused: bool = False
    cut: Literal["link", "blackhole"] | None = None
    loss_percent: float = 0.0
    latency_ms: float = 0.0
    rate_bits_per_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Node:
    """One machine of the lab."""

    name: str
    kind: Kind
    netns: str
    address: str
    mac: str
    port_device: str
    link: Link
    user: str = ""
    home: str = ""
    cpu: CpuLimit | None = None
    memory_gib: float | None = None
    fault: Fault = field(default_factory=Fault)
    pid: int | None = None
    started: str | None = None
    filtered: bool = False

    @property
    def full(self) -> bool:
        """Whether it is a whole machine with users and SSH."""
        return self.kind in ("box", "refuse", "mdns")

    @property
    def rate_bits_per_s(self) -> float | None:
        """The rate that holds now: a rate fault comes before the link's own."""
        return self.fault.rate_bits_per_s or self.link.rate_bits_per_s


@dataclass(slots=True, kw_only=True)
class Settings:
    """What was asked for the lab as a whole."""

    mdns: Literal["avahi", "builtin"] = "avahi"
    congestion_control: str = "cubic"
    share: list[str] = field(default_factory=list[str])
    hide: list[str] = field(default_factory=list[str])
    name_hosts: bool = False
    first_contact: bool = False
    pam: bool = False
    python: str = ""


@dataclass(slots=True, kw_only=True)
class DelayProcess:
    """The process that holds packets back; its start time tells it from a later one."""

    pid: int
    started: str | None


@dataclass(slots=True, kw_only=True)
class LabState:
    """Everything that `down` needs to undo and `env` to tell."""

    lab: str
    subnet: str = ""
    router: str = ""
    switch: str = ""
    settings: Settings = field(default_factory=Settings)
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    namespaces: list[str] = field(default_factory=list[str])
    etc_folders: list[str] = field(default_factory=list[str])
    delay: DelayProcess | None = None
    up_s: float | None = None


def to_json(state: LabState) -> dict[str, Any]:
    """Plain dictionaries of a state."""
    return asdict(state)


def from_json(data: dict[str, Any]) -> LabState:
    """The state that `to_json` wrote; raises KeyError or TypeError for anything else."""
    nodes = {name: _node(node) for name, node in data["nodes"].items()}
    delay = DelayProcess(**data["delay"]) if data["delay"] else None
    return LabState(
        **_without(data, "nodes", "delay", "settings"),
        nodes=nodes,
        delay=delay,
        settings=Settings(**data["settings"]),
    )


def _node(data: dict[str, Any]) -> Node:
    return Node(
        **_without(data, "link", "fault", "cpu"),
        link=Link(**data["link"]),
        fault=Fault(**data["fault"]),
        cpu=CpuLimit(**data["cpu"]) if data["cpu"] else None,
    )


def _without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}
