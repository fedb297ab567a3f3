"""Brings the engine to boxes, starts it, looks after it, and takes all of it away again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
from homesplit_engine.records import ModeSetting, ModeSwitch

from homesplit.core.deployment import Deployment, DeployPlan
from homesplit.core.entry import About
from homesplit.core.events import (
    DeploymentSeen,
    DeployPlanned,
    Progress,
    StageEnded,
    StageStarted,
)
from homesplit.errors import DeployError, HomesplitError, during
from homesplit.io import probe_store, remote_process, remote_root, wheelhouse
from homesplit.io.box_facts import read_facts
from homesplit.io.bundle import make_bundle
from homesplit.io.deploy_store import DeployStore, Memory
from homesplit.io.locks import file_lock
from homesplit.io.platforms import Target
from homesplit.io.ssh import Connections
from homesplit.io.wheelhouse import Wheelhouse
from homesplit.stages.context import Context
from homesplit.stages.deploy_blueprint import (
    Blueprint,
    UpOptions,
    as_plan,
    complete,
    make_blueprint,
    needed_bytes,
    refuse,
)
from homesplit.stages.deploy_look import api_key_there, look_on
from homesplit.stages.deploy_state import box_state, router_state
from homesplit.stages.deploy_survey import Survey, survey, together
from homesplit.stages.deploy_work import bring, new_memory, run_engine, undo
from homesplit.stages.model import resolve_model
from homesplit.stages.notebook import known_machines, record_if_possible
from homesplit.stages.serve import set_mode

STAGE = "deploy"
_LOCK_WAIT_S = 2.0


class Api(NamedTuple):
    """The router's API as reached from this machine."""

    url: str
    api_key: str | None
    is_broken: Callable[[], bool]
    """Whether the way there has ended, so that it has to be made anew."""


async def plan_deployment(
    ctx: Context,
    boxes: tuple[str, ...],
    model: str,
    setting: ModeSetting,
    options: UpOptions | None = None,
) -> DeployPlan:
    """Every file, process, port and byte that `up` would add; changes nothing."""
    async with Connections(paths=ctx.paths, ask=ctx.ask) as connections:
        found, blueprint = await _prepare(ctx, connections, boxes, model, setting, options)
        plan = as_plan(blueprint, found, await _houses(ctx, found, blueprint, fetch=False))
    ctx.emit(DeployPlanned(plan=plan))
    return plan


async def up(
    ctx: Context,
    boxes: tuple[str, ...],
    model: str,
    setting: ModeSetting,
    options: UpOptions | None = None,
) -> Deployment:
    """Deploy what is missing, start what does not run, and switch to `setting`.

    When it fails, what it started is ended again; what was brought stays for the next time.
    Raises HomesplitError.
    """
    store = DeployStore(ctx.paths.deployments)
    ctx.emit(StageStarted(stage=STAGE, sentence=f"Looking at {' and '.join(boxes)}."))
    doing = f"deploying to {' and '.join(boxes)}"
    async with (
        _changing(store, doing),
        Connections(paths=ctx.paths, ask=ctx.ask) as connections,
    ):
        await _leave_others(ctx, connections, store, boxes)
        options = options or UpOptions()
        found, blueprint = await _prepare(ctx, connections, boxes, model, setting, options)
        houses = await _houses(ctx, found, blueprint, fetch=True)
        ctx.emit(DeployPlanned(plan=as_plan(blueprint, found, houses)))
        for part in blueprint.parts:
            house = houses.get(part.name)
            refuse(part, needed_bytes(part, house, found.model.manifest.bytes))
        memory = new_memory(store, blueprint, found)
        store.save(memory)
        store.note_brought(boxes)
        try:
            await bring(ctx, store, blueprint, found, houses, memory, options.take_over)
            deployment = await run_engine(ctx, store, blueprint, found, memory)
        except BaseException:
            await undo(store, blueprint)
            raise
        store.save(msgspec.structs.replace(memory, deployment=deployment))
    ctx.emit(DeploymentSeen(deployment=deployment))
    known, link = known_machines(ctx, boxes)
    about = About(
        model=model,
        fingerprint=next((box.fingerprint for box in deployment.boxes), None),
        boxes=known,
        link=link,
        settings=setting,
        loopback=deployment.loopback,
    )
    record_if_possible(ctx, "deployment", _summary(deployment), deployment, about=about)
    ctx.emit(StageEnded(stage=STAGE, sentence=_summary(deployment)))
    return deployment


async def status(ctx: Context, boxes: tuple[str, ...] = ()) -> Deployment | None:
    """The deployment as its boxes tell it now; None when there is none. Changes nothing.

    `boxes` are looked at whoever deployed there; without them it is this desk's own.
    """
    async with Connections(paths=ctx.paths, ask=ctx.ask) as connections:
        return await status_over(ctx, connections, boxes)


