"""A measured comparison as the plan remembers it: the measurement has the last word."""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSetting
from msgspec import Struct, structs

from homesplit.core.calibration import Weights
from homesplit.core.choose import Choice
from homesplit.core.compare_result import ModeRuns, Verdict, near_best
from homesplit.core.plan import MeasuredFigures
from homesplit.core.predict import Outlook
from homesplit.core.workload import Workload

SAME_LINK = 1.25
"""A link whose rate has changed by more is another one."""


class ComparedMode(Struct, frozen=True, kw_only=True):
    """What one mode was measured to do."""

    setting: ModeSetting
    figures: MeasuredFigures


class Compared(Struct, frozen=True, kw_only=True):
    """One comparison: whose, of what load, what came out."""

    at: str
    """UTC, ISO 8601."""
    boxes: tuple[str, ...]
    model: str
    workload: Workload
    modes: tuple[ComparedMode, ...]
    near: tuple[ModeSetting, ...]
    """The modes that nothing tells from the best one, simplest first; one is a winner."""
    sentence: str
    link_bytes_per_s: float | None = None
    """The link's payload rate as known then, None where it was not."""
    weights: Weights = "same"

    def answers(
        self,
        boxes: Sequence[str],
        model: str,
        workload: Workload,
        link_bytes_per_s: float | None,
        weights: Weights = "same",
    ) -> bool:
        """Whether this is what was measured: same boxes, model, load, targets and link."""
        mine, asked = self.workload, workload
        then, now = self.link_bytes_per_s, link_bytes_per_s
        if then and now and not 1 / SAME_LINK <= then / now <= SAME_LINK:
            return False
        return (
            set(self.boxes) == set(boxes)
            and plain(self.model) == plain(model)
            and self.weights == weights
            and _unnamed(mine) == _unnamed(asked)
        )

    def figures_of(self, setting: ModeSetting) -> MeasuredFigures | None:
        """What this arrangement was measured to do; None where it was not among them."""
        return next((m.figures for m in self.modes if same_way(m.setting, setting)), None)


def _unnamed(load: Workload) -> Workload:
    """What a load asks, without what it is called and where it is from."""
    return structs.replace(load, name="", description="", source="")


def plain(name: str) -> str:
    """A model's name as folders and profiles may both write it."""
    return "-".join(name.lower().replace("_", "-").split())


def same_way(one: ModeSetting, other: ModeSetting) -> bool:
    """Whether two settings are the same arrangement; the chunk's size is no other one."""
    if one.mode != other.mode or one.prefill != other.prefill:
        return False
    if one.mode == "split":
        ways = [(s.prefill_box, s.decode_box, s.kv_wire) for s in (one, other)]
        return ways[0] == ways[1]
    return one.mode != "colocated" or one.decode_box == other.decode_box


def compared(
    modes: Sequence[ModeRuns],
    told: Verdict,
    *,
    boxes: Sequence[str],
    model: str,
    at: str,
    link_bytes_per_s: float | None = None,
    weights: Weights = "same",
) -> Compared | None:
    """What to remember of a comparison; None where too little was served to tell anything."""
    own = [m for m in modes if m.setting is not None and m.pooled.no_data is None]
    near = tuple(m.setting for m in near_best(own) if m.setting is not None)
    if len(own) < 2 or not near:
        return None
    return Compared(
        at=at,
        boxes=tuple(boxes),
        model=model,
        workload=own[0].runs[0].workload,
        modes=tuple(ComparedMode(setting=m.setting, figures=_figures(m)) for m in own if m.setting),
        near=near,
        sentence=told.sentence,
        link_bytes_per_s=link_bytes_per_s,
        weights=weights,
    )


def _figures(mode: ModeRuns) -> MeasuredFigures:
    found = mode.pooled.figures
    return MeasuredFigures(
        offered=found.offered,
        ttft_p50_s=found.ttft_s.p50,
        ttft_p90_s=found.ttft_s.p90,
        tpot_p50_s=found.tpot_s.p50,
        tpot_p90_s=found.tpot_s.p90,
        attainment=found.attainment,
        goodput_requests_per_s=found.goodput_requests_per_s,
    )


def overruled(choice: Choice, outlooks: Sequence[Outlook], seen: Compared | None) -> Choice:
    """The choice after the measurement: it stays where it is among the best measured ones.

    An arrangement that was not measured can't be overruled, and one that can't be run now is
    not chosen.
    """
    if seen is None or seen.figures_of(choice.best.arrangement.setting) is None:
        return choice
    if any(same_way(setting, choice.best.arrangement.setting) for setting in seen.near):
        return choice
    for setting in seen.near:
        for made in outlooks:
            if same_way(setting, made.arrangement.setting):
                return Choice(best=made, runner_up=choice.best, tie=False)
    return choice


def measured_words(choice: Choice, before: Choice, seen: Compared | None) -> str | None:
    """The sentence about the measurement, None where there was none."""
    if seen is None or seen.figures_of(choice.best.arrangement.setting) is None:
        return None
    day = seen.at[:10]
    if choice.best is not before.best:
        mode = before.best.arrangement.words()
        return f"So it was measured on {day}, where the model alone had expected {mode} to be best."
    others = [s for s in seen.near if not same_way(s, choice.best.arrangement.setting)]
    if others:
        named = " and ".join(dict.fromkeys(f"{s.mode} ({s.prefill})" for s in others))
        return f"Measured on {day}, nothing told it from {named}."
    return f"So it was measured on {day} as well."
