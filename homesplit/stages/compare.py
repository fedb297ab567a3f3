"""The same requests through each mode on the same boxes, in alternating order.

Each run's prompts are the planned ones under a salt of its own: same lengths, same times,
new words. Else the second mode would find the first one's prompts in the prefix cache, and so
would the next comparison: its salts are drawn anew. Text is compared over prompts of its own, the
very same in every mode, asked beside the measuring.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from homesplit_engine.records import KV_WIRES, MODES, KvWire, ModeSetting
from msgspec.structs import replace

from homesplit.core.bench_result import BenchResult, late_words
from homesplit.core.compare_result import (
    CompareResult,
    ModeRuns,
    background_notes,
    column_name,
    verdict,
)
from homesplit.core.divergence import lossy
from homesplit.core.events import CompareRun, CompareVerdict, Event, StageEnded, StageStarted
from homesplit.core.load import LoadPlan
from homesplit.core.predict_run import screen_figures
from homesplit.core.prng import FRESH_BITS, Prng
from homesplit.core.say import by_names
from homesplit.core.served import Background, background, gather
from homesplit.core.summary import RunSummary, summed
from homesplit.core.trade import headline, trade
from homesplit.core.window import Window
from homesplit.core.workload import Workload
from homesplit.errors import EngineError, UsageError
from homesplit.io.endpoint import base_url
from homesplit.stages.bench import counted_window, make_load, prepared, run_once
from homesplit.stages.beside import beside
from homesplit.stages.compare_entry import CompareEntry
from homesplit.stages.compare_texts import Texts, checked_settings, size_for, texts_agree
from homesplit.stages.context import Context
from homesplit.stages.load_watch import EventBox, Keep, watching
from homesplit.stages.notebook import known_machines
from homesplit.stages.plan import link_rate
from homesplit.stages.predicted import Outlooks, predict_modes
from homesplit.stages.recalibrate import take_back
from homesplit.stages.serve import set_mode
from homesplit.stages.target import Prepared, Target

STAGE = "compare"
SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What every column is asked."""

    workload: Workload
    load: LoadPlan
    seen: Window
    """What of each run counts."""
    price_per_kwh: float | None
    salt: int
    """What the words of all runs are drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One of the things compared: a mode of the boxes, or another server as it is."""

    server: Prepared
    setting: ModeSetting | None

    @property
    def name(self) -> str:
        """As its figures and its records are called."""
        return column_name(self.setting, self.server.endpoint.url)

    @property
    def words(self) -> str:
        """In words, for progress."""
        if self.setting is None:
            return f"the other server {self.server.endpoint.url}"
        return f"{self.setting.mode} ({self.setting.prefill} prefill)"


async def compare(
    ctx: Context,
    target: Target,
    modes: Sequence[str],
    workload: Workload,
    *,
    seconds: float = SECONDS,
    repeats: int = 2,
    seed: int = 1,
    plan: LoadPlan | None = None,
    also: Sequence[Target] = (),
    warm_up: float | None = None,
    drain: float | None = None,
    price_per_kwh: float | None = None,
) -> CompareResult:
    """Measure every mode (`colocated:whole`, `split`, …) and say which does better, if any.

    A `plan` is a replay, whose requests are offered in place of drawn ones. Each server in `also`
    is one more column: it gets the same requests in its turn. `warm_up` and `drain` in seconds
    override the rule. The mode in force before is set again at the end.
    Raises UsageError, EngineError.
    """
    load = plan or make_load(workload, seconds=seconds, seed=seed)
    seen = counted_window(load.seconds, warm_up, drain)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(prepared(target))
        before = _own_setting(server)
        settings = [parse_mode(text, before, _boxes(server)) for text in modes]
        _refuse_twice(settings, modes)
        others = [await stack.enter_async_context(prepared(other)) for other in also]
        outlooks = await _outlooks(ctx, server, settings, workload, load, seen)
        columns = [Column(server=server, setting=setting) for setting in settings]
        columns += [Column(server=other, setting=None) for other in others]
        salt = secrets.randbits(FRESH_BITS)
        kept = CompareEntry(
            ctx, repeats=repeats, runs=repeats * len(columns), seed=seed, salt=salt, replayed=plan
        )
        asked = Asked(
            workload=workload, load=load, seen=seen, price_per_kwh=price_per_kwh, salt=salt
        )
        with kept.open(server, workload, seen):
            try:
                pooled = await _all_runs(ctx, columns, asked, repeats, outlooks, kept)
                checked = checked_settings(settings)
                # Another server is not asked for text: how slow it is takes no time from this.
                measured = [mode.pooled.figures for mode in pooled if mode.setting is not None]
                size = size_for(measured, len(checked), longer=any(map(lossy, checked)))
                texts = await texts_agree(ctx, server, checked, seed, size)
            finally:
                await set_mode(ctx, target.url, target.api_key, before)
            result = await beside(_result, ctx, pooled, texts, repeats, seed)
            if server.status is not None:
                learnt = await beside(take_back, ctx, server.status, result)
                result = replace(result, learnt=learnt)
            return await beside(_keep, ctx, kept, result)


