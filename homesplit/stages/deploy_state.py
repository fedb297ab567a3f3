"""What the boxes of a deployment say of themselves now, in words that are true after a crash."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import aiohttp
import msgspec
from homesplit_engine.config import WorkerEndpoints
from homesplit_engine.records import ModeSetting

from homesplit.core.deployment import DeployedBox
from homesplit.errors import UnreachableError
from homesplit.io import remote_process, remote_root
from homesplit.io.box import Box
from homesplit.io.box_facts import read_addresses
from homesplit.io.deploy_client import read_setting
from homesplit.io.deploy_store import BoxMemory, Memory
from homesplit.io.remote_process import ProcessState
from homesplit.io.ssh import Connections

State = Literal["running", "stopped", "unreachable", "absent", "starting"]
"""One word for a worker or the router."""


async def box_state(connections: Connections, part: BoxMemory, desk: str) -> DeployedBox:
    """One box's worker; a box that can't be reached is `unreachable`, with the reason."""
    try:
        box = await connections.connect(part.name)
        process = (await remote_process.states(box, part.root))["worker"]
        owner = await remote_root.owner_of(box, part.root)
        addresses = await read_addresses(box)
    except UnreachableError as error:
        return DeployedBox(
            box=part.name, address=part.address, state="unreachable", why=error.sentence()
        )
    if owner is not None and owner.desk != desk:
        return DeployedBox(
            box=part.name, address=part.address, state="absent", why=remote_root.holds(owner)
        )
    return deployed_box(part.name, part.address, process, addresses)


def deployed_box(
    name: str, address: str, process: ProcessState, addresses: Collection[str] = ()
) -> DeployedBox:
    """A worker's process as a box of the deployment.

    `addresses` are all that the box has now: a worker that listens on none of them serves nobody.
    """
    state, why = in_words(process)
    if state == "running" and addresses and address.partition("%")[0] not in addresses:
        why = (
            f"it listens at {address}, which the box has no more; the same `homesplit up` moves it"
        )
        return DeployedBox(box=name, address=address, state="unreachable", why=why)
    return DeployedBox(
        box=name,
        address=address,
        state=state,
        why=why,
        pid=process.pid if state in ("running", "starting") else None,
        fingerprint=_fingerprint(process.ready) if state == "running" else None,
    )


def in_words(process: ProcessState) -> tuple[State, str | None]:
    """State and reason of a process."""
    if process.state == "running":
        return ("running", None) if process.ready else ("starting", "the model is being loaded")
    if process.state == "rebooted":
        return "stopped", "the box was restarted since"
    if process.state == "crashed":
        said = f": {process.said}" if process.said else ""
        return "stopped", f"it ended by itself{said}"
    return "absent", "it was never started"


async def router_state(
    connections: Connections, memory: Memory, name: str, key: str | None
) -> tuple[State, str | None, ModeSetting | None]:
    """The router's state, the reason, and the mode that it says is in force."""
    part = memory.box(name)
    if part is None:
        return "absent", "its box was removed", None
    try:
        box = await connections.connect(name)
        process = (await remote_process.states(box, part.root))["router"]
        state, why = in_words(process)
        if state != "running":
            return state, why, None
        return state, None, await setting_in_force(box, memory.deployment.router_port, key)
    except UnreachableError as error:
        return "unreachable", error.sentence(), None


async def setting_in_force(box: Box, port: int, key: str | None) -> ModeSetting | None:
    """The mode as the router on that box tells it; None when it does not answer."""
    way = await box.forward("127.0.0.1", port)
    try:
        return await read_setting(f"http://127.0.0.1:{way.port}", key)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None
    finally:
        await way.close()


def _fingerprint(ready: str | None) -> str | None:
    if not ready:
        return None
    try:
        return msgspec.json.decode(ready, type=WorkerEndpoints).fingerprint
    except msgspec.MsgspecError:
        return None
