"""Whether all modes give the same text: the same prompts asked in each, beside the measuring.

On slow boxes fewer and shorter prompts are asked: the measured speed says how many fit into
the time that the check may take. A mode whose hand-offs lose precision is no part of "the same
text": how far it strays is told by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from homesplit_engine.records import ModeSetting
from homesplit_engine.words import Figures
from msgspec import Struct
from msgspec.structs import replace

from homesplit.core.divergence import Divergence, divergence, lossy
from homesplit.core.events import Progress, StageStarted
from homesplit.core.load import LoadPlan
from homesplit.core.measured import RequestLog
from homesplit.core.say import counted
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
        return self in (Size(), _LONGER)


class Texts(Struct, frozen=True, kw_only=True):
    """The outcome: `same` None where no prompt was answered in every mode."""

    same: bool | None
    checked: int
    note: str | None = None
    divergences: tuple[Divergence, ...] = ()
    """One for each mode whose hand-offs lose precision."""


_LONGER = Size(output_tokens=48)
"""Where precision is lost, texts mostly part late."""
_SMALLER = Size(output_tokens=8, long_tokens=64)


def size_for(figures: Sequence[Figures], modes: int, *, longer: bool = False) -> Size:
    """As much as the slowest mode's measured median speed lets through in `CHECK_S`."""
    for size in (*((_LONGER,) if longer else ()), Size(), _SMALLER):
        if _fitting(figures, modes, size) >= CHECKED_EACH:
            return size
    return replace(_SMALLER, prompts_each=max(1, _fitting(figures, modes, _SMALLER)))


def _fitting(figures: Sequence[Figures], modes: int, size: Size) -> int:
    """Prompts for each mode that fit: each goes first once, with prompts that all are asked."""
    each_s = max((_seconds(f, size.output_tokens) for f in figures), default=0.0)
    return int(CHECK_S / (each_s * modes * modes)) if each_s > 0 else CHECKED_EACH


def _seconds(figures: Figures, tokens: int) -> float:
    return (figures.ttft_s.p50 or 0.0) + (tokens - 1) * (figures.tpot_s.p50 or 0.0)


def checked_settings(settings: Sequence[ModeSetting]) -> tuple[ModeSetting, ...]:
    """The modes to be asked: where all of them lose precision, also one of them without loss."""
    if all(map(lossy, settings)):
        return (*settings, replace(settings[0], kv_wire="same"))
    return tuple(settings)


async def texts_agree(
    ctx: Context, server: Prepared, settings: Sequence[ModeSetting], seed: int, size: Size
) -> Texts:
    """Ask the same prompts in every mode; each mode goes first with prompts nobody has cached."""
    stage = "compare"
    ctx.emit(StageStarted(stage=stage, sentence="Comparing the text of all modes."))
    answers: list[Answers] = []
    asked = 0
    total = len(settings) ** 2 * size.prompts_each
    for first in range(len(settings)):
        plan = _plan(seed, first, size)
        by_mode: Answers = [{} for _ in settings]
        for step in range(len(settings)):
            at = (first + step) % len(settings)
            setting = settings[at]
            sentence = f"text: {asked} of {total} answers, now {setting.mode}"
            ctx.emit(Progress(stage=stage, step="text", done=asked, total=total, sentence=sentence))
            await set_mode(ctx, server.target.url, server.target.api_key, setting)
            # As a person reads it in the records: a check of the texts, no request of the load.
            run_id = f"text{first}{step}"
            load = await run_load(
                server.session, server.endpoint, plan, run_id=run_id, salt=0xC4EC + first
            )
            asked += size.prompts_each
            by_mode[at] = {x.id: x for x in load.logs if x.outcome == "completed"}
        answers.append(by_mode)
    return told(settings, answers, size)


Answers = list[dict[int, RequestLog]]
"""What each mode answered, by prompt."""


def told(settings: Sequence[ModeSetting], answers: Sequence[Answers], size: Size) -> Texts:
    """What the answers say: `answers` holds one list of all modes for each set of prompts."""
    exact = [at for at, setting in enumerate(settings) if not lossy(setting)]
    whole = [
        [by_mode[at][key] for at in range(len(settings))]
        for by_mode in answers
        for key in sorted(set.intersection(*(set(each) for each in by_mode)))
    ]
    checked = len(whole)
    same = all(len({logs[at].text for at in exact}) == 1 for logs in whole)
    return Texts(
        same=same if checked else None,
        checked=checked,
        note=None if size.whole else _why_less(size, checked),
        divergences=tuple(
            divergence(setting, [(logs[at], logs[exact[0]].text) for logs in whole])
            for at, setting in enumerate(settings)
            if lossy(setting)
        ),
    )


def _why_less(size: Size, checked: int) -> str:
    prompts = counted(checked, "prompt")
    return (
        f"the text was compared over {prompts} of at most {size.long_tokens} tokens with "
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
