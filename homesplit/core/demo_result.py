"""What the one-machine demo runs, and what it found: figures by mode and whether texts agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homesplit_engine.records import KvWire, ModeSetting
from msgspec import Struct, structs

from homesplit.core.bench_result import BenchResult, figures_document
from homesplit.core.compare_result import as_asked_document, divergence_document
from homesplit.core.divergence import Divergence, divergence, lossy
from homesplit.core.entry import LOOPBACK_LABEL
from homesplit.core.say import counted
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload

BOXES = ("left", "right")
CHUNK_TOKENS = 64
LEAST_REQUESTS = 24
"""Every mode answers at least so many prompts, however short the demo."""
RATE_REQUESTS_PER_S = 1.6
HALF_CHARACTER = "\ufffd"
"""What decoding shows for bytes that are no whole character."""
WORKLOAD = Workload(
    name="demo",
    classes=(
        LengthClass(
            name="short",
            share=0.75,
            prompt_tokens_low=24,
            prompt_tokens_high=48,
            output_tokens_low=12,
            output_tokens_high=16,
        ),
        LengthClass(
            name="long",
            share=0.25,
            prompt_tokens_low=240,
            prompt_tokens_high=280,
            output_tokens_low=12,
            output_tokens_high=16,
        ),
    ),
    targets=Targets(ttft_s=2.0, tpot_s=0.2),
    description="A few short prompts with a long one among them now and then.",
    source="made for the demo: small enough for two cores",
)


class DemoMode(Struct, frozen=True, kw_only=True):
    """One mode's run, and how many of its answers differ from the reference."""

    setting: ModeSetting
    result: BenchResult
    different: tuple[str, ...]
    """Ids of the requests whose text is not the reference's."""
    divergence: Divergence | None = None
    """How far the texts stray where KV is sent with less precision, None where it is not."""


class DemoResult(Struct, frozen=True, kw_only=True):
    """All modes over the same requests on one machine."""

    modes: tuple[DemoMode, ...]
    compared_prompts: int
    kv_bytes_per_token: int
    """Of the model at the engine's KV dtype, from the model's shape alone."""
    kv_dtype: str
    exports: tuple[str, ...] = ()

    @property
    def identical_text(self) -> bool:
        """Whether every mode that loses no precision gave transformers' own greedy text."""
        return all(not mode.different for mode in self.modes if not lossy(mode.setting))


def demo_settings(kv_wire: KvWire = "same") -> tuple[ModeSetting, ...]:
    """The four arrangements, in the order in which the lesson tells them.

    With another `kv_wire` a fifth: a split that sends KV so.
    """
    left, right = BOXES
    split = ModeSetting(
        mode="split",
        prefill="chunked",
        chunk_tokens=CHUNK_TOKENS,
        prefill_box=left,
        decode_box=right,
    )
    four = (
        ModeSetting(mode="colocated", prefill="whole", decode_box=left),
        ModeSetting(
            mode="colocated", prefill="chunked", chunk_tokens=CHUNK_TOKENS, decode_box=left
        ),
        ModeSetting(mode="replica", prefill="chunked", chunk_tokens=CHUNK_TOKENS),
        split,
    )
    return four if kv_wire == "same" else (*four, structs.replace(split, kv_wire=kv_wire))


def demo_workload(seconds: float, modes: int) -> tuple[Workload, float]:
    """The load of one mode and how long it is offered, when all `modes` take about `seconds`.

    Requests come evenly, so that their number is known; a short demo offers them faster.
    """
    each_s = seconds / modes
    count = max(LEAST_REQUESTS, round(RATE_REQUESTS_PER_S * each_s))
    arrivals = Arrivals(kind="open", rate_requests_per_s=count / each_s, burstiness=0.0)
    return (
        Workload(
            name=WORKLOAD.name,
            classes=WORKLOAD.classes,
            arrivals=arrivals,
            targets=WORKLOAD.targets,
            description=WORKLOAD.description,
            source=WORKLOAD.source,
        ),
        each_s,
    )


def differing(texts: Mapping[int, str], result: BenchResult) -> tuple[str, ...]:
    """Ids of the requests whose text is missing or not the reference's."""
    given = {log.id: log for log in result.logs}
    return tuple(
        given[key].request_id if key in given else f"request {key} (not answered)"
        for key, text in texts.items()
        if key not in given or not same_text(given[key].text, text)
    )


