"""What those who decode feel of long prompts that arrive back to back. Needs SmolLM2-135M.

    python -m tests.bench.interference [--model DIR] [--streams N] [--seconds S] [--turns N]
        [--cpus 0,1] [--prompt-tokens N] [--chunk-tokens N] [--modes split,colocated-whole,…]
        [--weights same|int8] [--parts] [--json]

Two real workers, each pinned to one core. `streams` answers are being written on the decode
box while prompts arrive, each when the one before has been read: in `split` the other box reads
them and hands their KV over, in `colocated-*` the same box does. A gap is between the ends of
two steps that gave a stream its tokens, by the worker's own clock; `quiet` is without prompts. In
`apart` the other box reads them and keeps their KV: what that does to a gap is not the split's
doing but that both share one machine's memory. `reads` is no box at all: one core reads as many
bytes as the model has weights, over and over, which is the least that a step does.
After one turn that does not count the modes take turns, each with new answers: they grow while
they are written, and with them every step. Each gap is also set beside the median of its own few
seconds, which leaves that growth out altogether. With `--parts` each step of the decode box tells
whose processor time it took (`step_parts.py`), and what is in the long ones is set beside the
usual ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from homesplit_engine.large_pages import LargePages
from homesplit_engine.wire.messages import Cancel, PrefillDone, StepReport

from tests.bench import step_parts
from tests.engine.client import Pair, WorkerProcess, submit

MODES = ("reads", "quiet", "apart", "split", "colocated-chunked", "colocated-whole")
STREAM_PROMPT_TOKENS = 32
BLOCKS = 640
"""Of 16 tokens, on each box."""
PROMPT_ANSWER_TOKENS = 2
"""One token from the box that reads, one from the box that writes."""
WAIT_S = 120.0
LONG = 1.2
"""A step that takes so many times the median of its turn is a long one."""
WINDOW_S = 5.0
"""A gap is set beside the median of all that end in the same stretch of this length."""


def main() -> int:
    """Measure and print; returns the exit code."""
    args = _arguments()
    cpus = [int(cpu) for cpu in args.cpus.split(",")]
    modes: list[str] = args.modes.split(",")
    bouts: dict[str, list[_Bout]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[step_parts.FOLDER] = folder
        cpus_of = {"A": (cpus[0],), "B": (cpus[1],)}
        # Enough blocks for the streams and two prompts; a prompt is never sent twice.
        both = Pair(
            Path(folder),
            args.model,
            cpus_of=cpus_of,
            run=("-m", "tests.bench.step_parts" if args.parts else "homesplit_engine"),
            kv_blocks=BLOCKS,
            block_tokens=16,
            weights=args.weights,
        )
        try:
            # A pool's memory is laid as it is first used, once for the life of a worker.
            _Run(both, "split", args).measure()
            for turn, mode in itertools.product(range(args.turns), modes):
                bouts[mode].append(
                    _reads(args, cpus[1]) if mode == "reads" else _Run(both, mode, args).measure()
                )
                told = {"turn": turn, **_figures(mode, bouts[mode][-1:])}
                print(json.dumps(told), file=sys.stderr, flush=True)
        finally:
            both.stop()
        parts = _parts(Path(folder) / "B.jsonl", bouts) if args.parts else []
    rows = [_figures(mode, bouts[mode]) for mode in modes]
    told = {"modes": rows, "parts": parts}
    lines = [*_table(args, rows), *_table_of_parts(parts)]
    print(json.dumps(told) if args.json else "\n".join(lines))
    return 0


def _arguments() -> argparse.Namespace:
    models = Path(platformdirs.user_cache_dir("homesplit")) / "models"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=models / "smollm2-135m")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12.0, help="of one turn of a mode")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cpus", default="0,1", help="a core for each box")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--chunk-tokens", type=int, default=128)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--weights", default="same", help="of both boxes: same or int8")
    parser.add_argument("--parts", action="store_true", help="whose time a step of B took")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bout:
    """One turn of a mode."""

    gaps: list[tuple[float, float]]
    """When a gap ended and how long it was, seconds."""
    prompts_sent: int
    prompts_read: int
    began_s: float
    ended_s: float


class _Run:
    """One turn of a mode: streams on the decode box, prompts on the box that the mode says."""

    _numbers = itertools.count()
    # One for all: a prompt that a box has read before would be in its cache.
    _random = random.Random(1)

    def __init__(self, both: Pair, mode: str, args: argparse.Namespace) -> None:
        self._pair = both
        self._mode = mode
        self._args = args
        self._chunk = None if mode.endswith("whole") else args.chunk_tokens
        self._streams: list[str] = []
        self._prompts: list[str] = []
        self._prompts_read = 0

    @property
    def _reader(self) -> WorkerProcess:
        return self._pair.a if self._mode in ("apart", "split") else self._pair.b

    def measure(self) -> _Bout:
        """The gaps of all streams while prompts are being read."""
        writer = self._pair.b
        for box in (self._pair.a, self._pair.b):
            box.heard.clear()
        for _ in range(self._args.streams):
            self._streams.append(self._stream())
        for name in self._streams:
            writer.wait(StepReport, lambda m, name=name: _gives(m, name), WAIT_S)
        began_s = time.monotonic()
        while time.monotonic() - began_s < self._args.seconds:
            if self._mode != "quiet" and len(self._prompts) == self._prompts_read:
                self._prompts.append(self._prompt())
            self._listen()
        return self._ended(began_s)

    def _stream(self) -> str:
        name = f"stream-{next(self._numbers)}"
        prompt = self._tokens(STREAM_PROMPT_TOKENS)
        self._pair.b.send(submit(name, prompt, chunk_tokens=None, **_endless(4000)))
        return name

    def _prompt(self) -> str:
        name = f"prompt-{next(self._numbers)}"
        prompt = self._tokens(self._args.prompt_tokens)
        answer = _endless(PROMPT_ANSWER_TOKENS)
        if self._mode == "split":
            self._pair.split(name, prompt, self._chunk, **answer)
        else:
            self._reader.send(
                submit(name, prompt, chunk_tokens=self._chunk, deadline_s=WAIT_S, **answer)
            )
        return name

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(100, 40_000) for _ in range(count)]

    def _listen(self) -> None:
        time.sleep(0.02)
        for box in {id(b): b for b in (self._pair.b, self._reader)}.values():
            box.drain()
        done = {one.request_id for one in _read_prompts(self._reader.heard)}
        self._prompts_read = sum(name in done for name in self._prompts)

    def _ended(self, began_s: float) -> _Bout:
        ended_s = time.monotonic()
        gaps = list(_gaps(self._pair.b.heard, self._streams, began_s))
        for box in (self._pair.a, self._pair.b):
            for name in (*self._streams, *self._prompts):
                box.send(Cancel(request_id=name))
            box.wait_until_free(WAIT_S)
        return _Bout(
            gaps=gaps,
            prompts_sent=len(self._prompts),
            prompts_read=self._prompts_read,
            began_s=began_s,
            ended_s=ended_s,
        )


def _reads(args: argparse.Namespace, cpu: int) -> _Bout:
    """How long each plain read of so many bytes takes as the model has."""
    count = sum(file.stat().st_size for file in args.model.glob("*.safetensors")) // 4
    weights = LargePages().empty((count,), np.float32)
    weights[:] = 1
    others = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        times_s = [time.monotonic()]
        while times_s[-1] - times_s[0] < args.seconds:
            weights.max()
            times_s.append(time.monotonic())
    finally:
        os.sched_setaffinity(0, others)
    gaps = [(end_s, end_s - before_s) for before_s, end_s in itertools.pairwise(times_s)]
    return _Bout(gaps=gaps, prompts_sent=0, prompts_read=0, began_s=times_s[0], ended_s=times_s[-1])


def _figures(mode: str, bouts: Sequence[_Bout]) -> dict[str, Any]:
    """What the turns of one mode say together."""
    gaps = sorted(gap_s for bout in bouts for _, gap_s in bout.gaps)
    if len(gaps) < 2:
        raise SystemExit(f"{mode}: too few tokens in its time to tell")
    cuts = statistics.quantiles(gaps, n=100, method="inclusive")
    return {
        "mode": mode,
        "prompts_sent": sum(bout.prompts_sent for bout in bouts),
        "prompts_read": sum(bout.prompts_read for bout in bouts),
        "gaps": len(gaps),
        "itl_s": {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": gaps[-1]},
        "p99_by_p50": cuts[98] / cuts[49],
        "p99_by_p50_of_its_seconds": _without_growth([gap for bout in bouts for gap in bout.gaps]),
        "load": os.getloadavg()[0],
    }


def _endless(tokens: int) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_eos": True}


def _gives(report: StepReport, name: str) -> bool:
    return any(token.request_id == name for token in report.tokens)


def _read_prompts(heard: Sequence[object]) -> Iterator[PrefillDone]:
    for message in heard:
        if isinstance(message, StepReport):
            yield from message.prefilled


def _gaps(
    heard: Sequence[object], streams: Sequence[str], began_s: float
) -> Iterator[tuple[float, float]]:
    """When a step ended that gave a stream a token, and seconds since the one before it."""
    last: dict[str, float] = {}
    for message in heard:
        if not isinstance(message, StepReport):
            continue
        end_s = message.event.end_s
        for token in message.tokens:
            if token.request_id in streams:
                before_s = last.get(token.request_id)
                if before_s is not None and before_s >= began_s:
                    yield end_s, end_s - before_s
                last[token.request_id] = end_s


def _without_growth(ended: Sequence[tuple[float, float]]) -> float:
    """The 99th percentile of each gap divided by the median of its own `WINDOW_S`."""
    windows: dict[int, list[float]] = {}
    for end_s, gap_s in ended:
        windows.setdefault(int(end_s / WINDOW_S), []).append(gap_s)
    shares = [gap_s / statistics.median(gaps) for gaps in windows.values() for gap_s in gaps]
    return statistics.quantiles(shares, n=100, method="inclusive")[98]


def _table(args: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"{args.streams} streams, prompts of {args.prompt_tokens} tokens back to back, chunks of "
        f"{args.chunk_tokens}; {args.turns} turns of {args.seconds:.0f} s each; cores {args.cpus}",
        "",
        "| mode | prompts sent | read | gaps | ITL p50 ms | p90 | p99 | longest | p99 ÷ p50 "
        "| p99 ÷ p50 of its 5 s | p99 ÷ p50 without prompts |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    undisturbed = [row["itl_s"]["p50"] for row in rows if row["mode"] == "quiet"]
    for row in rows:
        itl = " | ".join(f"{row['itl_s'][name] * 1e3:.1f}" for name in ("p50", "p90", "p99", "max"))
        beside = f"{row['itl_s']['p99'] / undisturbed[0]:.2f}" if undisturbed else "not measured"
        lines.append(
            f"| {row['mode']} | {row['prompts_sent']} | {row['prompts_read']} | {row['gaps']} "
            f"| {itl} | {row['p99_by_p50']:.2f} | {row['p99_by_p50_of_its_seconds']:.2f} "
            f"| {beside} |"
        )
    return lines


def _parts(told: Path, bouts: dict[str, list[_Bout]]) -> list[dict[str, Any]]:
    """By mode, of the usual and of the long steps: their mean length and threads, seconds."""
    steps = [json.loads(line) for line in told.read_text().splitlines()]
    found: list[dict[str, Any]] = []
    for mode, turns in bouts.items():
        if mode == "reads":
            continue
        kinds: dict[str, list[dict[str, Any]]] = {"usual": [], "long": []}
        for turn in turns:
            own = [s for s in steps if turn.began_s <= s["begin_s"] <= s["end_s"] <= turn.ended_s]
            middle_s = statistics.median(_wall_s(one) for one in own)
            for one in own:
                kinds["long" if _wall_s(one) > LONG * middle_s else "usual"].append(one)
        found.extend(_mean_parts(mode, kind, those) for kind, those in kinds.items() if those)
    return found


def _mean_parts(mode: str, kind: str, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = {name for one in steps for name in one["cpu_s"]}
    cpu_s = {name: statistics.fmean(one["cpu_s"].get(name, 0.0) for one in steps) for name in names}
    wall_s = statistics.fmean(map(_wall_s, steps))
    return {"mode": mode, "kind": kind, "steps": len(steps), "wall_s": wall_s, "cpu_s": cpu_s}


def _wall_s(step: dict[str, Any]) -> float:
    return step["end_s"] - step["begin_s"]


def _table_of_parts(parts: Sequence[dict[str, Any]]) -> list[str]:
    if not parts:
        return []
    lines = [
        "",
        "| mode | steps | how many | each ms | its own processor time | kv-receiver's | ZeroMQ's "
        "| control's | other threads' |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in parts:
        cpu_s = dict(row["cpu_s"])
        named = [cpu_s.pop(name, 0.0) for name in (step_parts.OWN, "kv-receiver")]
        named.append(sum(cpu_s.pop(name) for name in list(cpu_s) if name.startswith("ZMQ")))
        named.append(cpu_s.pop("control", 0.0))
        figures = (row["wall_s"], *named, sum(cpu_s.values()))
        told = " | ".join(f"{seconds * 1e3:.1f}" for seconds in figures)
        lines.append(f"| {row['mode']} | {row['kind']} | {row['steps']} | {told} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
