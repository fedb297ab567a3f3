"""Predicts a comparison's modes from what is known of the boxes that are about to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homesplit_engine.records import ModeSetting
from homesplit_engine.status import RouterStatus
from msgspec.structs import replace

from homesplit.core.calibration import Weights
from homesplit.core.candidates import Asked, build_scene
from homesplit.core.link import LinkProfile
from homesplit.core.load import LoadPlan
from homesplit.core.machine import BoxProfile
from homesplit.core.predict_run import Predicted, predict_run
from homesplit.core.scene import Scene
from homesplit.core.shape import ModelShape
from homesplit.core.window import Window
from homesplit.core.workload import Workload
from homesplit.errors import HomesplitError
from homesplit.io import calibration_store, probe_store, profiles
from homesplit.io.deploy_store import DeployStore
from homesplit.stages.context import Context
from homesplit.stages.plan import read_calibrations, read_handoffs


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlooks:
    """A prediction for each setting in order, or why there is none."""

    each: tuple[Predicted | None, ...]
    why: tuple[str | None, ...]


def predict_modes(
    ctx: Context,
    status: RouterStatus,
    settings: Sequence[ModeSetting],
    workload: Workload,
    load: LoadPlan,
    seen: Window,
) -> Outlooks:
    """What each setting is predicted to do with `load`, of which `seen` counts.

    Never raises for lack of knowledge.
    """
    try:
        scene = scene_of(ctx, status, workload)
    except HomesplitError as error:
        return Outlooks(each=(None,) * len(settings), why=(error.sentence(),) * len(settings))
    found = [_one(scene, setting, workload, load, seen) for setting in settings]
    return Outlooks(each=tuple(p for p, _ in found), why=tuple(why for _, why in found))


def _one(
    scene: Scene, setting: ModeSetting, workload: Workload, load: LoadPlan, seen: Window
) -> tuple[Predicted | None, str | None]:
    try:
        return predict_run(scene, setting, workload, load, seen), None
    except KeyError as error:
        pair = error.args[0]
        if isinstance(pair, tuple):
            a, b = pair
            return None, f"the link between {a} and {b} was never measured: homesplit probe {a} {b}"
        return None, f"{pair} is no box of this deployment"


def scene_of(ctx: Context, status: RouterStatus, workload: Workload) -> Scene:
    """A deployment as it is known here; raises HomesplitError naming what is not."""
    names = [worker.box for worker in status.workers]
    shape = _shape(ctx, status)
    boxes = tuple(_box(ctx, name, shape, weights_of(status)) for name in names)
    asked = Asked(
        boxes=boxes,
        link=_link(ctx, names, loopback=status.loopback),
        shape=shape,
        workload=workload,
        targets=workload.targets,
        weights=weights_of(status),
        calibrations=read_calibrations(ctx, boxes, shape),
        handoffs=read_handoffs(ctx, boxes),
    )
    return build_scene(asked)


def _shape(ctx: Context, status: RouterStatus) -> ModelShape:
    """By the name that is served; else by what the deployment was asked to load."""
    try:
        return profiles.load_model(status.model_name, ctx.paths)
    except HomesplitError:
        memory = DeployStore(ctx.paths.deployments).load()
        if memory is None:
            raise
        return profiles.load_model(memory.deployment.model, ctx.paths)


def weights_of(status: RouterStatus) -> Weights:
    """What the workers made of the linear layers."""
    told = (w.ready.fingerprint_fields.get("weights_as") for w in status.workers if w.ready)
    return "int8" if "int8" in told else "same"


def _box(ctx: Context, name: str, shape: ModelShape, weights: Weights) -> BoxProfile:
    """The probed box, with its steps timed or not; a timed one alone is enough."""
    probed = probe_store.load_box(ctx.paths, name)
    if probed is not None:
        return probed
    sizes = {shape.kv_bytes_per_token(dtype) for dtype in ("fp16", "fp32")}
    fit = calibration_store.load(ctx.paths, name, None, shape.name, sizes, weights)
    if fit is not None:
        # Its figures come from the calibration; what is left to say is how it keeps the KV.
        wide = fit.kv_bytes_per_token == shape.kv_bytes_per_token("fp32")
        return BoxProfile(name=name, source="probe", device="cpu" if wide else "cuda")
    raise HomesplitError(
        f"{name} was neither probed nor calibrated.",
        do_next=f"Run `homesplit probe {name}`, or `homesplit calibrate` while it serves.",
    )


def _link(ctx: Context, names: Sequence[str], *, loopback: bool) -> LinkProfile | None:
    """The measured link; for one machine's own workers the profile of its loopback."""
    if len(names) < 2:
        return None
    first, second = names[0], names[1]
    found = probe_store.load_link(ctx.paths, first, second)
    if found is None and loopback:
        found = profiles.load_link("loopback", first, second, ctx.paths)
        return replace(found, a=first, b=second)
    return found
