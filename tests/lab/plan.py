"""From what was asked to the machines, addresses, links and limits of a lab; touches nothing."""

from __future__ import annotations

import collections
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar, cast

from tests.lab.errors import LabError
from tests.lab.rates import PRESETS, parse_rate
from tests.lab.records import DESK, CpuLimit, Kind, LabState, Link, Node, Settings
from tests.lab.rootfs import hidden_folders

NAMES = ("atlas", "borea", "carina", "delos", "elara", "ferro", "gaia", "helio")
ODD: dict[str, tuple[str, int]] = {
    "refuse": ("corvo", 41),
    "mdns": ("malin", 42),
    "printer": ("inkwell", 43),
}
"""Kinds of odd machine: name, and last number of the address."""

_DESK_HOST = 2
_FIRST_BOX_HOST = 11
_NAME = re.compile(r"[a-z][a-z0-9-]{0,12}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What can be asked of a lab; each `[BOX=]VALUE` without a box holds for every machine."""

    boxes: str = "2"
    link: Sequence[str] = ()
    bandwidth: Sequence[str] = ()
    latency: Sequence[str] = ()
    jitter: Sequence[str] = ()
    loss: Sequence[str] = ()
    cpu: Sequence[str] = ()
    cpu_period_us: int = 5000
    memory: Sequence[str] = ()
    user: Sequence[str] = ()
    odd: str | None = None
    mdns: Literal["avahi", "builtin"] = "avahi"
    subnet: str = "10.77.0.0/24"
    congestion_control: str = "cubic"
    share: Sequence[str] = ()
    hide: Sequence[str] = ()
    name_hosts: bool = False
    first_contact: bool = False
    pam: bool = False
    python: str = ""
    replace: bool = False
    keep_failed: bool = False
    cores: Sequence[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))


def plan(lab: str, options: UpOptions) -> LabState:
    """The lab that `options` ask for; raises LabError for what can't be."""
    network = _network(options.subnet)
    every = _names(options)
    chosen = _Chosen(options, [name for name, _, _ in every])
    used: collections.Counter[int] = collections.Counter()
    salt = os.urandom(2).hex()
    nodes: dict[str, Node] = {}
    for name, kind, host in every:
        nodes[name] = Node(
            name=name,
            kind=kind,
            netns=f"{lab}-{name}",
            address=f"{network}.{host}",
            mac=f"02:4c:{salt[:2]}:{salt[2:]}:00:{host:02x}",
            port_device=f"p-{name}",
            link=chosen.link(name),
        )
        if nodes[name].full:
            _fit_out(nodes[name], chosen, options, used)
    switch = f"{lab}-switch"
    return LabState(
        lab=lab,
        subnet=f"{network}.0/24",
        router=f"{network}.1",
        switch=switch,
        settings=_settings(options),
        nodes=nodes,
        namespaces=[*(node.netns for node in nodes.values()), switch],
        etc_folders=[
            node.netns for node in nodes.values() if not Path("/etc/netns", node.netns).exists()
        ],
    )


def _network(subnet: str) -> str:
    """The first three numbers of a /24."""
    address, _, bits = subnet.partition("/")
    numbers = address.split(".")
    right = len(numbers) == 4 and all(part.isdigit() and int(part) < 256 for part in numbers)
    if not right or bits not in ("", "24"):
        raise LabError(f"--subnet {subnet}: write a /24 such as 10.77.0.0/24")
    return ".".join(numbers[:3])


def _names(options: UpOptions) -> list[tuple[str, Kind, int]]:
    boxes = options.boxes
    if boxes.isdigit() and not 1 <= int(boxes) <= len(NAMES):
        raise LabError(f"--boxes {boxes}: 1 to {len(NAMES)}, or names with commas between")
    names = NAMES[: int(boxes)] if boxes.isdigit() else boxes.split(",")
    every: list[tuple[str, Kind, int]] = [(DESK, DESK, _DESK_HOST)]
    for number, name in enumerate(names):
        every.append((name, "box", _FIRST_BOX_HOST + number))
    for kind in _odd_kinds(options.odd):
        name, host = ODD[kind]
        every.append((name, cast("Kind", kind), host))
    counted = collections.Counter(name for name, _, _ in every)
    for name, count in counted.items():
        if count > 1 or not _NAME.fullmatch(name):
            raise LabError(
                f"--boxes: {name!r} is taken or no name (a-z 0-9 -, a letter first, 13 at most)"
            )
    return every


