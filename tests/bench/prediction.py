"""Predicted beside measured on the local pair: calibrate, then the same load through each mode.

    python -m tests.bench.prediction [--seconds 30] [--rate 0.6] [--out FILE]

The simulator gets the very requests that are offered. Both halves of the machine share one
memory bus and whatever else runs; `loadavg` is told for that. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from homesplit_engine.records import ModeSetting
from homesplit_engine.words import Figures

from homesplit.core.candidates import Asked, build_scene
from homesplit.core.link import LinkProfile
from homesplit.core.load import LoadPlan, with_load
from homesplit.core.machine import BoxProfile
from homesplit.core.predict import run_figures
from homesplit.core.reading import stated
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.simulate import simulate
from homesplit.core.workload import Workload
from homesplit.io.local_engine import local_engine
from homesplit.io.paths import Paths, user_paths
from homesplit.io.profiles import load_model, load_workload
from homesplit.stages.bench import Target, make_load, prepared, run_once
from homesplit.stages.calibrate import CalibrateResult, calibrate
from homesplit.stages.context import AskNobody, Context
from homesplit.stages.serve import set_mode

BOXES = ("left", "right")
LOOPBACK_BYTES_PER_S = 400e6
MODEL = "smollm2-135m"
SETTINGS = (
    ModeSetting(mode="colocated", prefill="whole", decode_box="left"),
    ModeSetting(mode="colocated", prefill="chunked", chunk_tokens=64, decode_box="left"),
    ModeSetting(mode="replica", prefill="chunked", chunk_tokens=64),
    ModeSetting(mode="split", prefill="whole", prefill_box="left", decode_box="right"),
)


def scene_of(made: CalibrateResult, workload: Workload) -> Scene:
    """The pair as its calibration tells it, over loopback."""
    fits = made.boxes
    rate = stated(LOOPBACK_BYTES_PER_S, unit="bytes/s", source="loopback with encryption")
    boxes = tuple(
        BoxProfile(
            name=fit.box,
            source="calibrated",
            memory_bytes=stated(8e9, unit="bytes", source="enough"),
        )
        for fit in fits
    )
    asked = Asked(
        boxes=boxes,
        link=LinkProfile(a="left", b="right", source="typed", a_to_b=rate, b_to_a=rate),
        shape=load_model(MODEL, user_paths()).with_dtype("fp32"),
        workload=workload,
        targets=workload.targets,
        calibrations=fits,
        handoffs=made.handoffs,
    )
    return build_scene(asked)


def summary(made: Figures) -> dict[str, float | None]:
    """The figures that are held against each other."""
    return {
        "ttft_p50": made.ttft_s.p50,
        "ttft_p90": made.ttft_s.p90,
        "ttst_p50": made.ttst_s.p50,
        "tpot_p50": made.tpot_s.p50,
        "tpot_p90": made.tpot_s.p90,
        "attainment": made.attainment,
        "goodput": made.goodput_requests_per_s,
    }


def off(predicted: dict[str, float | None], measured: dict[str, float | None]) -> dict[str, Any]:
    """(predicted - measured) / measured; for attainment the difference."""
    found: dict[str, Any] = {}
    for name, value in measured.items():
        guess = predicted[name]
        if value is None or guess is None:
            found[name] = None
        elif name == "attainment":
            found[name] = round(guess - value, 3)
        else:
            found[name] = round((guess - value) / value, 3) if value else None
    return found


async def one_mode(
    ctx: Context, url: str, scene: Scene, workload: Workload, load: LoadPlan, setting: ModeSetting
) -> dict[str, Any]:
    """Measure a mode and simulate it."""
    await set_mode(ctx, url, None, setting)
    async with prepared(Target(url=url)) as server:
        run = await run_once(
            ctx, server, workload, load, salt=hash(setting.mode) or 1, warm_up=0.0, drain=0.0
        )
    boxes = (setting.decode_box or "left",) if setting.mode == "colocated" else BOXES
    arrangement, ttft_s = Arrangement(setting=setting, boxes=boxes), workload.targets.ttft_s
    result = simulate(
        scene, arrangement, load, until_s=load.seconds, ttft_target_s=ttft_s, gives_up=True
    )
    measured = summary(run.summary.figures)
    predicted = summary(run_figures(result, load, workload.targets))
    found: dict[str, Any] = {
        "mode": f"{setting.mode}:{setting.prefill}",
        "requests": len(load.requests),
        "measured": measured,
        "predicted": predicted,
        "off": off(predicted, measured),
        "loadavg": os.getloadavg()[0],
    }
    if run.server is not None and setting.mode == "split":
        exposed = [r.handoff_exposed_s for r in result.records if r.handoff_exposed_s is not None]
        found["handoff_exposed_p50"] = {
            "measured": run.server.handoff_exposed_s.p50,
            "predicted": statistics.median(exposed) if exposed else None,
        }
    return found


async def main(args: argparse.Namespace) -> dict[str, Any]:
    """Everything, as one document."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = Paths(config=root / "c", cache=user_paths().cache, data=root / "d")
        ctx = Context(emit=lambda _: None, ask=AskNobody(), paths=paths)
        workload = with_load(load_workload("demo", paths), rate_requests_per_s=args.rate)
        load = make_load(workload, seconds=args.seconds, seed=args.seed)
        model = paths.models / MODEL
        async with local_engine(model_dir=model, model_name=MODEL, boxes=BOXES) as engine:
            made = await calibrate(ctx, Target(url=engine.url))
            scene = scene_of(made, workload)
            modes = [
                await one_mode(ctx, engine.url, scene, workload, load, setting)
                for setting in SETTINGS
            ]
    fits = [
        {
            "box": fit.box,
            "steps": fit.steps,
            "error_p50": fit.error_p50,
            "error_p90": fit.error_p90,
            "prefill_256_s": fit.step_seconds([(0, 256)], 0, 0),
            "decode_1_s": fit.step_seconds([], 1, 128),
            "decode_8_s": fit.step_seconds([], 8, 1024),
            "gap_s": fit.gap_s,
            "router_s": fit.router_s,
        }
        for fit in made.boxes
    ]
    handoffs = [
        {"from": fit.sender, "commit_s": fit.commit_s, "spread_s": fit.spread_s}
        for fit in made.handoffs
    ]
    return {"calibration": fits, "handoffs": handoffs, "modes": modes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predicted beside measured on the local pair.")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=0.6)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parsed = parser.parse_args()
    document = json.dumps(asyncio.run(main(parsed)), indent=1)
    print(document)
    if parsed.out:
        parsed.out.write_text(document + "\n")