async def status_over(
    ctx: Context, connections: Connections, boxes: tuple[str, ...]
) -> Deployment | None:
    """`status` over connections that are used for more than that."""
    store = DeployStore(ctx.paths.deployments)
    memory = store.load()
    if memory is None or not set(boxes) <= {part.name for part in memory.boxes}:
        seen = await look_on(connections, boxes, store.desk_id()) if boxes else None
    else:
        seen = await _own_status(connections, store, memory)
    ctx.emit(DeploymentSeen(deployment=seen))
    return seen


async def _own_status(connections: Connections, store: DeployStore, memory: Memory) -> Deployment:
    router_box = memory.deployment.router_box
    boxes, (router, why, setting) = await asyncio.gather(
        together(box_state(connections, part, store.desk_id()) for part in memory.boxes),
        router_state(connections, memory, router_box, store.api_key()),
    )
    return msgspec.structs.replace(
        memory.deployment,
        boxes=tuple(boxes),
        router_state=router,
        router_why=why,
        setting=setting or memory.deployment.setting,
    )


async def down(ctx: Context) -> Deployment | None:
    """Stop every process of the deployment and forget its keys; weights and packages stay.

    Raises DeployError naming the boxes that could not be reached: the record then stays.
    """
    store = DeployStore(ctx.paths.deployments)
    async with (
        _changing(store, "stopping the engine"),
        Connections(paths=ctx.paths, ask=ctx.ask) as connections,
    ):
        memory = store.load()
        if memory is None:
            ctx.emit(StageEnded(stage=STAGE, sentence="Nothing is deployed from here."))
            return None
        names = [part.name for part in memory.boxes]
        ctx.emit(StageStarted(stage=STAGE, sentence=f"Stopping on {' and '.join(names)}."))
        await _stop_boxes(connections, store, memory, names)
        store.forget()
    ctx.emit(DeploymentSeen(deployment=None))
    ctx.emit(StageEnded(stage=STAGE, sentence="Stopped; nothing runs on the boxes."))
    return memory.deployment


async def remove(ctx: Context, box: str, *, take_over: bool = False) -> None:
    """Stop what runs on `box` and delete everything that was brought there."""
    store = DeployStore(ctx.paths.deployments)
    async with (
        _changing(store, f"removing homesplit from {box}"),
        Connections(paths=ctx.paths, ask=ctx.ask) as connections,
    ):
        there = await connections.connect(box)
        facts = await read_facts(there)
        owner = remote_root.read_owner(facts.owner)
        if owner and owner.desk != store.desk_id() and not take_over:
            raise remote_root.held_by_other(owner, box)
        if facts.present:
            ctx.emit(Progress(stage=STAGE, step="stop", box=box, sentence="stopping the engine"))
            with during("the engine there was ended"):
                await remote_process.stop(there, facts.root)
            ctx.emit(Progress(stage=STAGE, step="remove", box=box, sentence="deleting its folder"))
            with during("its folder was deleted"):
                await remote_root.remove_root(there)
        _forget_box(store, box)
        store.note_removed(box)
    sentence = f"Nothing of homesplit is left on {box}."
    ctx.emit(StageEnded(stage=STAGE, sentence=sentence))


async def fetch_only(ctx: Context, target: Target) -> Wheelhouse:
    """Fetch the packages that a box of this kind needs, for when there is no internet later."""
    bundle = await asyncio.to_thread(make_bundle)
    house = await _fetch(ctx, target, bundle.requirements)
    await wheelhouse.uv_for(ctx.paths.cache, target)
    return house


@asynccontextmanager
async def forward(ctx: Context, deployment: Deployment) -> AsyncGenerator[Api, None]:
    """The router's API on this machine's loopback, carried over SSH while the block lasts."""
    store = DeployStore(ctx.paths.deployments)
    async with Connections(paths=ctx.paths, ask=ctx.ask) as connections:
        box = await connections.connect(deployment.router_box)
        key = store.api_key() if deployment.held_by is None else await api_key_there(box)
        way = await box.forward("127.0.0.1", deployment.router_port)
        try:
            yield Api(f"http://127.0.0.1:{way.port}", key, box.is_closed)
        finally:
            await way.close()


async def switch(ctx: Context, setting: ModeSetting) -> ModeSwitch:
    """Tell the running router another mode; nothing is loaded or started anew."""
    store = DeployStore(ctx.paths.deployments)
    memory = store.load()
    if memory is None:
        raise DeployError("Nothing is deployed.", do_next="Start with: homesplit up")
    setting = complete(setting, [part.name for part in memory.boxes])
    async with forward(ctx, memory.deployment) as api:
        done = await set_mode(ctx, api.url, api.api_key, setting)
    deployment = msgspec.structs.replace(memory.deployment, setting=setting)
    store.save(msgspec.structs.replace(memory, deployment=deployment))
    return done


