"""Whether all modes give the same text: the same prompts asked in each, beside the measuring.

On slow boxes fewer and shorter prompts are asked: the measured speed says how many fit into
the time that the check may take.
"""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSetting
from homesplit_engine.words import Figures
from msgspec import Struct
from msgspec.structs import replace

from homesplit.core.events import Progress, StageStarted
from homesplit.core.load import LoadPlan
from homesplit.core.workload import Arrivals, LengthClass, Workload
from homesplit.io.load import run_load
from homesplit.stages.bench import Prepared, make_load
from homesplit.stages.context import Context
from homesplit.stages.serve import set_mode

CHECKED_EACH = 3
"""Prompts asked with each mode going first."""
CHECK_S = 60.0
"""What the check may take; one short prompt for each mode is asked in any case."""


class Size(Struct, frozen=True, kw_only=True):
    """How much text is compared."""

    prompts_each: int = CHECKED_EACH
    output_tokens: int = 16
    short_tokens: int = 12
    long_tokens: int = 200

    @property
    def whole(self) -> bool:
        """Whether nothing was left out for want of speed."""
        return self == Size()


class Texts(Struct, frozen=True, kw_only=True):
    """The outcome: `same` None where no prompt was answered in every mode."""

    same: bool | None
    checked: int
    note: str | None = None


_SMALLER = Size(output_tokens=8, long_tokens=64)


def size_for(figures: Sequence[Figures], modes: int) -> Size:
    """As much as the slowest mode's measured median speed lets through in `CHECK_S`."""
    for size in (Size(), _SMALLER):
        each_s = max((_seconds(f, size.output_tokens) for f in figures), default=0.0)
        # Every mode goes first once, with prompts of its own that all modes are asked.
        fits = int(CHECK_S / (each_s * modes * modes)) if each_s > 0 else CHECKED_EACH
        if fits >= CHECKED_EACH:
            return size
    return replace(_SMALLER, prompts_each=max(1, fits))


def _seconds(figures: Figures, tokens: int) -> float:
    return (figures.ttft_s.p50 or 0.0) + (tokens - 1) * (figures.tpot_s.p50 or 0.0)


async def texts_agree(
    ctx: Context, server: Prepared, settings: Sequence[ModeSetting], seed: int, size: Size
) -> Texts:
    """Ask the same prompts in every mode; each mode goes first with prompts nobody has cached."""
    stage = "compare"
    ctx.emit(StageStarted(stage=stage, sentence="Comparing the text of all modes."))
    same, checked, asked = True, 0, 0
    total = len(settings) ** 2 * size.prompts_each
    for first in range(len(settings)):
        plan = _plan(seed, first, size)
        by_mode: list[dict[int, str]] = []
        for step in range(len(settings)):
            setting = settings[(first + step) % len(settings)]
            sentence = f"text: {asked} of {total} answers, now {setting.mode}"
            ctx.emit(Progress(stage=stage, step="text", done=asked, total=total, sentence=sentence))
            await set_mode(ctx, server.target.url, server.target.api_key, setting)
            run_id = f"hscheck{first}x{step}x{seed}"
            load = await run_load(
                server.session, server.endpoint, plan, run_id=run_id, salt=0xC4EC + first
            )
            asked += size.prompts_each
            by_mode.append({x.id: x.text for x in load.logs if x.outcome == "completed"})
        for key in set.intersection(*(set(texts) for texts in by_mode)):
            checked += 1
            same = same and len({texts[key] for texts in by_mode}) == 1
    note = None if size.whole else _why_less(size, checked)
    return Texts(same=same if checked else None, checked=checked, note=note)


def _why_less(size: Size, checked: int) -> str:
    return (
        f"the text was compared over {checked} prompts of at most {size.long_tokens} tokens with "
        f"{size.output_tokens} tokens of answer: at the speed measured more would take longer "
        f"than {CHECK_S:.0f} s"
    )


def _plan(seed: int, first: int, size: Size) -> LoadPlan:
    """A few short and long prompts, one at a time."""
    classes = tuple(
        LengthClass(
            name=name,
            share=1.0,
            prompt_tokens_low=tokens,
            prompt_tokens_high=tokens,
            output_tokens_low=size.output_tokens,
            output_tokens_high=size.output_tokens,
        )
        for name, tokens in (("short", size.short_tokens), ("long", size.long_tokens))
    )
    arrivals = Arrivals(kind="closed", users=1)
    workload = Workload(name="text check", classes=classes, arrivals=arrivals)
    plan = make_load(workload, seconds=600.0, seed=seed + 1000 * (first + 1))
    return replace(plan, requests=plan.requests[: size.prompts_each])
