"""Whether two boxes that show one SSH host key are one machine, or a machine and its copy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from homesplit.errors import TrustError
from homesplit.io.box import Box

_WHO = (
    "cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.bootsessionuuid; "
    "uname -n; exit 0"
)
"""Differs between two machines that run, though one's disk is a copy of the other's."""


async def refuse_copies(boxes: Sequence[Box]) -> None:
    """Raise TrustError where two machines show one host key: nobody could tell them apart."""
    if len(boxes) != 2 or None in (boxes[0].host_key, boxes[1].host_key):
        return
    a, b = boxes
    if a.host_key != b.host_key:
        return
    said = await asyncio.gather(*(box.run(_WHO, timeout_s=30.0) for box in boxes))
    if said[0].stdout != said[1].stdout:
        raise TrustError(
            f"it and {b.name} are two machines that show the same SSH host key, as copies of one "
            "disk do: nobody can tell which of them answers.",
            where=a.name,
            do_next=f"Give {b.name} keys of its own: there run `sudo rm /etc/ssh/ssh_host_*; sudo "
            "ssh-keygen -A`, restart its SSH server, and remove its old key from known_hosts.",
        )
