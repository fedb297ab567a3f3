"""The steps of `up` that change boxes: bring the parts, start the engine, undo on failure."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime

import msgspec
from homesplit_engine.config import RouterConfig, WorkerAddress

from homesplit.core.deployment import DeployedBox, Deployment
from homesplit.core.events import Progress
from homesplit.errors import DeployError, HomesplitError, during
from homesplit.io import remote_env, remote_files, remote_process, remote_root, wheelhouse
from homesplit.io.deploy_client import read_setting, wait_healthy
from homesplit.io.deploy_store import BoxMemory, DeployStore, Memory, desk_name
from homesplit.io.remote_root import Owner
from homesplit.io.wheelhouse import Wheelhouse
from homesplit.stages.context import Context
from homesplit.stages.deploy_blueprint import Blueprint, BoxPart
from homesplit.stages.deploy_state import deployed_box
from homesplit.stages.deploy_survey import Survey, together
from homesplit.stages.serve import set_mode

STAGE = "deploy"
_TELL_EVERY_S = 0.3
_HEALTH_S = 60.0
_UNDO_S = 60.0
_HERE_EVERY_S = 3.0


def new_memory(store: DeployStore, blueprint: Blueprint, found: Survey) -> Memory:
    """The record of the deployment to be; fresh keys are made when they are needed."""
    old = store.load()
    if blueprint.fresh_keys or old is None:
        store.make_secrets(tuple(part.name for part in blueprint.parts))
        deployment_id = uuid.uuid4().hex[:12]
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
    else:
        deployment_id = old.deployment.id
        started_at = old.deployment.started_at
    boxes = tuple(_remembered(part) for part in blueprint.parts)
    deployment = Deployment(
        id=deployment_id,
        boxes=tuple(DeployedBox(box=b.name, address=b.address, state="starting") for b in boxes),
        router_box=blueprint.router_box,
        model=found.model.name,
        setting=blueprint.setting,
        router_port=blueprint.router_port,
        api_address=blueprint.api_address,
        api_key_file=str(store.api_key_file),
        loopback=blueprint.loopback,
        started_at=started_at,
    )
    return Memory(deployment=deployment, boxes=boxes)


def _remembered(part: BoxPart) -> BoxMemory:
    return BoxMemory(
        name=part.name,
        root=part.place.root,
        address=part.address,
        control_port=part.worker.control_port,
        kv_port=part.worker.kv_port,
        env=part.place.env,
        engine=part.place.engine,
        model=part.model,
        unit=part.place.unit,
    )


async def bring(
    ctx: Context,
    store: DeployStore,
    blueprint: Blueprint,
    found: Survey,
    houses: dict[str, Wheelhouse | None],
    memory: Memory,
    take_over: bool,
) -> None:
    """Put every missing part on its box; both boxes at once."""
    owner = Owner(
        desk=store.desk_id(),
        who=desk_name(),
        deployment=memory.deployment.id,
        since=memory.deployment.started_at or "",
    )
    # In the order of their names, so that two desks can't each hold one box of the other.
    for part in sorted(blueprint.parts, key=lambda p: p.name):
        with during("its folder was made"):
            await remote_root.claim(part.seen.box, owner, take_over=take_over)
    await together(_bring_box(ctx, part, found, houses.get(part.name)) for part in blueprint.parts)


async def run_engine(
    ctx: Context, store: DeployStore, blueprint: Blueprint, found: Survey, memory: Memory
) -> Deployment:
    """Start workers and router that do not run as they should; returns what runs then."""
    await together(_end_old(part) for part in blueprint.parts)
    starting = [part for part in blueprint.parts if part.needs_worker or part.needs_router]
    async with _looked_after(starting):
        with during("the worker was started there"):
            ready = await together(_run_worker(ctx, store, part) for part in blueprint.parts)
        router_part = next(part for part in blueprint.parts if part.router)
        with during("the router was started there"):
            await _run_router(ctx, store, router_part)
            await _confirm(ctx, store, router_part, blueprint)
            await together(remote_process.keep(p.seen.box, p.place.root) for p in starting)
    await together(_clear_superseded(ctx, part) for part in blueprint.parts)
    return msgspec.structs.replace(
        memory.deployment, boxes=tuple(ready), router_state="running", router_why=None
    )


@contextlib.asynccontextmanager
async def _looked_after(parts: Sequence[BoxPart]) -> AsyncGenerator[None, None]:
    """Tell each box again and again that we are here: what is started without us ends itself."""

    async def tell(part: BoxPart) -> None:
        while True:
            # A box that can't be told is what the guard there waits for; the start itself fails.
            with contextlib.suppress(HomesplitError):
                await remote_process.still_here(part.seen.box, part.place.root)
            await asyncio.sleep(_HERE_EVERY_S)

    tasks = [asyncio.create_task(tell(part), name=f"look after {part.name}") for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def undo(store: DeployStore, blueprint: Blueprint) -> None:
    """After a failure: end what was started; when nothing ran before, give the boxes back."""
    ran_before = any(part.seen.runs("worker") for part in blueprint.parts)
    clean = True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_UNDO_S):
            outcomes = await asyncio.gather(
                *(_undo_box(store, part) for part in blueprint.parts), return_exceptions=True
            )
            clean = not any(isinstance(outcome, BaseException) for outcome in outcomes)
    if clean and not ran_before:
        store.forget()


async def _undo_box(store: DeployStore, part: BoxPart) -> None:
    if not part.needs_worker:
        return
    owner = await remote_root.owner_of(part.seen.box, part.place.root)
    if owner is None or owner.desk != store.desk_id():
        return
    await remote_process.stop(part.seen.box, part.place.root)
    await remote_process.clear_run(part.seen.box, part.place.root)


async def _bring_box(ctx: Context, part: BoxPart, found: Survey, house: Wheelhouse | None) -> None:
    # Packages go first: while they are installed there, the link carries the model.
    uv = await _bring_packages(ctx, part, house)
    await together([_install(ctx, part, found, house, uv), _bring_model(ctx, part, found)])
    if part.needs_engine:
        _tell(ctx, part, "engine", "unpacking the engine")
        box, root = part.seen.box, part.place.root
        with during("the engine was unpacked there"):
            await remote_files.push_engine(box, root, part.place.python, found.bundle)


async def _bring_packages(ctx: Context, part: BoxPart, house: Wheelhouse | None) -> str | None:
    """Bring uv and the wheels; returns uv's path there, None when nothing is to be installed."""
    box, root = part.seen.box, part.place.root
    # An earlier command's installation may have ended well since this box was looked at.
    with during("packages were brought"):
        if await remote_env.settle(box, root, part.place.env) or not part.needs_env:
            return None
        program = await wheelhouse.uv_for(ctx.paths.cache, part.seen.target)
        _tell(ctx, part, "uv", "bringing uv")
        uv = await remote_env.ensure_uv(box, root, program, part.seen.facts.uvs)
        if house:
            seen = byte_counter(ctx, part.name, "packages", "packages")
            await remote_env.push_wheels(box, root, house, seen)
    return uv