def _odd_kinds(asked: str | None) -> list[str]:
    if asked is None:
        return []
    kinds = list(ODD) if asked == "all" else asked.split(",")
    for kind in kinds:
        if kind not in ODD:
            raise LabError(f"--odd {kind}: all, or some of {', '.join(ODD)}")
    return kinds


class _Chosen:
    """Values by machine from options of the form `[BOX=]VALUE`."""

    def __init__(self, options: UpOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names

    def link(self, name: str) -> Link:
        link = self._value("link", self._options.link, _preset, name) or PRESETS["loopback"]
        options = self._options
        rate = self._value("bw", options.bandwidth, parse_rate, name)
        latency = self._value("latency", options.latency, float, name)
        jitter = self._value("jitter", options.jitter, float, name)
        loss = self._value("loss", options.loss, float, name)
        return replace(
            link,
            rate_bits_per_s=link.rate_bits_per_s if rate is None else rate,
            latency_ms=link.latency_ms if latency is None else latency,
            jitter_ms=link.jitter_ms if jitter is None else jitter,
            loss_percent=link.loss_percent if loss is None else loss,
        )

    def cpu(self, name: str) -> str | None:
        return self._value("cpu", self._options.cpu, str, name)

    def memory_gib(self, name: str) -> float | None:
        return self._value("mem", self._options.memory, float, name)

    def user(self, name: str) -> str | None:
        return self._value("user", self._options.user, str, name)

    def _value(
        self, option: str, given: Sequence[str], convert: Callable[[str], T], name: str
    ) -> T | None:
        """The last value for this machine, else the last for all."""
        for_all: T | None = None
        for_one: T | None = None
        for entry in given:
            box, equals, text = entry.rpartition("=")
            if equals and box not in self._names:
                raise LabError(f"--{option} {entry}: there is no machine {box!r}")
            try:
                value = convert(text)
            except ValueError:
                raise LabError(f"--{option} {entry}: {text!r} is no number") from None
            if not equals:
                for_all = value
            elif box == name:
                for_one = value
        return for_all if for_one is None else for_one


def _preset(text: str) -> Link:
    return PRESETS.get(text) or Link(label=text, rate_bits_per_s=parse_rate(text))


def _fit_out(
    node: Node, chosen: _Chosen, options: UpOptions, used: collections.Counter[int]
) -> None:
    node.user = chosen.user(node.name) or "owner"
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", node.user):
        raise LabError(f"--user {node.user!r} is no user name")
    node.home = "/root" if node.user == "root" else f"/home/{node.user}"
    node.memory_gib = chosen.memory_gib(node.name)
    cpu = chosen.cpu(node.name)
    if cpu:
        node.cpu = _cpu_limit(cpu, used, options)


def _cpu_limit(text: str, used: collections.Counter[int], options: UpOptions) -> CpuLimit:
    """`1` one core, `0.5` half a core, `0.5@1` half of core 1, `1.5@0-1` of two."""
    wrong = LabError(
        f"--cpu {text}: write 1, 0.5, 0.5@1 or 2@0-1; this machine has cores {list(options.cores)}"
    )
    amount, _, where = text.partition("@")
    try:
        share = float(amount)
        cpus = _cpu_list(where)
    except ValueError:
        raise wrong from None
    if not where and share > 0:
        by_use = sorted(options.cores, key=lambda core: (used[core], core))
        cpus = sorted(by_use[: max(1, math.ceil(share))])
    if not cpus or not set(cpus) <= set(options.cores) or not 0.02 <= share <= len(cpus):
        raise wrong
    used.update(cpus)
    return CpuLimit(share=share, cpus=cpus, period_us=options.cpu_period_us)


def _cpu_list(text: str) -> list[int]:
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        cpus += range(int(low), int(high or low) + 1)
    return cpus


def _settings(options: UpOptions) -> Settings:
    for entry in options.share:
        path, _, how = entry.partition(":")
        if not os.path.isabs(path) or not os.path.exists(path) or how not in ("", "ro"):
            raise LabError(f"--share {entry}: an absolute path that exists, :ro after it at most")
    return Settings(
        mdns=options.mdns,
        congestion_control=options.congestion_control,
        share=list(options.share),
        hide=hidden_folders(list(options.hide)),
        name_hosts=options.name_hosts,
        first_contact=options.first_contact,
        pam=options.pam,
        python=options.python,
    )