def _result(
    ctx: Context, modes: Sequence[ModeRuns], texts: Texts, repeats: int, seed: int
) -> CompareResult:
    first = modes[0].runs[0]
    loopback = first.loopback
    link = known_machines(ctx, first.boxes)[1]
    told, traded = verdict(modes, loopback), trade(modes, link_rate(link))
    return CompareResult(
        modes=tuple(modes),
        verdict=told,
        sentence=headline(told, traded),
        identical_text=texts.same,
        compared_prompts=texts.checked,
        divergences=texts.divergences,
        trade=traded.sentence if traded else None,
        repeats=repeats,
        seed=seed,
        loopback=loopback,
        notes=(*_notes(modes), *((texts.note,) if texts.note else ())),
    )


def _pooled(
    column: Column, runs: Sequence[BenchResult], load: LoadPlan, outlooks: Outlooks, index: int
) -> ModeRuns:
    own = column.setting is not None
    return ModeRuns(
        setting=column.setting,
        url=None if own else column.server.endpoint.url,
        runs=tuple(runs),
        pooled=_summary(runs, load),
        predicted=outlooks.each[index] if own else None,
        predicted_why=outlooks.why[index] if own else "nothing is known of another server's boxes",
    )


def parse_mode(text: str, now: ModeSetting, boxes: Sequence[str]) -> ModeSetting:
    """The setting that `mode[:whole|chunked][:same|fp16|int8]` means on these boxes.

    Raises UsageError. What a hand-off sends the KV as is, if not named, what is in force now.
    """
    name, *rest = text.strip().replace("-", ":").split(":")
    styles = [word for word in rest if word in ("whole", "chunked")]
    wires: list[KvWire] = [wire for wire in KV_WIRES if wire in rest]
    hands_over = name in ("split", "auto")
    kept: KvWire = now.kv_wire if hands_over else "same"
    known = name in MODES and len(styles) <= 1 and len(wires) <= int(hands_over)
    if not known or len(styles) + len(wires) < len(rest):
        raise UsageError(
            f"{text!r} is no mode.",
            do_next=f"Take {', '.join(MODES)}, each also as MODE:whole or MODE:chunked, split and "
            f"auto also as MODE:{' or MODE:'.join(KV_WIRES)}, which is how KV goes over the wire.",
        )
    if name != "colocated" and len(boxes) < 2:
        raise UsageError(
            f"mode {name} needs two boxes, and this deployment has {len(boxes)}.",
            do_next="Leave that mode out, or deploy to two boxes.",
        )
    decode = now.decode_box or boxes[0]
    prefill = now.prefill_box or next((box for box in boxes if box != decode), decode)
    return ModeSetting(
        mode=name,  # pyright: ignore[reportArgumentType]
        prefill="whole" if "whole" in styles else "chunked",
        chunk_tokens=now.chunk_tokens,
        kv_wire=wires[0] if wires else kept,
        prefill_box=prefill if name == "split" else None,
        decode_box=decode if name in ("split", "colocated") else None,
    )