async def _install(
    ctx: Context, part: BoxPart, found: Survey, house: Wheelhouse | None, uv: str | None
) -> None:
    if uv is None:
        return
    order = remote_env.EnvOrder(
        key=part.place.env,
        requirements=found.bundle.requirements,
        python=part.python,
        wheelhouse=house,
        torch_backend=part.seen.target.torch_backend,
    )
    _tell(ctx, part, "environment", "installing the engine's packages")

    def tell(sentence: str) -> None:
        _tell(ctx, part, "environment", sentence)

    with during("the engine's packages were installed there", kept=True):
        what = await remote_env.make_env(part.seen.box, part.place.root, uv, order, tell)
    _tell(ctx, part, "environment", f"installed: {what}")


async def _bring_model(ctx: Context, part: BoxPart, found: Survey) -> None:
    if not part.needs_model:
        return
    seen = byte_counter(ctx, part.name, "model", found.model.name)
    model = found.model
    with during("the model was brought", kept=True):
        await remote_files.push_model(
            part.seen.box, part.place.root, model.folder, model.manifest, seen
        )


async def _clear_superseded(ctx: Context, part: BoxPart) -> None:
    """Delete what an earlier version left there, once nothing runs from it any more."""
    if not part.superseded or not part.all_new:
        return
    _tell(ctx, part, "clear", "deleting what an earlier version left there")
    with during("what an earlier version left there was deleted"):
        await remote_files.clear_superseded(
            part.seen.box, part.place.root, env=part.place.env, engine=part.place.engine
        )


