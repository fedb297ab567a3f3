"""A lab for the length of a `with` block, for tests."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Literal

from tests.lab.describe import environment
from tests.lab.faults import FaultRequest, inject
from tests.lab.inside import run_inside
from tests.lab.lifecycle import down, up
from tests.lab.measure import iperf_bits_per_s
from tests.lab.plan import UpOptions
from tests.lab.records import DESK
from tests.lab.store import CHECKOUT, Lab

CORE_EACH = ("atlas=1@0", "borea=1@1")
"""For `cpu`: else both ends of one program may sit on one core by chance, and of another not."""
_numbers = itertools.count()


class RunningLab:
    """A lab that is up: its `env`, and ways to run commands and break things."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    @property
    def env(self) -> dict[str, Any]:
        """Addresses, keys and ways in, as they are now (see `describe.environment`)."""
        return environment(self.lab)

    @property
    def boxes(self) -> list[str]:
        """Names of the ordinary boxes."""
        return [node.name for node in self.lab.nodes.values() if node.kind == "box"]

    def address(self, name: str) -> str:
        """A machine's address."""
        return self.lab.node(name).address

    @property
    def known_hosts(self) -> Path:
        """Every machine's host key, for an SSH client."""
        return self.lab.keys / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """An OpenSSH client configuration that reaches each machine by name."""
        return self.lab.keys / "ssh_config"

    def desk(
        self,
        command: Sequence[str],
        *,
        text: str | None = None,
        environment: dict[str, str] | None = None,
        timeout_s: float = 180.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the desk, in the checkout; 124 when it took too long."""
        return run_inside(
            self.lab,
            DESK,
            command,
            text=text,
            timeout_s=timeout_s,
            environment=environment,
            folder=CHECKOUT,
        )

    def box(
        self,
        name: str,
        command: Sequence[str],
        *,
        root: bool = False,
        text: str | None = None,
        timeout_s: float = 180.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a box as its owner, or as its root."""
        return run_inside(self.lab, name, command, root=root, text=text, timeout_s=timeout_s)

    def fault(
        self,
        box: str,
        what: str,
        value: str | None = None,
        *,
        for_s: float | None = None,
        match: str | None = None,
        signal_name: str = "KILL",
    ) -> list[dict[str, int | str]]:
        """Break or mend something (see `faults.FAULTS`); `for_s` waits, then undoes it."""
        request = FaultRequest(
            box=box, what=what, value=value, for_s=for_s, match=match, signal_name=signal_name
        )
        with self.lab.locked():
            return inject(self.lab.load(), request)

    def set_rate(self, rate: str) -> None:
        """Shape every box's link to a rate or preset; `normal` goes back to what was asked."""
        for box in self.boxes:
            self.fault(box, "rate", rate)

    def iperf_bits_per_s(self, sender: str, receiver: str, *, seconds: int = 4) -> float:
        """What iperf3 measures between two machines now."""
        return iperf_bits_per_s(self.lab, sender, receiver, seconds=seconds)


@contextlib.contextmanager
def running_lab(
    boxes: int | str = 2,
    link: str = "1gbe",
    *,
    cpu: Sequence[str] = (),
    memory: Sequence[str] = (),
    latency: Sequence[str] = (),
    loss: Sequence[str] = (),
    share: Sequence[str] = (),
    odd: str | None = None,
    first_contact: bool = False,
    mdns: Literal["avahi", "builtin"] = "avahi",
    name: str | None = None,
    subnet: str = "10.77.0.0/24",
) -> Generator[RunningLab]:
    """Bring a lab up and take it down at the end, whatever happens in between.

    Options are those of `python -m tests.lab up`. Without a name it gets one that no other
    process uses; labs share no network, so the same subnet may be used by several.
    """
    options = UpOptions(
        boxes=str(boxes),
        link=[link],
        cpu=cpu,
        memory=memory,
        latency=latency,
        loss=loss,
        share=share,
        odd=odd,
        first_contact=first_contact,
        mdns=mdns,
        subnet=subnet,
    )
    lab = Lab(name or _free_name())
    with lab.locked():
        up(lab, options)
    try:
        yield RunningLab(lab)
    finally:
        with lab.locked():
            down(lab)


def _free_name() -> str:
    """A name from this process's number, which no other process has meanwhile."""
    return f"t{os.getpid()}n{next(_numbers)}"
