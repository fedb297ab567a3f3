"""The state of the boxes before anything is done: facts, processes, settings, what we remember."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from homesplit_engine.config import ConfigError, RouterConfig, WorkerConfig

from homesplit.core.manifest import Manifest
from homesplit.errors import UsageError, during
from homesplit.io import box_facts, model_store, remote_process
from homesplit.io.box import Box
from homesplit.io.box_facts import BoxFacts
from homesplit.io.bundle import Bundle, make_bundle
from homesplit.io.platforms import Target, target_of
from homesplit.io.remote_process import ProcessState, Role
from homesplit.io.remote_root import Owner, read_owner
from homesplit.io.same_machine import refuse_copies
from homesplit.io.ssh import Connections
from homesplit.stages.context import Context
from homesplit.stages.model import model_name

_T = TypeVar("_T")

FIRST_PORT = 47610
_TRIES = 50
_STEP = 10
_ASKED = 10
"""So many are asked for where not all are carried: each refusal is a line in a log there."""
_DISCARD = 9
"""Nobody listens there: asked for it, a server only says whether it would carry it."""


def firsts(chosen: int | None) -> range:
    """The ports that may be the first of a box's three, in the order in which they are tried."""
    if chosen is not None:
        return range(chosen, chosen + 1)
    return range(FIRST_PORT, FIRST_PORT + _TRIES * _STEP, _STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBox:
    """One connected box as it is now."""

    box: Box
    facts: BoxFacts
    target: Target
    internet: bool
    owner: Owner | None
    processes: dict[Role, ProcessState]
    worker: WorkerConfig | None
    """The settings that lie there, None when there are none or others than we write."""
    router: RouterConfig | None
    open_ports: frozenset[int] | None = None
    """Of the ports that the API may get, those that its SSH server carries to this machine where
    it carries only some; None where it carries any."""

    @property
    def name(self) -> str:
        """The box's name."""
        return self.box.name

    def carries(self, port: int) -> bool:
        """Whether its SSH server carries that port to this machine."""
        return self.open_ports is None or port in self.open_ports

    def runs(self, role: Role) -> bool:
        """Whether that process lives."""
        return self.processes[role].state == "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHere:
    """The model on this machine."""

    folder: Path
    name: str
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything the plan of a deployment is worked out from."""

    boxes: tuple[SeenBox, ...]
    model: ModelHere
    bundle: Bundle

    def box(self, name: str) -> SeenBox:
        """One of the boxes."""
        return next(seen for seen in self.boxes if seen.name == name)


async def survey(
    ctx: Context,
    connections: Connections,
    names: tuple[str, ...],
    folder: Path,
    first_port: int | None = None,
) -> Survey:
    """Look at all boxes and at the model, at once; changes nothing."""
    check_names(names)
    memory_file = ctx.paths.cache / "model-hashes.json"
    hashing = asyncio.to_thread(model_store.describe_remembered, folder, memory_file)
    bundling = asyncio.to_thread(make_bundle)
    seen, manifest, bundle = await asyncio.gather(
        together(look(connections, name, first_port) for name in names), hashing, bundling
    )
    await refuse_copies([each.box for each in seen])
    model = ModelHere(folder=folder, name=model_name(folder), manifest=manifest)
    return Survey(boxes=tuple(seen), model=model, bundle=bundle)


async def look(connections: Connections, name: str, first_port: int | None = None) -> SeenBox:
    """Connect to one box and see how it is."""
    box = await connections.connect(name)
    with during("it was looked at"):
        facts = await box_facts.read_facts(box)
        run = f"{facts.root}/run"
        internet, processes, worker, router = await asyncio.gather(
            box_facts.reaches_internet(box),
            remote_process.states(box, facts.root),
            read_settings(box, f"{run}/worker.json", WorkerConfig),
            read_settings(box, f"{run}/router.json", RouterConfig),
        )
    api_ports = {first + 2 for first in firsts(first_port)[:_ASKED]}
    api_ports |= {router.http_port} if router else set()
    return SeenBox(
        box=box,
        facts=facts,
        target=target_of(facts, name),
        internet=internet,
        owner=read_owner(facts.owner),
        processes=processes,
        worker=worker,
        router=router,
        open_ports=await _open_ports(box, api_ports),
    )


async def _open_ports(box: Box, wanted: Collection[int]) -> frozenset[int] | None:
    """Of these, the ports that the box's SSH server carries; None where it carries any."""
    if await box.forwards(_DISCARD):
        return None
    carried = await asyncio.gather(*(box.forwards(port) for port in wanted))
    return frozenset(port for port, yes in zip(wanted, carried, strict=True) if yes)


def check_names(names: tuple[str, ...]) -> None:
    """Raise UsageError unless there are one or two boxes, each once."""
    if not 1 <= len(names) <= 2:
        raise UsageError("Give one box or two, as --boxes A,B.")
    if len(set(names)) != len(names):
        raise UsageError(
            f"{names[0]} is given twice.", do_next="One machine alone: use `homesplit demo`."
        )
    if "router" in names:
        raise UsageError("A box can't be called 'router'.", do_next="Use its address.")


async def together(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """Await all at once; the first failure ends the others and is raised itself."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def read_settings(box: Box, path: str, kind: type[_T]) -> _T | None:
    """An engine process's settings as they lie on the box, None when there are none we know."""
    raw = await box.read(path)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, ConfigError):
        # Settings of another version: as if there were none, so they are written anew.
        return None
