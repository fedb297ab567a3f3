"""`homesplit bench` beside other load generators, each against one and the same server.

    python -m tests.bench.clients [--aiperf PATH] [--guidellm PATH] [--vllm PATH]
        [--requests N] [--rate R] [--json]

The server is the router over HTTP before two stub workers, which read prompts at a fixed rate
and write a token each 20 ms: what is the same every time can be compared. Each tool offers the
same number of completions of the same lengths at the same constant rate, one tool after the
other. A tool that isn't named or can't be run has its reason in place of figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.router import Running, start_all, until_usable

STEP_S = 0.02
PREFILL_TOKENS_PER_S = 2000.0
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
TTFT_S, TPOT_S = 0.3, 0.03
TOOL_S = 240.0
"""How long one tool may take, its start included."""
FIGURES = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tokens_per_s", "goodput_per_s")
Figures = dict[str, float | None]


def main() -> int:
    """Measure and print; returns the exit code."""
    args = _arguments()
    rows = asyncio.run(_measure(args))
    print(json.dumps(rows) if args.json else "\n".join(_table(args, rows)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for tool in ("aiperf", "guidellm", "vllm"):
        parser.add_argument(f"--{tool}", type=Path, help=f"the {tool} command")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rate", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A tokenizer's folder is enough for the others; they ask for a class by its name.
        server = await start_all(folder, STEP_S, PREFILL_TOKENS_PER_S)
        try:
            _name_the_tokenizer(folder)
            async with aiohttp.ClientSession() as http:
                await until_usable(http, server.url)
            for tool, run in TOOLS.items():
                rows[tool] = await asyncio.to_thread(_try, run, args, server, folder)
                print(json.dumps({tool: rows[tool]}), file=sys.stderr, flush=True)
        finally:
            _end(server)
    return rows | {"load": os.getloadavg()[0]}


def _name_the_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings))
    # Without one transformers takes the folder for a name in a hub.
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


def _end(server: Running) -> None:
    for process in server.processes:
        process.terminate()
    for process in server.processes:
        process.wait(timeout=10)


def _try(
    run: Callable[[argparse.Namespace, str, Path], Figures],
    args: argparse.Namespace,
    server: Running,
    folder: Path,
) -> Figures | str:
    try:
        return run(args, server.url, folder)
    except _NotRun as why:
        return str(why)
    except (KeyError, IndexError, OSError, ValueError) as error:
        return f"its result could not be read: {type(error).__name__}: {error}"


class _NotRun(Exception):
    """A tool gave no figures; the message says why."""


def _call(words: Sequence[str], folder: Path, *, offline: bool = True) -> str:
    env = os.environ | {"COLUMNS": "200"}
    if offline:
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=TOOL_S, env=env, cwd=folder
        )
    except subprocess.TimeoutExpired as error:
        raise _NotRun(f"not done within {TOOL_S:.0f} s") from error
    if done.returncode != 0:
        raise _NotRun(f"ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
    return done.stdout


# ------------------------------------------------------------------ the tools


def _homesplit(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    words = [sys.executable, "-m", "homesplit", "bench", "--url", url, "--api", "completions"]
    words += ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)]
    words += ["--rate", str(args.rate), "--seconds", str(args.requests / args.rate)]
    words += ["--burstiness", "0", "--warm-up", "0", "--seed", "1", "--no-notebook", "--json"]
    words += ["--ttft", str(TTFT_S), "--tpot", str(TPOT_S)]
    told = json.loads(_call(words, folder))
    return {
        "requests": told["completed"],
        "ttft_p50_s": told["ttft_s"]["p50"],
        "ttft_p99_s": told["ttft_s"]["p99"],
        "tpot_p50_s": told["tpot_s"]["p50"],
        "tokens_per_s": told.get("throughput_tokens_per_s"),
        "goodput_per_s": told["goodput_requests_per_s"],
    }


def _vllm(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    words = [*_tool(args.vllm), "bench", "serve", "--backend", "openai", "--base-url", url]
    words += ["--endpoint", "/v1/completions", "--model", "tiny", "--tokenizer", str(folder)]
    words += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
    words += ["--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(args.requests)]
    # Its burstiness is a gamma shape: a very large one is a constant rate.
    words += ["--request-rate", str(args.rate), "--burstiness", "1e6", "--ignore-eos"]
    words += ["--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99"]
    words += ["--goodput", f"ttft:{TTFT_S * 1e3:g}", f"tpot:{TPOT_S * 1e3:g}", "--disable-tqdm"]
    words += ["--save-result", "--result-dir", str(folder), "--result-filename", "vllm.json"]
    _call(words, folder)
    told = json.loads((folder / "vllm.json").read_text())
    return {
        "requests": told["completed"],
        "ttft_p50_s": told["median_ttft_ms"] / 1e3,
        "ttft_p99_s": told["p99_ttft_ms"] / 1e3,
        "tpot_p50_s": told["median_tpot_ms"] / 1e3,
        "tokens_per_s": told["output_throughput"],
        "goodput_per_s": told["request_goodput"],
    }


def _aiperf(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    out = folder / "aiperf"
    words = [*_tool(args.aiperf), "profile", "--model", "tiny", "--url", url, "--streaming"]
    words += ["--endpoint-type", "completions", "--tokenizer", str(folder)]
    words += ["--isl", str(PROMPT_TOKENS), "--isl-stddev", "0", "--osl", str(OUTPUT_TOKENS)]
    words += ["--osl-stddev", "0", "--request-rate", str(args.rate), "--arrival-pattern"]
    words += ["constant", "--request-count", str(args.requests), "--use-server-token-count"]
    words += ["--extra-inputs", "ignore_eos:true", "--random-seed", "1", "--ui", "none"]
    goodput = f"time_to_first_token:{TTFT_S * 1e3:g} inter_token_latency:{TPOT_S * 1e3:g}"
    words += ["--goodput", goodput, "--artifact-dir", str(out)]
    # Told to stay offline it takes a folder for a name in a hub's cache.
    _call(words, folder, offline=False)
    told = json.loads(next(out.rglob("profile_export_aiperf.json")).read_text())
    return {
        "requests": told["request_count"]["avg"],
        "ttft_p50_s": told["time_to_first_token"]["p50"] / 1e3,
        "ttft_p99_s": told["time_to_first_token"]["p99"] / 1e3,
        "tpot_p50_s": told["inter_token_latency"]["p50"] / 1e3,
        "tokens_per_s": told["output_token_throughput"]["avg"],
        "goodput_per_s": told["goodput"]["avg"],
    }


def _guidellm(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    path = folder / "guidellm.json"
    backend = f"kind=openai_http,target={url},model=tiny,request_format=/v1/completions"
    words = [*_tool(args.guidellm), "run", "--backend", backend]
    words += ["--profile", f"kind=constant,rate={args.rate:g}"]
    words += ["--constraint", f"kind=max_requests,count={args.requests}"]
    data = f"prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"
    words += ["--data", f"kind=synthetic_text,{data}"]
    words += ["--tokenizer", f"kind=hf_auto,model={folder}", "--disable-console"]
    words += ["--output", f"kind=json,path={path}"]
    _call(words, folder)
    told: Mapping[str, Any] = json.loads(path.read_text())["benchmarks"][0]["metrics"]
    ttft = told["time_to_first_token_ms"]["successful"]
    return {
        "requests": told["request_totals"]["successful"],
        "ttft_p50_s": ttft["median"] / 1e3,
        "ttft_p99_s": ttft["percentiles"]["p99"] / 1e3,
        # What it calls ITL is TPOT here; its own TPOT divides by all tokens, the first included.
        "tpot_p50_s": told["inter_token_latency_ms"]["successful"]["median"] / 1e3,
        "tokens_per_s": told["output_tokens_per_second"]["successful"]["mean"],
        "goodput_per_s": None,
    }


def _tool(path: Path | None) -> list[str]:
    if path is None:
        raise _NotRun("not asked for")
    if not path.exists():
        raise _NotRun(f"{path.name} is not installed there")
    return [str(path)]


TOOLS = {"homesplit bench": _homesplit, "vllm": _vllm, "aiperf": _aiperf, "guidellm": _guidellm}


def _table(args: argparse.Namespace, rows: Mapping[str, Any]) -> list[str]:
    """Each tool's figures, and homesplit's divided by them."""
    own = rows["homesplit bench"]
    lines = [
        f"{args.requests} completions at {args.rate:g} a second, {PROMPT_TOKENS} + "
        f"{OUTPUT_TOKENS} tokens; load average {rows['load']:.1f}",
        "",
        "| tool | requests | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | tokens/s | goodput/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for tool in TOOLS:
        row = rows[tool]
        if isinstance(row, str):
            lines.append(f"| {tool} | {row} | | | | | |")
            continue
        cells = [
            _cell(row[name], 1e3 if name.endswith("_s") and "_per_" not in name else 1.0)
            for name in FIGURES
        ]
        lines.append(f"| {tool} | {row['requests']:.0f} | {' | '.join(cells)} |")
        if row is not own and isinstance(own, dict):
            ratios = [_ratio(own[name], row[name]) for name in FIGURES]
            lines.append(f"| homesplit ÷ {tool} | | {' | '.join(ratios)} |")
    return lines


def _cell(value: float | None, scale: float) -> str:
    return "not told" if value is None else f"{value * scale:.2f}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return "" if not ours or not theirs else f"{ours / theirs:.3f}"


if __name__ == "__main__":
    sys.exit(main())
