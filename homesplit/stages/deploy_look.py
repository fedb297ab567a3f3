"""Looking on at a deployment that another desk holds; changes nothing."""

from __future__ import annotations

import asyncio

from homesplit_engine.config import RouterConfig, WorkerConfig
from homesplit_engine.records import ModeSetting

from homesplit.core.deployment import DeployedBox, Deployment
from homesplit.errors import UnreachableError
from homesplit.io import box_facts, remote_process, remote_root
from homesplit.io.box import Box
from homesplit.io.remote_process import ProcessState, Role
from homesplit.io.remote_root import Owner
from homesplit.io.ssh import Connections
from homesplit.stages.deploy_blueprint import LOOPBACK
from homesplit.stages.deploy_state import State, deployed_box, in_words, setting_in_force
from homesplit.stages.deploy_survey import check_names, read_settings


class _Sight:
    """What one box shows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.box: Box | None = None
        self.owner: Owner | None = None
        self.worker: WorkerConfig | None = None
        self.router: RouterConfig | None = None
        self.processes: dict[Role, ProcessState] = {}
        self.addresses: frozenset[str] = frozenset()
        self.why: str | None = None

    def as_deployed(self) -> DeployedBox:
        """The box's worker."""
        address = self.worker.bind_host if self.worker else ""
        if self.why:
            return DeployedBox(box=self.name, address=address, state="unreachable", why=self.why)
        return deployed_box(self.name, address, self.processes["worker"], self.addresses)


async def look_on(connections: Connections, names: tuple[str, ...], desk: str) -> Deployment | None:
    """What is deployed on these boxes, by whomever; None when they are free."""
    check_names(names)
    seen = await asyncio.gather(*(_look(connections, name) for name in names))
    owner = next((each.owner for each in seen if each.owner), None)
    if owner is None and all(each.why is None for each in seen):
        return None
    router = next((each for each in seen if each.router), None)
    state, why, setting = await _router(router)
    config = router.router if router else None
    return Deployment(
        id=owner.deployment if owner else "",
        boxes=tuple(each.as_deployed() for each in seen),
        router_box=router.name if router else names[0],
        model=config.model_name if config else "",
        setting=setting or (config.setting if config else ModeSetting()),
        router_port=config.http_port if config else 0,
        api_address=config.http_host if config and config.http_host != LOOPBACK else None,
        loopback=config.loopback if config else False,
        started_at=owner.since if owner else None,
        router_state=state,
        router_why=why,
        held_by=remote_root.holds(owner) if owner and owner.desk != desk else None,
    )


async def api_key_there(box: Box) -> str | None:
    """The API key as it lies on the router's box, for a desk that may log in there."""
    facts = await box_facts.read_facts(box)
    raw = await box.read(f"{facts.root}/run/api.key")
    return raw.decode().strip() if raw else None


async def _look(connections: Connections, name: str) -> _Sight:
    seen = _Sight(name)
    try:
        box = seen.box = await connections.connect(name)
        facts = await box_facts.read_facts(box)
        run = f"{facts.root}/run"
        seen.owner = remote_root.read_owner(facts.owner)
        seen.addresses = facts.addresses
        seen.processes, seen.worker, seen.router = await asyncio.gather(
            remote_process.states(box, facts.root),
            read_settings(box, f"{run}/worker.json", WorkerConfig),
            read_settings(box, f"{run}/router.json", RouterConfig),
        )
    except UnreachableError as error:
        seen.why = error.sentence()
    return seen


async def _router(seen: _Sight | None) -> tuple[State, str | None, ModeSetting | None]:
    if seen is None or seen.box is None or seen.router is None:
        return "absent", "none of these boxes has the router", None
    state, why = in_words(seen.processes["router"])
    if state != "running":
        return state, why, None
    try:
        key = await api_key_there(seen.box)
        return state, None, await setting_in_force(seen.box, seen.router.http_port, key)
    except UnreachableError as error:
        return "unreachable", error.sentence(), None