async def _prepare(
    ctx: Context,
    connections: Connections,
    boxes: tuple[str, ...],
    model: str,
    setting: ModeSetting,
    options: UpOptions | None,
) -> tuple[Survey, Blueprint]:
    setting = complete(setting, boxes)
    store = DeployStore(ctx.paths.deployments)
    options = options or UpOptions()
    folder = await asyncio.to_thread(resolve_model, ctx, model)
    found = await survey(ctx, connections, boxes, folder, options.port)
    for seen in found.boxes:
        if seen.owner and seen.owner.desk != store.desk_id() and not options.take_over:
            raise remote_root.held_by_other(seen.owner, seen.name)
    memory = store.load()
    keys = {name: k.public for name in ("router", *boxes) if (k := store.keys(name))}
    whole = len(keys) == len(boxes) + 1 and store.api_key() is not None
    blueprint = make_blueprint(
        found,
        setting,
        options,
        memory=memory,
        keys=keys if whole else None,
        link=probe_store.load_link(ctx.paths, *boxes) if len(boxes) == 2 else None,
        desk=store.desk_id(),
    )
    return found, blueprint


async def _houses(
    ctx: Context, found: Survey, blueprint: Blueprint, *, fetch: bool
) -> dict[str, Wheelhouse | None]:
    """By box, the wheels to push; None where the box fetches or has them itself."""
    houses: dict[str, Wheelhouse | None] = {}
    for part in blueprint.parts:
        if not part.needs_env or part.seen.internet:
            houses[part.name] = None
        elif fetch:
            houses[part.name] = await _fetch(ctx, part.seen.target, found.bundle.requirements)
        else:
            houses[part.name] = wheelhouse.find_wheelhouse(
                ctx.paths.cache, part.seen.target, found.bundle.requirements
            )
    return houses


async def _fetch(ctx: Context, target: Target, requirements: str) -> Wheelhouse:
    def tell(sentence: str) -> None:
        ctx.emit(Progress(stage=STAGE, step="packages", sentence=sentence))

    return await wheelhouse.make_wheelhouse(ctx.paths.cache, target, requirements, tell)


@asynccontextmanager
async def _changing(store: DeployStore, doing: str) -> AsyncGenerator[None, None]:
    """Hold this desk's record, so that no two commands change its boxes at once."""
    async with file_lock(store.lock, doing=doing, wait_s=_LOCK_WAIT_S):
        yield


async def _leave_others(
    ctx: Context, connections: Connections, store: DeployStore, boxes: tuple[str, ...]
) -> None:
    """Stop the remembered deployment on boxes that the new one does not use."""
    memory = store.load()
    if memory is None or {part.name for part in memory.boxes} == set(boxes):
        return
    names = [part.name for part in memory.boxes]
    sentence = f"Stopping the deployment on {' and '.join(names)} first."
    ctx.emit(Progress(stage=STAGE, step="stop", sentence=sentence))
    await _stop_boxes(connections, store, memory, names)
    store.forget()


async def _stop_boxes(
    connections: Connections, store: DeployStore, memory: Memory, names: list[str]
) -> None:
    outcomes = await asyncio.gather(
        *(_stop_box(connections, store, memory, name) for name in names), return_exceptions=True
    )
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures:
        if not isinstance(failure, HomesplitError):
            raise failure
    if failures:
        raise DeployError(
            f"Not everything is stopped: {'; '.join(str(f) for f in failures)}",
            do_next="Repeat the command once the box is reachable.",
        )


async def _stop_box(
    connections: Connections, store: DeployStore, memory: Memory, name: str
) -> None:
    """Stop our processes there; another desk's are left alone."""
    box = await connections.connect(name)
    part = memory.box(name)
    if part is None:
        return
    facts = await read_facts(box)
    owner = remote_root.read_owner(facts.owner)
    if owner and owner.desk != store.desk_id():
        return
    with during("the engine there was ended"):
        await remote_process.stop(box, part.root)
        await remote_process.clear_run(box, part.root)


def _forget_box(store: DeployStore, box: str) -> None:
    """Take a removed box out of the record."""
    memory = store.load()
    if memory is None or memory.box(box) is None:
        return
    left = tuple(part for part in memory.boxes if part.name != box)
    if not left:
        store.forget()
        return
    gone = tuple(
        msgspec.structs.replace(b, state="absent", why="removed") if b.box == box else b
        for b in memory.deployment.boxes
    )
    deployment = msgspec.structs.replace(memory.deployment, boxes=gone)
    store.save(msgspec.structs.replace(memory, deployment=deployment, boxes=left))


def _summary(deployment: Deployment) -> str:
    names = " and ".join(box.box for box in deployment.boxes)
    return f"{deployment.model} runs on {names} in mode {deployment.setting.mode}."