def strayed(
    texts: Mapping[int, str], result: BenchResult, setting: ModeSetting
) -> Divergence | None:
    """How far a mode's texts stray from the reference's; None where it loses no precision."""
    if not lossy(setting):
        return None
    answered = [log for log in result.logs if log.id in texts and log.outcome == "completed"]
    pairs = [
        (log, log.text if same_text(log.text, texts[log.id]) else texts[log.id]) for log in answered
    ]
    return divergence(setting, pairs)


def same_text(given: str, reference: str) -> bool:
    """Whether a served text is the reference's, as far as whole characters go.

    Where the length limit cuts a character in two, decoding all tokens at once shows the half
    as U+FFFD, and a server that never gives out half a character leaves it away.
    """
    missing = reference.removeprefix(given)
    return given == reference or (reference.startswith(given) and not missing.strip(HALF_CHARACTER))


def demo_problems(result: DemoResult) -> tuple[str, ...]:
    """Everything that must make the demo fail, as sentences; empty when all is well."""
    problems: list[str] = []
    for mode in result.modes:
        name, figures = label(mode.setting), mode.result.summary.figures
        if mode.result.summary.no_data:
            problems.append(f"{name}: {mode.result.summary.no_data}.")
        lost = figures.failed + figures.rejected
        if lost:
            asked = counted(figures.offered, "request")
            problems.append(f"{name}: {lost} of {asked} not answered.")
        if mode.different and not lossy(mode.setting):
            problems.append(
                f"{name}: of {counted(result.compared_prompts, 'text')} "
                f"{len(mode.different)} not as transformers' own: {', '.join(mode.different[:5])}."
            )
        problems.extend(_handoff_problems(mode, result.kv_bytes_per_token))
    return tuple(problems)


def _handoff_problems(mode: DemoMode, kv_bytes_per_token: int) -> Sequence[str]:
    """Whether a split really handed over, and as many bytes as its tokens have."""
    side = mode.result.server
    if mode.setting.mode != "split":
        return ()
    if side is None or not side.handoffs:
        return (f"{label(mode.setting)}: no hand-off happened.",)
    if lossy(mode.setting):
        return ()
    expected = side.handoff_tokens * kv_bytes_per_token
    if side.handoff_bytes != expected:
        return (
            f"split: {side.handoff_bytes} bytes of KV went over the wire for "
            f"{side.handoff_tokens} tokens, {expected} were expected.",
        )
    return ()


def label(setting: ModeSetting) -> str:
    """A mode's name as people read it: colocated says how it prefills, a split how KV is sent."""
    if lossy(setting):
        return f"{setting.mode}-{setting.kv_wire}"
    return f"{setting.mode}-{setting.prefill}" if setting.mode == "colocated" else setting.mode


def divergences(result: DemoResult) -> tuple[Divergence, ...]:
    """How far the texts of each mode that loses precision stray."""
    return tuple(mode.divergence for mode in result.modes if mode.divergence is not None)


def demo_document(result: DemoResult) -> dict[str, Any]:
    """What `demo --headless --json` prints."""
    return {
        "label": LOOPBACK_LABEL,
        "modes": [_mode_document(mode) for mode in result.modes],
        "identical_text": result.identical_text,
        "compared_prompts": result.compared_prompts,
        "kv_bytes_per_token": result.kv_bytes_per_token,
        "kv_dtype": result.kv_dtype,
        "divergences": [divergence_document(found) for found in divergences(result)],
        "problems": list(demo_problems(result)),
        "exports": list(result.exports),
    }


def _mode_document(mode: DemoMode) -> dict[str, Any]:
    side = mode.result.server
    return {
        "mode": mode.setting.mode,
        "prefill": mode.setting.prefill,
        "kv_wire": mode.setting.kv_wire if mode.setting.mode == "split" else None,
        **figures_document(mode.result.summary),
        "handoffs": side.handoffs if side else None,
        "handoff_bytes": side.handoff_bytes if side else None,
        "handoff_tokens": side.handoff_tokens if side else None,
        "handoff_s": side.handoff_s if side else None,
        "handoff_exposed_s": side.handoff_exposed_s if side else None,
        **as_asked_document((side,) if side else ()),
        "different_texts": list(mode.different),
        "entry": mode.result.entry,
    }
