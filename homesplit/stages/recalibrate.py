"""Takes a comparison back into what the plan goes by: steps, hand-offs, and the verdict itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from homesplit_engine.status import RouterStatus, WorkerSeen

from homesplit.core.calibration import Calibration
from homesplit.core.compare_result import CompareResult
from homesplit.core.compared import compared
from homesplit.core.events import Progress
from homesplit.core.handoff_fit import HandoffFit, HandoffsOf, fit_handoffs
from homesplit.core.recalibration import Recalibrated, recalibrated
from homesplit.core.scene import Scene
from homesplit.core.served import Timed
from homesplit.errors import HomesplitError
from homesplit.io import calibration_store, probe_store
from homesplit.stages.context import Context
from homesplit.stages.plan import link_rate
from homesplit.stages.predicted import scene_of, weights_of

STAGE = "compare"


def take_back(ctx: Context, status: RouterStatus, result: CompareResult) -> tuple[str, ...]:
    """Keep what was measured; what changed, in sentences. Never raises for lack of knowledge."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    runs = [run for mode in result.modes if mode.setting for run in mode.runs]
    timed = [run.timed for run in runs if run.timed is not None]
    _keep_verdict(ctx, status, result, at)
    if not timed:
        return ()
    try:
        scene = scene_of(ctx, status, runs[0].workload)
    except HomesplitError as error:
        return (f"Nothing was recalibrated: {error.sentence()}",)
    said = [made.words for made in _boxes(ctx, status, scene, timed, at)]
    said += [handoff_words(fit) for fit in keep_handoffs(ctx, scene, timed, at)]
    for sentence in said:
        ctx.emit(Progress(stage=STAGE, step="recalibrate", sentence=sentence))
    return tuple(said)


def _keep_verdict(ctx: Context, status: RouterStatus, result: CompareResult, at: str) -> None:
    names = [worker.box for worker in status.workers]
    link = probe_store.load_link(ctx.paths, *names) if len(names) == 2 else None
    seen = compared(
        result.modes,
        result.verdict,
        boxes=names,
        model=status.model_name,
        at=at,
        link_bytes_per_s=link_rate(link),
        weights=weights_of(status),
    )
    if seen is not None:
        calibration_store.save_compared(ctx.paths, seen)


def _boxes(
    ctx: Context, status: RouterStatus, scene: Scene, timed: Sequence[Timed], at: str
) -> list[Recalibrated]:
    found: list[Recalibrated] = []
    for worker in status.workers:
        prior = scene.box(worker.box).cost
        timed_so = prior.fit is not None and not prior.fit.refitted
        base = prior.fit if timed_so else _unfitted(ctx, status, worker)
        made = recalibrated(prior, base, timed, at=at) if base else None
        if made is not None:
            calibration_store.save(ctx.paths, made.fit)
            found.append(made)
    return found


def _unfitted(ctx: Context, status: RouterStatus, worker: WorkerSeen) -> Calibration | None:
    """A box that was never calibrated, by name; None where the worker has not told who it is."""
    ready = worker.ready
    if ready is None:
        return None
    probed = probe_store.load_box(ctx.paths, worker.box)
    return Calibration(
        box=worker.box,
        model=status.model_name,
        step_s=0.0,
        token_s=0.0,
        pair_s=0.0,
        sequence_s=0.0,
        context_s=0.0,
        steps=0,
        error_p50=0.0,
        error_p90=0.0,
        host_key=probed.host_key if probed else None,
        fingerprint=ready.fingerprint,
        kv_bytes_per_token=ready.kv_bytes_per_token,
        kv_tokens=ready.blocks_total * ready.block_tokens,
        weights=weights_of(status),
    )


def keep_handoffs(
    ctx: Context, scene: Scene, timed: Sequence[Timed], at: str
) -> tuple[HandoffFit, ...]:
    """Fit and keep what hand-offs took beside their bytes, for each way that saw enough of them."""
    found: list[HandoffFit] = []
    for (sender, receiver), wire in scene.wires.items():
        fit = fit_handoffs(
            [transfer for run in timed for transfer in run.transfers],
            [step for run in timed for step in run.steps],
            of=HandoffsOf(
                sender=sender,
                receiver=receiver,
                wire=wire,
                layers=scene.shape.layers,
                fit=scene.box(sender).cost.fit,
                receiver_fit=scene.box(receiver).cost.fit,
                sender_key=_key(ctx, sender),
                receiver_key=_key(ctx, receiver),
                at=at,
            ),
        )
        if fit is not None:
            calibration_store.save_handoff(ctx.paths, fit)
            found.append(fit)
    return tuple(found)


def handoff_words(fit: HandoffFit) -> str:
    """What a fit of hand-offs found, in one sentence."""
    slower = f" While it sends, {fit.sender} reads {fit.sending - 1:.0%} slower." * (
        fit.sending > 1.0
    )
    opening = (
        f" {fit.receiver}'s own steps lose {1e9 * fit.opening_byte_s:.1f} ns for each byte that "
        "comes."
        if fit.opening_byte_s
        else ""
    )
    return (
        f"A hand-off from {fit.sender} to {fit.receiver} takes {1000 * fit.commit_s:.1f} ms beside "
        f"its bytes (median of {fit.handoffs}, single ones {1000 * fit.spread_s:.1f} ms off)."
        f"{slower}{opening}"
    )


def _key(ctx: Context, name: str) -> str | None:
    probed = probe_store.load_box(ctx.paths, name)
    return probed.host_key if probed else None