def check_modes(modes: Sequence[str]) -> None:
    """Raises UsageError for modes that no two boxes could be compared in."""
    if not modes:
        raise UsageError("--modes names no mode.")
    told = [(text, parse_mode(text, ModeSetting(), ("one", "other"))) for text in modes]
    # What hand-offs send where no word says it is what they send then: known once it is asked.
    for open_wire in (True, False):
        alike = [
            (text, setting) for text, setting in told if _open_wire(text, setting) is open_wire
        ]
        _refuse_twice([setting for _, setting in alike], [text for text, _ in alike])


def _open_wire(text: str, setting: ModeSetting) -> bool:
    """Whether the words leave out what a hand-off sends."""
    words = text.strip().replace("-", ":").split(":")
    return setting.mode in ("split", "auto") and not set(words) & set(KV_WIRES)


def mode_words(setting: ModeSetting) -> str:
    """The words that mean this setting again."""
    hands_over = setting.mode in ("split", "auto")
    wire = (setting.kv_wire,) if hands_over else ()
    return ":".join((setting.mode, setting.prefill, *wire))


def _refuse_twice(settings: Sequence[ModeSetting], modes: Sequence[str]) -> None:
    """Two columns of one arrangement could not be told apart afterwards."""
    twice = [text for n, text in enumerate(modes) if settings[n] in settings[:n]]
    if twice:
        raise UsageError(
            f"mode {twice[0].strip()} is named twice.", do_next="Name each once; see --repeats."
        )


def _own_setting(server: Prepared) -> ModeSetting:
    if server.status is None:
        raise EngineError(
            "this server is no homesplit router: it has no modes to compare.",
            where=server.target.url,
            do_next="Measure it with `homesplit bench --url`.",
        )
    return server.status.setting


def _boxes(server: Prepared) -> list[str]:
    return [worker.box for worker in server.status.workers] if server.status else []


async def _outlooks(
    ctx: Context,
    server: Prepared,
    settings: Sequence[ModeSetting],
    workload: Workload,
    load: LoadPlan,
    seen: Window,
) -> Outlooks:
    """What the simulator expects of the very same requests, before the first is sent."""
    if server.status is None:
        return Outlooks(each=(None,) * len(settings), why=("the server told no boxes",))
    ctx.emit(StageStarted(stage=STAGE, sentence="Predicting what will be measured."))
    return await beside(predict_modes, ctx, server.status, settings, workload, load, seen)


async def _all_runs(
    ctx: Context,
    columns: Sequence[Column],
    asked: Asked,
    repeats: int,
    outlooks: Outlooks,
    kept: CompareEntry,
) -> list[ModeRuns]:
    """Every column once a round; odd rounds go backwards, so that drift favours nobody."""
    runs: list[list[BenchResult]] = [[] for _ in columns]
    modes: list[ModeRuns | None] = [None for _ in columns]
    salts = Prng(asked.salt)
    for turn in range(repeats):
        order = range(len(columns)) if turn % 2 == 0 else reversed(range(len(columns)))
        for index in order:
            told = f"Round {turn + 1} of {repeats}: {columns[index].words}."
            ctx.emit(StageStarted(stage=STAGE, sentence=told))
            salt = salts.fork(turn, index).bits()
            keep = kept.keep(columns[index].name, turn + 1)
            own = columns[0].server
            runs[index].append(await _column_run(ctx, columns[index], own, asked, salt, keep))
            # Intervals of many requests take seconds.
            made = modes[index] = await beside(
                _pooled, columns[index], runs[index], asked.load, outlooks, index
            )
            # Into the notebook before it is shown: nothing that was seen may be lost.
            await beside(kept.run_ended, [mode for mode in modes if mode is not None], made)
            ctx.emit(_told(columns[index], made))
    return [mode for mode in modes if mode is not None]


