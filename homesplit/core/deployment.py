"""What `up` will change on a box, and what it left running."""

from __future__ import annotations

from typing import Literal

from homesplit_engine.records import ModeSetting
from msgspec import Struct


class Change(Struct, frozen=True, kw_only=True):
    """One thing that `up` adds to a box, shown before anything is done."""

    box: str
    kind: Literal["folder", "file", "environment", "model", "process", "port", "unit"]
    what: str
    bytes: int | None = None
    """Size on the box's disk or over the network, None when it isn't known beforehand."""
    needed: bool = True
    """False when it is there already and right."""
    why: str = ""
    stays: bool = True
    """False when it is deleted again before the command ends."""


class DeployPlan(Struct, frozen=True, kw_only=True):
    """Every change on every box, in order."""

    boxes: tuple[str, ...]
    model: str
    setting: ModeSetting
    changes: tuple[Change, ...]
    warnings: tuple[str, ...] = ()


class DeployedBox(Struct, frozen=True, kw_only=True):
    """One box of a deployment, and whether its worker lives."""

    box: str
    address: str
    state: Literal["running", "stopped", "unreachable", "absent", "starting"]
    why: str | None = None
    pid: int | None = None
    fingerprint: str | None = None


class Deployment(Struct, frozen=True, kw_only=True):
    """A running (or stopped) deployment as the desk remembers it; holds no secrets."""

    id: str
    boxes: tuple[DeployedBox, ...]
    router_box: str
    model: str
    setting: ModeSetting
    router_port: int
    """Where the API listens on the router box's loopback."""
    api_address: str | None = None
    """An address of the router's box at which it is offered too, to whoever has its key."""
    api_key_file: str | None = None
    """The desk's own copy of the API key, mode 0600."""
    loopback: bool = False
    started_at: str | None = None
    router_state: Literal["running", "stopped", "unreachable", "absent", "starting"] = "absent"
    router_why: str | None = None
    held_by: str | None = None
    """The other desk whose deployment this is, None when it is this desk's own."""
    url: str | None = None
    """The API as reached from the desk now (SSH forwarding), None when not forwarded."""
