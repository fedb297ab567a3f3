"""What one arrangement is predicted to do with the very requests of a measured run."""

from __future__ import annotations

from homesplit_engine.records import ModeSetting
from homesplit_engine.words import Figures
from msgspec import Struct

from homesplit.core.load import LoadPlan
from homesplit.core.plan import Spread, StallFigures
from homesplit.core.predict import run_figures
from homesplit.core.scene import Arrangement, Scene
from homesplit.core.simulate import simulate
from homesplit.core.window import Window
from homesplit.core.workload import Workload


class Predicted(Struct, frozen=True, kw_only=True):
    """Figures as the simulator gives them; intervals are those of costs all low and all high."""

    ttft_s: Spread
    tpot_s: Spread
    stall_s: StallFigures
    attainment: float | None
    goodput_requests_per_s: float | None
    sources: tuple[str, ...]
    """Where each box's step times come from: a maker's figures, probes, or a calibration."""


def predict_run(
    scene: Scene, setting: ModeSetting, workload: Workload, load: LoadPlan, seen: Window
) -> Predicted:
    """The figures of `load` under `setting`, counted by the rule of the measured run.

    Raises KeyError naming a box or a pair of boxes that the scene doesn't hold.
    """
    arrangement = Arrangement(setting=setting, boxes=_boxes(scene, setting))
    if setting.mode == "split":
        # Asked here: the simulator would only meet the missing link at the first hand-off.
        _ = scene.wires[(setting.prefill_box or "", setting.decode_box or "")]
    mid = _figures(scene, arrangement, workload, load, seen)
    low, high = (
        _figures(_bound(scene, arrangement, slow=slow), arrangement, workload, load, seen)
        for slow in (False, True)
    )
    return Predicted(
        ttft_s=_spread(mid.ttft_s.p50, mid.ttft_s.p90, low.ttft_s.p50, high.ttft_s.p50),
        tpot_s=_spread(mid.tpot_s.p50, mid.tpot_s.p90, low.tpot_s.p50, high.tpot_s.p50),
        stall_s=StallFigures(
            p50=mid.stall_s.p50, p90=mid.stall_s.p90, low=low.stall_s.p90, high=high.stall_s.p90
        ),
        attainment=mid.attainment,
        goodput_requests_per_s=mid.goodput_requests_per_s,
        sources=tuple(f"{name}: {scene.box(name).cost.source}" for name in arrangement.boxes),
    )


def _boxes(scene: Scene, setting: ModeSetting) -> tuple[str, ...]:
    if setting.mode == "colocated":
        return (setting.decode_box or scene.boxes[0].name,)
    return tuple(box.name for box in scene.boxes)


def _bound(scene: Scene, arrangement: Arrangement, *, slow: bool) -> Scene:
    costs = [scene.box(name).cost for name in arrangement.boxes]
    if slow:
        return scene.scaled(max(c.prefill_high for c in costs), max(c.decode_high for c in costs))
    return scene.scaled(min(c.prefill_low for c in costs), min(c.decode_low for c in costs))


def _figures(
    scene: Scene, arrangement: Arrangement, workload: Workload, load: LoadPlan, seen: Window
) -> Figures:
    ttft_s = workload.targets.ttft_s
    result = simulate(
        scene, arrangement, load, until_s=load.seconds, ttft_target_s=ttft_s, gives_up=True
    )
    return run_figures(result, load, workload.targets, seen)


def _spread(p50: float | None, p90: float | None, low: float | None, high: float | None) -> Spread:
    return Spread(p50=p50, p90=p90, low=low, high=high)


def screen_figures(predicted: Predicted | None) -> dict[str, float | None] | None:
    """The figures flat, by the names that the Compare screen reads."""
    if predicted is None:
        return None
    return {
        "ttft_s": predicted.ttft_s.p50,
        "ttft_p90_s": predicted.ttft_s.p90,
        "tpot_s": predicted.tpot_s.p50,
        "stall_s": predicted.stall_s.p90,
        "attainment": predicted.attainment,
        "goodput_requests_per_s": predicted.goodput_requests_per_s,
    }
