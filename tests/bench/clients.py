"""`homesplit bench` beside other load generators, each against one and the same server.

    python -m tests.bench.clients [--aiperf PATH] [--guidellm PATH] [--vllm PATH]
        [--requests N] [--rate R] [--rounds N] [--json]

The server (`tests.bench.spread`) gives the n-th request of each client the same latencies, spread
evenly between two ends, and notes what it really did. Each tool offers the same number of
completions of the same lengths at the same constant rate, one after the other, in rounds whose
order is reversed every time; figures and ratios are medians over the rounds. A tool that isn't
named or can't be run has its reason in place of figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from homesplit_engine.words import percentile

from tests.bench.spread import TOKENS
from tests.engine.router_kit import make_tokenizer

PROMPT_TOKENS = 128
TTFT_S, TPOT_S = 0.4, 0.025
"""Targets in the middle of what the server does, so that goodput is a part of the rate."""
TOOL_S = 420.0
"""How long one tool may take, its start included."""
FIGURES = (
    "ttft_p50_s",
    "ttft_p99_s",
    "tpot_p50_s",
    "tpot_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "tokens_per_s",
    "goodput_per_s",
)
Figures = dict[str, float | None]


def main() -> int:
    """Measure and print; returns the exit code."""
    args = _arguments()
    rounds = _measure(args)
    load = os.getloadavg()[0]
    told = {"rounds": rounds, "load": load}
    print(json.dumps(told) if args.json else "\n".join(_table(args, rounds, load)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for tool in ("aiperf", "guidellm", "vllm"):
        parser.add_argument(f"--{tool}", type=Path, help=f"the {tool} command")
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(name="tiny", model=None)
    return parser.parse_args()


Round = dict[str, Any]
"""By tool: its figures and the server's own of the same requests, or why there are none."""


def _measure(args: argparse.Namespace) -> list[Round]:
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as name, _server() as url:
        folder = Path(name)
        # A tokenizer's folder is enough for the others; they ask for a class by its name.
        make_tokenizer(folder)
        _name_the_tokenizer(folder)
        for turn in range(args.rounds):
            order = list(TOOLS) if turn % 2 == 0 else list(reversed(TOOLS))
            found: Round = {}
            for tool in order:
                _ask(url + "/begin", b"")
                found[tool] = try_tool(TOOLS[tool], args, url, folder)
                if isinstance(found[tool], dict):
                    found[tool + " truth"] = _truth(json.loads(_ask(url + "/truth")))
                print(json.dumps({tool: found[tool]}), file=sys.stderr, flush=True)
            rounds.append(found)
    return rounds


@contextmanager
def _server() -> Generator[str]:
    """The server as a process of its own; its address."""
    command = [sys.executable, "-m", "tests.bench.spread"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def _ask(url: str, data: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=30) as reply:
        return reply.read()


def _truth(seen: Sequence[tuple[float, list[float]]]) -> Figures:
    """The same figures from what the server itself noted: receipt to writing."""
    firsts = sorted(written[0] - received for received, written in seen)
    each = sorted((written[-1] - written[0]) / (TOKENS - 1) for _, written in seen)
    gaps = sorted(b - a for _, written in seen for a, b in pairwise(written))
    span_s = max(written[-1] for _, written in seen) - min(received for received, _ in seen)
    good = sum(
        written[0] - received <= TTFT_S and (written[-1] - written[0]) / (TOKENS - 1) <= TPOT_S
        for received, written in seen
    )
    return {
        "requests": len(seen),
        "ttft_p50_s": percentile(firsts, 0.5),
        "ttft_p99_s": percentile(firsts, 0.99),
        "tpot_p50_s": percentile(each, 0.5),
        "tpot_p99_s": percentile(each, 0.99),
        "itl_p50_s": percentile(gaps, 0.5),
        "itl_p99_s": percentile(gaps, 0.99),
        "tokens_per_s": len(seen) * TOKENS / span_s,
        "goodput_per_s": good / span_s,
    }


def _name_the_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings))
    # Without one transformers takes the folder for a name in a hub.
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


def try_tool(
    run: Callable[[argparse.Namespace, str, Path], Figures],
    args: argparse.Namespace,
    url: str,
    folder: Path,
) -> Figures | str:
    try:
        return run(args, url, folder)
    except _NotRun as why:
        return str(why)
    except (KeyError, IndexError, OSError, ValueError, StopIteration) as error:
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


def homesplit_figures(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    words = [sys.executable, "-m", "homesplit", "bench", "--url", url, "--api", "completions"]
    words += ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(TOKENS)]
    words += ["--rate", str(args.rate), "--seconds", str(args.requests / args.rate)]
    words += [
        "--burstiness",
        "0",
        "--warm-up",
        "0",
        "--drain",
        "0",
        "--seed",
        "1",
        "--no-notebook",
        "--json",
    ]
    words += ["--ttft", str(TTFT_S), "--tpot", str(TPOT_S)]
    told = json.loads(_call(words, folder))
    return {
        "requests": told["completed"],
        "ttft_p50_s": told["ttft_s"]["p50"],
        "ttft_p99_s": told["ttft_s"]["p99"],
        "tpot_p50_s": told["tpot_s"]["p50"],
        "tpot_p99_s": told["tpot_s"]["p99"],
        "itl_p50_s": told["itl_s"]["p50"],
        "itl_p99_s": told["itl_s"]["p99"],
        "tokens_per_s": told.get("throughput_tokens_per_s"),
        "goodput_per_s": told["goodput_requests_per_s"],
    }