async def _end_old(part: BoxPart) -> None:
    """End processes that are to be replaced: their ports must be free for the new ones."""
    roles = part.to_end
    if roles:
        with during("the engine there was ended"):
            await remote_process.stop(part.seen.box, part.place.root, roles)


async def _run_worker(ctx: Context, store: DeployStore, part: BoxPart) -> DeployedBox:
    box, place = part.seen.box, part.place
    if part.needs_worker:
        keys = store.keys(part.name)
        if keys is None:
            raise DeployError("The desk's keys are gone.", do_next="Repeat the command.")
        await remote_process.write_launcher(box, place)
        await box.write(f"{place.run}/worker.keys", msgspec.json.encode(keys))
        await box.write(f"{place.run}/worker.json", msgspec.json.encode(part.worker))
        _tell(ctx, part, "start", "starting the worker (the model is loaded)")
        await remote_process.start(box, place, "worker")
        await remote_process.wait_ready(box, place, "worker")
        _tell(ctx, part, "start", "the worker is ready")
    process = (await remote_process.states(box, place.root))["worker"]
    return deployed_box(part.name, part.address, process)


async def _run_router(ctx: Context, store: DeployStore, part: BoxPart) -> None:
    if not part.needs_router:
        return
    box, place = part.seen.box, part.place
    keys, api_key = store.keys("router"), store.api_key()
    if keys is None or api_key is None or part.router is None:
        raise DeployError("The desk's keys are gone.", do_next="Repeat the command.")
    router = with_public_keys(part.router, store)
    await remote_process.write_launcher(box, place)
    await box.write(f"{place.run}/router.keys", msgspec.json.encode(keys))
    await box.write(f"{place.run}/api.key", f"{api_key}\n".encode())
    await box.write(f"{place.run}/router.json", msgspec.json.encode(router))
    _tell(ctx, part, "start", "starting the router")
    await remote_process.start(box, place, "router")
    await remote_process.wait_ready(box, place, "router")


def with_public_keys(router: RouterConfig, store: DeployStore) -> RouterConfig:
    """The router's settings with each worker's public key as the desk has it now."""

    def known(worker: WorkerAddress) -> WorkerAddress:
        keys = store.keys(worker.box)
        return msgspec.structs.replace(worker, public_key=keys.public if keys else "")

    return msgspec.structs.replace(router, workers=tuple(map(known, router.workers)))


async def _confirm(ctx: Context, store: DeployStore, part: BoxPart, blueprint: Blueprint) -> None:
    """See that the API answers through the forwarding, and that the mode is the wanted one."""
    way = await part.seen.box.forward("127.0.0.1", blueprint.router_port)
    url = f"http://127.0.0.1:{way.port}"
    try:
        await wait_healthy(url, store.api_key(), wait_s=_HEALTH_S)
        running = await read_setting(url, store.api_key())
        if running != blueprint.setting:
            await set_mode(ctx, url, store.api_key(), blueprint.setting)
    finally:
        await way.close()


def _tell(ctx: Context, part: BoxPart, step: str, sentence: str) -> None:
    ctx.emit(Progress(stage=STAGE, step=step, box=part.name, sentence=sentence))


def byte_counter(ctx: Context, box: str, step: str, what: str) -> Callable[[int, int], None]:
    """Tells bytes done of a total, with their rate and the time left, a few events a second."""
    began_s = time.monotonic()
    last_s = 0.0
    first: int | None = None

    def seen(done: int, total: int) -> None:
        nonlocal last_s, first
        now_s = time.monotonic()
        first = done if first is None else first
        if now_s - last_s < _TELL_EVERY_S and done < total:
            return
        last_s = now_s
        rate = (done - first) / max(now_s - began_s, 1e-6)
        left_s = (total - done) / rate if rate > 0 else None
        sentence = f"{what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB, {rate / 1e6:.0f} MB/s"
        ctx.emit(
            Progress(
                stage=STAGE,
                step=step,
                box=box,
                done=done,
                total=total,
                unit="bytes",
                sentence=sentence,
                left_s=left_s,
            )
        )

    return seen