async def _column_run(
    ctx: Context, column: Column, own: Prepared, asked: Asked, salt: int, keep: Keep
) -> BenchResult:
    """One run of a column; the boxes of `own` are watched while another server has its turn."""
    server, seen = column.server, asked.seen
    if column.setting is not None:
        await set_mode(ctx, server.target.url, server.target.api_key, column.setting)
    async with _boxes_watched(ctx, column, own) as box:
        run = await run_once(
            ctx,
            server,
            asked.workload,
            asked.load,
            salt=salt,
            warm_up=seen.warm_up_s,
            drain=seen.drain_s,
            keep=keep,
        )
    meanwhile = await beside(_meanwhile, list(box.events)) if box else {}
    return replace(
        run, setting=column.setting, price_per_kwh=asked.price_per_kwh, meanwhile=meanwhile
    )


def _meanwhile(events: Sequence[Event]) -> dict[str, Background]:
    """What other programs took of the boxes."""
    return background(gather(events, "").statuses)


@contextlib.asynccontextmanager
async def _boxes_watched(
    ctx: Context, column: Column, own: Prepared
) -> AsyncGenerator[EventBox | None, None]:
    """What the boxes compared tell during the block; None in a run of theirs, which has it."""
    if column.setting is not None:
        yield None
        return
    async with watching(ctx, base_url(own.target.url), own.target.api_key) as box:
        yield box


def _told(column: Column, made: ModeRuns) -> CompareRun:
    """The column's figures so far, as an event."""
    setting = column.setting
    return CompareRun(
        mode=setting.mode if setting else "other",
        prefill=setting.prefill if setting else column.server.endpoint.url,
        figures=made.pooled.figures,
        predicted=screen_figures(made.predicted) if setting else None,
        repeats=len(made.runs),
    )


def _summary(runs: Sequence[BenchResult], load: LoadPlan) -> RunSummary:
    """One summary over all repeats, each counted in its own window."""
    first = runs[0]
    if len(runs) == 1:
        # What stands beside the figures of a run is told of all runs together.
        own = tuple(note for note in first.summary.notes if note not in first.beside)
        return replace(first.summary, notes=own)
    seen = first.summary.window
    return summed(
        [[log for log in run.logs if seen.counts(log.due_s)] for run in runs],
        seen,
        sum(run.summary.figures.window_s for run in runs),
        first.workload.targets,
        left_out=sum(run.summary.left_out for run in runs),
        notes=load.notes,
    )


def _notes(modes: Sequence[ModeRuns]) -> tuple[str, ...]:
    """What the figures can't say, each thing once."""
    notes = by_names((mode.name, note) for mode in modes for note in mode.pooled.notes)
    notes += _beside(modes)
    notes += background_notes(modes)
    return tuple(notes)


def _always(mode: ModeRuns, note: str) -> bool:
    return all(note in run.beside for run in mode.runs)


def _beside(modes: Sequence[ModeRuns]) -> list[str]:
    """What single runs told that their pooled figures don't: a server's ways, others' load.

    A late generator and other programs are told of all runs together.
    """
    runs = [(mode, turn, run) for mode in modes for turn, run in enumerate(mode.runs, 1)]
    told = [
        (mode.name if _always(mode, note) else f"{mode.name} round {turn}", note)
        for mode, turn, run in runs
        for note in run.beside
        if note not in run.gathered
    ]
    late = [run.lag_p99_s for _, _, run in runs if run.late and run.lag_p99_s is not None]
    return [*by_names(told), *([late_words(max(late))] if late else [])]


def _keep(ctx: Context, kept: CompareEntry, result: CompareResult) -> CompareResult:
    told = result.verdict
    entry = kept.ended(result, result.sentence)
    ctx.emit(
        CompareVerdict(
            mode=told.mode,
            sentence=told.sentence,
            identical_text=result.identical_text,
            divergences=tuple(each.sentence for each in result.divergences),
        )
    )
    ctx.emit(StageEnded(stage=STAGE, sentence=result.sentence))
    return replace(result, entry=entry)
