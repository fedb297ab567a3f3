"""Times the running engine's own steps on each box and keeps the fit, which `plan` trusts most."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from homesplit_engine.records import ModeSetting, StepEvent
from homesplit_engine.status import RouterStatus, WorkerSeen
from msgspec import Struct
from msgspec.structs import replace

from homesplit.core.calibration import Calibration, CalibrationOf, fit_calibration
from homesplit.core.calibration_load import (
    Phase,
    first_look,
    handoffs,
    later_phases,
    longest_prompt,
    together,
    while_writing,
)
from homesplit.core.events import Progress, StageEnded, StageStarted
from homesplit.core.handoff_fit import HandoffFit
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.core.served import Timed, gather
from homesplit.core.together import slowed, together_words
from homesplit.core.workload import Arrivals, fixed_lengths
from homesplit.errors import EngineError, HomesplitError
from homesplit.io import calibration_store, probe_store
from homesplit.io.load import run_load
from homesplit.stages.bench import Prepared, Target, prepared
from homesplit.stages.context import Context
from homesplit.stages.load_watch import EventBox, watching
from homesplit.stages.predicted import scene_of, weights_of
from homesplit.stages.recalibrate import handoff_words, keep_handoffs
from homesplit.stages.serve import read_status, set_mode

STAGE = "calibrate"
SEED = 9001
HANDOFF_TOKENS = 512
"""The longest prompt that is handed over to time hand-offs."""
_ANY_LOAD = fixed_lengths(64, 2, name=STAGE, arrivals=Arrivals(kind="closed", users=1))
"""Says nothing but that prompts are short: only the boxes and their link are asked about."""


class Unfitted(Struct, frozen=True, kw_only=True):
    """A box without a fit, and why."""

    box: str
    why: str


class CalibrateResult(Struct, frozen=True, kw_only=True):
    """The fits that were made and kept, and the boxes that got none."""

    boxes: tuple[Calibration, ...]
    missing: tuple[Unfitted, ...] = ()
    handoffs: tuple[HandoffFit, ...] = ()
    """What hand-offs take beside their bytes, each way; empty for one box."""


async def calibrate(ctx: Context, target: Target, *, seed: int = SEED) -> CalibrateResult:
    """Offer the calibration load to each box alone, then hand over between them; keep the fits.

    The mode in force before is set again at the end. Raises EngineError where the server is
    no homesplit router.
    """
    async with prepared(target) as server:
        if server.status is None:
            raise EngineError("this server is no homesplit router.", where=target.url)
        before = await read_status(target.url, target.api_key)
        boxes: list[Calibration] = []
        missing: list[Unfitted] = []
        at_once: list[Timed] = []
        ctx.emit(StageStarted(stage=STAGE, sentence="Timing the engine's steps."))
        try:
            for worker in before.workers:
                at_once += await _at_once(ctx, server, before, seed)
                fit = await _one_box(ctx, server, before, worker, seed + 1000 * len(boxes))
                if isinstance(fit, Unfitted):
                    missing.append(fit)
                else:
                    boxes.append(_keep(ctx, fit))
            at_once += await _at_once(ctx, server, before, seed)
            boxes = _together(ctx, boxes, at_once)
            timed = await _handoffs(ctx, server, before, seed)
        finally:
            await set_mode(ctx, target.url, target.api_key, before.setting)
    told = "; ".join(
        [f"{fit.box}: {fit.steps} steps, median error {fit.error_p50:.1%}" for fit in boxes]
        + [f"{each.box}: none, {each.why}" for each in missing]
        + [handoff_words(each).removesuffix(".") for each in timed]
    )
    slow = together_words(boxes)
    ending = f". {slow}" if slow else "."
    ctx.emit(StageEnded(stage=STAGE, sentence=f"Calibrated: {told}{ending}"))
    return CalibrateResult(boxes=tuple(boxes), missing=tuple(missing), handoffs=timed)


async def _at_once(ctx: Context, server: Prepared, status: RouterStatus, seed: int) -> list[Timed]:
    """Both boxes at the same time for a moment; nothing where there are not two.

    Asked for before, between and after the boxes: what else the computer does may fill a moment.
    """
    if sum(worker.usable and worker.ready is not None for worker in status.workers) != 2:
        return []
    ctx.emit(Progress(stage=STAGE, step="together", sentence="Both boxes at once."))
    setting = ModeSetting(mode="replica", prefill="whole")
    return [await _timed(ctx, server, setting, together(seed + 13))]


def _together(ctx: Context, fits: list[Calibration], at_once: Sequence[Timed]) -> list[Calibration]:
    """The fits with how much longer a step takes while the other box computes too."""
    if len(fits) != 2:
        return fits
    found: list[Calibration] = []
    for fit, other in (fits, fits[::-1]):
        turns = [(_steps([one], fit.box), _steps([one], other.box)) for one in at_once]
        times = slowed(fit, turns)
        found.append(fit if times is None else _keep(ctx, replace(fit, together=times)))
    return found


async def _handoffs(
    ctx: Context, server: Prepared, status: RouterStatus, seed: int
) -> tuple[HandoffFit, ...]:
    """Time hand-offs each way between two usable boxes; none where the link was never measured."""
    names = [worker.box for worker in status.workers if worker.usable and worker.ready]
    if len(names) != 2:
        return ()
    try:
        scene = await asyncio.to_thread(scene_of, ctx, status, _ANY_LOAD)
    except HomesplitError as error:
        ctx.emit(Progress(stage=STAGE, step="hand-offs", sentence=error.sentence()))
        return ()
    longest = min(HANDOFF_TOKENS, *(w.ready.max_context // 2 for w in status.workers if w.ready))
    found: list[Timed] = []
    for sender, receiver in itertools.permutations(names, 2):
        setting = ModeSetting(
            mode="split", prefill="whole", prefill_box=sender, decode_box=receiver
        )
        sentence = f"Timing hand-offs from {sender} to {receiver}."
        ctx.emit(Progress(stage=STAGE, step="hand-offs", box=sender, sentence=sentence))
        for load in (handoffs, while_writing):
            found.append(await _timed(ctx, server, setting, load(seed + 7, longest=longest)))
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return keep_handoffs(ctx, scene, found, at)


async def _one_box(
    ctx: Context, server: Prepared, status: RouterStatus, worker: WorkerSeen, seed: int
) -> Calibration | Unfitted:
    ready = worker.ready
    if not worker.usable or ready is None:
        return Unfitted(box=worker.box, why=worker.why or "it has not told who it is")
    ctx.emit(StageStarted(stage=STAGE, sentence=f"Timing the engine's steps on {worker.box}."))
    found: list[Timed] = [await _run(ctx, server, worker.box, first_look(seed))]
    rate = _tokens_per_s(_steps(found, worker.box))
    if rate is None:
        return Unfitted(box=worker.box, why="its steps were not told")
    kv_tokens = ready.blocks_total * ready.block_tokens
    longest = longest_prompt(rate, max_context=ready.max_context, kv_tokens=kv_tokens)
    for phase in later_phases(seed, longest=longest):
        found.append(await _run(ctx, server, worker.box, phase))
    probed = probe_store.load_box(ctx.paths, worker.box)
    fit = fit_calibration(
        _steps(found, worker.box),
        records=[record for timed in found for record in timed.records],
        of=CalibrationOf(
            box=worker.box,
            host_key=probed.host_key if probed else None,
            model=status.model_name,
            fingerprint=ready.fingerprint,
            kv_bytes_per_token=ready.kv_bytes_per_token,
            kv_tokens=kv_tokens,
            weights=weights_of(status),
            seen_s={name: s for timed in found for name, s in timed.seen_s.items()},
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )
    return fit or Unfitted(box=worker.box, why="too few steps were told")


async def _run(ctx: Context, server: Prepared, box: str, phase: Phase) -> Timed:
    """Offer one phase to one box; what the router told meanwhile."""
    ctx.emit(Progress(stage=STAGE, step=phase.name, box=box, sentence=phase.name))
    setting = ModeSetting(
        mode="colocated", prefill=phase.prefill, chunk_tokens=phase.chunk_tokens, decode_box=box
    )
    return await _timed(ctx, server, setting, phase.plan)


async def _timed(ctx: Context, server: Prepared, setting: ModeSetting, plan: LoadPlan) -> Timed:
    """Offer a load in one mode; what the router told of its requests meanwhile."""
    target = server.target
    await set_mode(ctx, target.url, target.api_key, setting)
    run_id = f"hscal{secrets.token_hex(4)}"
    async with watching(ctx, server.endpoint.url, target.api_key) as events:
        load = await run_load(
            server.session,
            server.endpoint,
            plan,
            run_id=run_id,
            salt=secrets.randbelow(2**62) + 1,
        )
        return await _told(events, load.logs, run_id)


async def _told(events: EventBox, logs: Sequence[RequestLog], run_id: str) -> Timed:
    await events.wait_for({log.request_id for log in logs})
    timed = gather(events.events, run_id)
    prefix = f"{run_id}-"
    # Somebody else's request in a step would not hurt the fit, but the pauses between steps.
    own = tuple(
        step
        for step in timed.steps
        if all(name.startswith(prefix) for name in step.decode)
        and all(piece.request_id.startswith(prefix) for piece in step.prefill)
    )
    seen_s = {log.request_id: log.arrival_s[0] - log.sent_s for log in logs if log.arrival_s}
    return replace(timed, steps=own, seen_s=seen_s)


def _steps(found: Sequence[Timed], box: str) -> list[StepEvent]:
    return [step for timed in found for step in timed.steps if step.box == box]


def _tokens_per_s(steps: Sequence[StepEvent]) -> float | None:
    """How fast the longest of the first prompts was read."""
    reads = [(sum(p.tokens for p in s.prefill), s.end_s - s.start_s) for s in steps if s.prefill]
    tokens, took_s = max(reads, default=(0, 0.0))
    return tokens / took_s if took_s > 0 else None


def _keep(ctx: Context, fit: Calibration) -> Calibration:
    calibration_store.save(ctx.paths, fit)
    return fit
