"""The engine's prefill and decode rates beside the machine's limits and other engines.

    python -m tests.bench.engine [--weights same,int8] [--rounds N] [--core N] [--json]
        [--vllm PYTHON] [--llama-cpp PYTHON --gguf FILE[,FILE…]]

One pinned core, one thread each. In every round everybody has a turn, one behind the other; a
ratio is taken within a round, and the median of the rounds' ratios is told. Figures from two
runs are not to be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

PROMPTS = (128, 512, 2048)
BATCHES = (1, 4, 8)
Figures = dict[str, list[float]]
"""`prefill 512` or `decode 8` to tokens per second, one figure a round."""


def main() -> int:
    """Measure and print; returns the exit code."""
    args = _arguments()
    # Before torch is imported: its threads, and the peers, inherit the core.
    os.sched_setaffinity(0, {args.core})
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from homesplit_engine.heap import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()  # as a worker does
    results, loads = _measure(args)
    if args.json:
        print(json.dumps({"load_average": loads, "clock": args.clock, "rates": results}))
    else:
        print("\n".join(_table(args, results, loads)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path.home() / ".cache/homesplit/models/smollm2-135m"
    parser.add_argument("--model", type=Path, default=default, metavar="DIR")
    parser.add_argument("--weights", default="same,int8", help="of this engine, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--prompts", default=",".join(map(str, PROMPTS)))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument(
        "--products", action="store_true", help="also this engine's matrix products alone"
    )
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="with vllm installed")
    parser.add_argument("--llama-cpp", type=Path, metavar="PYTHON", help="with xllamacpp installed")
    parser.add_argument("--gguf", default="", help="the model for llama.cpp, comma-separated")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _subjects(args: argparse.Namespace, clock: Any) -> list[Any]:
    from homesplit_engine.model import load_model

    from tests.bench.subjects import OurProducts, Ours, Remote, Transformers

    found: list[Any] = []
    for weights in args.weights.split(","):
        loaded = load_model(args.model, device="cpu", dtype="float32", weights=weights)
        name = "homesplit " + ("fp32" if weights == "same" else weights)
        found.append(Ours(name, loaded, clock))
        if args.products:
            found.append(OurProducts(name.replace("homesplit", "its products"), loaded, clock))
    if not args.no_transformers:
        found.append(Transformers(args.model, clock))
    if args.vllm:
        found.append(Remote("vllm fp32", args.vllm, "vllm", args.model, args.clock))
    for file in [Path(name) for name in args.gguf.split(",") if name and args.llama_cpp]:
        name = f"llama.cpp {file.stem.rsplit('.', 1)[-1]}"
        found.append(Remote(name, args.llama_cpp, "llama.cpp", file, args.clock))
    return found


def _measure(args: argparse.Namespace) -> tuple[dict[str, Figures], list[float]]:
    from tests.bench.subjects import CLOCKS, Limits, Remote

    clock = CLOCKS[args.clock]
    subjects = _subjects(args, clock)
    limits = Limits(args.model, clock)
    results: dict[str, Figures] = {}
    loads: list[float] = []
    prompts = [int(text) for text in args.prompts.split(",") if text]
    batches = [int(text) for text in args.batches.split(",") if text]

    def note(name: str, what: str, rate: float) -> None:
        results.setdefault(name, {}).setdefault(what, []).append(rate)

    for number in range(args.rounds):
        loads.append(os.getloadavg()[0])
        # Who goes first changes from round to round: a machine that slows down favours nobody.
        turns = [("limit fp32", limits), *((subject.name, subject) for subject in subjects)]
        turns = turns if number % 2 == 0 else turns[::-1]
        for batch in batches:
            for name, subject in turns:
                note(name, f"decode {batch}", batch / subject.decode_s(batch))
        for tokens in prompts:
            for name, subject in turns:
                note(name, f"prefill {tokens}", tokens / subject.prefill_s(tokens))
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
    for subject in subjects:
        if isinstance(subject, Remote):
            subject.stop()
    return results, loads


def _table(args: argparse.Namespace, results: dict[str, Figures], loads: list[float]) -> list[str]:
    columns = list(next(iter(results.values())))
    lines = [
        f"tokens/s by {args.clock} time, one core; median of {args.rounds} alternating rounds "
        f"(load average {min(loads):.1f} to {max(loads):.1f})",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for name, figures in results.items():
        cells = [f"{statistics.median(figures[column]):.0f}" for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    ours = [name for name in results if name.startswith("homesplit")]
    lines += ["", "Ratios, median of each round's own (lowest to highest):", ""]
    lines += ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for mine in ours:
        for other in results:
            if other != mine:
                cells = [_ratio(results[mine][c], results[other][c]) for c in columns]
                lines.append(f"| {mine} / {other} | " + " | ".join(cells) + " |")
    return lines


def _ratio(mine: list[float], other: list[float]) -> str:
    ratios = [a / b for a, b in zip(mine, other, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main())
