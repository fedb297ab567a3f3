"""The road on one machine: two workers over loopback, every mode in turn, texts compared."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from homesplit_engine.records import KvWire, ModeSetting
from msgspec.structs import replace

from homesplit.core.demo_result import (
    BOXES,
    DemoMode,
    DemoResult,
    demo_document,
    demo_problems,
    demo_settings,
    demo_workload,
    differing,
    divergences,
    label,
    strayed,
)
from homesplit.core.divergence import lossy
from homesplit.core.entry import About
from homesplit.core.events import CompareRun, CompareVerdict, StageEnded, StageStarted
from homesplit.core.load import LoadPlan, OfferedRequest
from homesplit.core.prompts import messages
from homesplit.core.window import window
from homesplit.core.workload import Workload
from homesplit.io.endpoint import Endpoint
from homesplit.io.local_engine import LocalEngine, local_engine
from homesplit.io.model_files import shape_of_folder
from homesplit.io.reference import reference_texts
from homesplit.stages.bench import make_load, prepared, run_once
from homesplit.stages.beside import beside
from homesplit.stages.context import Context
from homesplit.stages.export import export_entries
from homesplit.stages.model import get_model, model_name
from homesplit.stages.notebook import record
from homesplit.stages.run_entry import RunEntry
from homesplit.stages.serve import set_mode
from homesplit.stages.target import Prepared, Target

STAGE = "demo"
MODEL = "smollm2-135m"
KV_DTYPE = "fp32"
"""The engine's KV dtype on a CPU, and the reference's."""
SEED = 1


@contextlib.asynccontextmanager
async def demo_engine(ctx: Context, model: str = MODEL) -> AsyncGenerator[LocalEngine, None]:
    """The demo's workers and router, with the model fetched first; ends them on leaving.

    The prefix cache is off: each mode must read every prompt itself.
    """
    folder = await get_model(ctx, model)
    ctx.emit(StageStarted(stage=STAGE, sentence="Starting two workers and a router here."))
    async with local_engine(
        model_dir=folder,
        model_name=model_name(folder),
        boxes=BOXES,
        setting=demo_settings()[0],
        prefix_cache=False,
    ) as engine:
        yield engine


async def run_demo(
    ctx: Context,
    *,
    seconds: float,
    out: Path | None = None,
    model: str = MODEL,
    kv_wire: KvWire = "same",
) -> DemoResult:
    """Offer the same load to every mode and compare all text with transformers' own.

    With `kv_wire` fp16 or int8 a split that sends KV so is one more mode. Writes the notebook's
    exports into `out`. Raises HomesplitError when a part can't run; what is merely wrong stands
    in `demo_problems` of the result.
    """
    folder = await get_model(ctx, model)
    settings = demo_settings(kv_wire)
    workload, each_s = demo_workload(seconds, len(settings))
    plan = make_load(workload, seconds=each_s, seed=SEED)
    async with demo_engine(ctx, model) as engine, prepared(Target(url=engine.url)) as server:
        texts = await _reference(ctx, folder, server.endpoint, plan)
        modes = [
            await _run_mode(ctx, engine, server, setting, workload, plan, texts)
            for setting in settings
        ]
    shape = shape_of_folder(folder)
    result = DemoResult(
        modes=tuple(modes),
        compared_prompts=len(texts),
        kv_bytes_per_token=shape.kv_bytes_per_token(KV_DTYPE),
        kv_dtype=KV_DTYPE,
    )
    return await _keep(ctx, result, model, out)


async def _reference(
    ctx: Context, folder: Path, endpoint: Endpoint, plan: LoadPlan
) -> dict[int, str]:
    """Transformers' own greedy text of every planned request, by request id."""
    ctx.emit(
        StageStarted(
            stage=STAGE,
            sentence=f"Asking transformers itself for the right text of {len(plan.requests)} "
            "prompts.",
        )
    )
    jobs = [_job(endpoint, request) for request in plan.requests]
    texts = await reference_texts(folder, jobs)
    return {request.id: text for request, text in zip(plan.requests, texts, strict=True)}


def _job(endpoint: Endpoint, request: OfferedRequest) -> dict[str, Any]:
    """The request as the reference takes it: the very words that the load sends."""
    said = messages(request, endpoint.fit)
    asked: dict[str, Any] = {"max_tokens": request.output_tokens, "ignore_eos": True}
    if endpoint.api == "chat":
        asked["messages"] = [{"role": role, "content": text} for role, text in said]
    else:
        asked["prompt"] = "\n".join(text for _, text in said)
    return asked


async def _run_mode(
    ctx: Context,
    engine: LocalEngine,
    server: Prepared,
    setting: ModeSetting,
    workload: Workload,
    plan: LoadPlan,
    texts: dict[int, str],
) -> DemoMode:
    """One mode under the load, its texts held against the reference."""
    told = f"Running {label(setting)} for {plan.seconds:.0f} s."
    ctx.emit(StageStarted(stage=STAGE, sentence=told))
    await set_mode(ctx, engine.url, None, setting)
    entry = RunEntry(ctx, server, workload, plan)
    with entry.open(window(plan.seconds, 0.0, 0.0)):
        made = await run_once(
            ctx, server, workload, plan, warm_up=0.0, drain=0.0, keep=entry.so_far
        )
        result = await beside(entry.ended, made)
    ctx.emit(
        CompareRun(
            mode=setting.mode, prefill=setting.prefill, figures=result.summary.figures, repeats=1
        )
    )
    return DemoMode(
        setting=setting,
        result=result,
        different=differing(texts, result),
        divergence=strayed(texts, result, setting),
    )


async def _keep(ctx: Context, result: DemoResult, model: str, out: Path | None) -> DemoResult:
    """Write the comparison's entry and the exports; the result with their paths."""
    problems = demo_problems(result)
    sentence = _sentence(result)
    ctx.emit(
        CompareVerdict(
            mode=None,
            sentence=sentence,
            identical_text=result.identical_text,
            divergences=tuple(found.sentence for found in divergences(result)),
        )
    )
    first = result.modes[0].result
    entry = record(
        ctx,
        "comparison",
        sentence,
        demo_document(result),
        about=About(
            seeds={"load": SEED},
            model=model,
            fingerprint=first.fingerprint,
            boxes=BOXES,
            settings={"workload": first.workload},
            loopback=True,
        ),
    )
    if out is not None:
        ids = [*(mode.result.entry for mode in result.modes if mode.result.entry), entry]
        written = await export_entries(ctx, ids, out)
        result = replace(result, exports=tuple(str(path) for path in written))
    told = "; ".join(problems) if problems else "Everything agreed."
    ctx.emit(StageEnded(stage=STAGE, sentence=told))
    return result


def _sentence(result: DemoResult) -> str:
    """The demo's outcome in one sentence."""
    count = result.compared_prompts
    exact = [mode for mode in result.modes if not lossy(mode.setting)]
    if result.identical_text:
        return (
            f"All {len(exact)} arrangements gave transformers' own greedy text for all "
            f"{count} prompts."
        )
    wrong = [label(mode.setting) for mode in exact if mode.different]
    return f"The text differed from transformers' own in {', '.join(wrong)}."