def vllm_figures(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    words = [*_tool(args.vllm), "bench", "serve", "--backend", "openai", "--base-url", url]
    words += [
        "--endpoint",
        "/v1/completions",
        "--model",
        args.name,
        "--tokenizer",
        _tokenizer(args, folder),
    ]
    words += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
    words += ["--random-output-len", str(TOKENS), "--num-prompts", str(args.requests)]
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
        "tpot_p99_s": told["p99_tpot_ms"] / 1e3,
        "itl_p50_s": told["median_itl_ms"] / 1e3,
        "itl_p99_s": told["p99_itl_ms"] / 1e3,
        "tokens_per_s": told["output_throughput"],
        "goodput_per_s": told["request_goodput"],
    }


def aiperf_figures(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    out = folder / "aiperf"
    words = [*_tool(args.aiperf), "profile", "--model", args.name, "--url", url, "--streaming"]
    words += ["--endpoint-type", "completions", "--tokenizer", _tokenizer(args, folder)]
    words += ["--isl", str(PROMPT_TOKENS), "--isl-stddev", "0", "--osl", str(TOKENS)]
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
        "tpot_p99_s": told["inter_token_latency"]["p99"] / 1e3,
        "tokens_per_s": told["output_token_throughput"]["avg"],
        "goodput_per_s": told["goodput"]["avg"],
    }


def guidellm_figures(args: argparse.Namespace, url: str, folder: Path) -> Figures:
    path = folder / "guidellm.json"
    backend = f"kind=openai_http,target={url},model={args.name},request_format=/v1/completions"
    words = [*_tool(args.guidellm), "run", "--backend", backend]
    words += ["--profile", f"kind=constant,rate={args.rate:g}"]
    words += ["--constraint", f"kind=max_requests,count={args.requests}"]
    data = f"prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}"
    words += ["--data", f"kind=synthetic_text,{data}"]
    words += ["--tokenizer", f"kind=hf_auto,model={_tokenizer(args, folder)}", "--disable-console"]
    words += ["--output", f"kind=json,path={path}"]
    _call(words, folder)
    told: Mapping[str, Any] = json.loads(path.read_text())["benchmarks"][0]["metrics"]
    ttft = told["time_to_first_token_ms"]["successful"]
    # What it calls ITL is TPOT here; its own TPOT divides by all tokens, the first included.
    each = told["inter_token_latency_ms"]["successful"]
    return {
        "requests": told["request_totals"]["successful"],
        "ttft_p50_s": ttft["median"] / 1e3,
        "ttft_p99_s": ttft["percentiles"]["p99"] / 1e3,
        "tpot_p50_s": each["median"] / 1e3,
        "tpot_p99_s": each["percentiles"]["p99"] / 1e3,
        "tokens_per_s": told["output_tokens_per_second"]["successful"]["mean"],
    }


def _tokenizer(args: argparse.Namespace, folder: Path) -> str:
    """The model's folder where there is a real one."""
    return str(args.model or folder)


def _tool(path: Path | None) -> list[str]:
    if path is None:
        raise _NotRun("not asked for")
    if not path.exists():
        raise _NotRun(f"{path.name} is not installed there")
    return [str(path)]


OWN = "homesplit bench"
TOOLS = {
    OWN: homesplit_figures,
    "vllm": vllm_figures,
    "aiperf": aiperf_figures,
    "guidellm": guidellm_figures,
}


HEADS = ("TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "ITL p50 ms", "ITL p99 ms")


def _table(args: argparse.Namespace, rounds: Sequence[Round], load: float) -> list[str]:
    """Each tool's figures, against the server's own, and homesplit's divided by them."""
    lines = [
        f"{args.requests} completions at {args.rate:g} a second, {PROMPT_TOKENS} + {TOKENS} "
        f"tokens, {len(rounds)} rounds; load average {load:.1f}",
        "",
        f"| | requests | {' | '.join(HEADS)} | tokens/s | goodput/s |",
        "|---|" + "---|" * (len(FIGURES) + 1),
    ]
    for tool in TOOLS:
        found = [each[tool] for each in rounds if isinstance(each[tool], dict)]
        if not found:
            lines.append(f"| {tool} | {rounds[0][tool]} |" + " |" * len(FIGURES))
            continue
        lines.append(_row(tool, [_middle(found, name) for name in FIGURES], found))
        lines.append(_ratio_row(f"{tool} ÷ server", rounds, tool, tool + " truth"))
        if tool != OWN:
            lines.append(_ratio_row(f"**homesplit ÷ {tool}**", rounds, OWN, tool))
    return lines


def _row(tool: str, values: Sequence[float | None], found: Sequence[Figures]) -> str:
    cells = [
        "" if value is None else f"{value * (1 if '_per_s' in name else 1e3):.2f}"
        for name, value in zip(FIGURES, values, strict=True)
    ]
    return f"| {tool} | {_middle(found, 'requests'):.0f} | {' | '.join(cells)} |"


def _ratio_row(title: str, rounds: Sequence[Round], over: str, under: str) -> str:
    """The median over the rounds of each figure's ratio."""
    cells: list[str] = []
    for name in FIGURES:
        ratios = [
            one[name] / other[name]
            for each in rounds
            if isinstance(one := each.get(over), dict)
            and isinstance(other := each.get(under), dict)
            and one.get(name)
            and other.get(name)
        ]
        cells.append(f"{statistics.median(ratios):.3f}" if ratios else "")
    return f"| {title} | | {' | '.join(cells)} |"


def _middle(found: Sequence[Figures], name: str) -> float | None:
    values = [value for each in found if (value := each.get(name)) is not None]
    return statistics.median(values) if values else None


if __name__ == "__main__":
    sys.exit(main())
