"""Real clients, as they come, against the real engine. Needs SmolLM2-135M and two cores.

    python -m tests.bench.clients_real [--aiperf PATH] [--guidellm PATH] [--vllm PATH]
        [--requests N] [--rate R] [--mode split] [--json]

Two workers and a router of this machine serve SmolLM2; one after the other each client offers the
same number of completions of the same lengths at the same rate. Beside what a client says stands
what the router's own records say of the same requests. `openai` also chats: with and without a
stream, with usage, log-probabilities, several choices and an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import platformdirs
from homesplit_engine.records import ModeSetting, RequestRecord
from homesplit_engine.words import percentile

from homesplit.io.engine_client import EngineClient
from homesplit.io.local_engine import local_engine
from tests.bench.clients import TOOLS, Figures, try_tool
from tests.engine.router_kit import until

NAME = "smollm2-135m"
MODES: dict[str, ModeSetting] = {
    "colocated": ModeSetting(),
    "replica": ModeSetting(mode="replica"),
    "split": ModeSetting(mode="split", prefill_box="left", decode_box="right"),
}
SHOWN = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


def main() -> int:
    """Ask, print; 1 when a client was not answered as it expects."""
    args = _arguments()
    found = asyncio.run(_measured(args))
    found["load"] = os.getloadavg()[0]
    print(json.dumps(found) if args.json else "\n".join(_table(args, found)))
    return int(any(not isinstance(one, dict) for one in found["tools"].values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for tool in ("aiperf", "guidellm", "vllm"):
        parser.add_argument(f"--{tool}", type=Path, help=f"the {tool} command")
    models = Path(platformdirs.user_cache_dir("homesplit")) / "models"
    parser.add_argument("--model", type=Path, default=models / NAME)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--mode", choices=list(MODES), default="split")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(name=NAME)
    return parser.parse_args()


async def _measured(args: argparse.Namespace) -> dict[str, Any]:
    tools: dict[str, Any] = {}
    async with (
        local_engine(model_dir=args.model, model_name=NAME, setting=MODES[args.mode]) as engine,
        EngineClient(engine.url) as client,
    ):
        await until(lambda: _both(client))
        tools["openai"] = await _openai(engine.url)
        print(json.dumps(tools), file=sys.stderr, flush=True)
        for tool, run in TOOLS.items():
            _, since = await client.records()
            with tempfile.TemporaryDirectory() as folder:
                told = await asyncio.to_thread(try_tool, run, args, engine.url, Path(folder))
            records, _ = await client.records(since)
            tools[tool] = told if isinstance(told, str) else {**told, "records": _own(records)}
            print(json.dumps({tool: tools[tool]}), file=sys.stderr, flush=True)
    return {"tools": tools}


async def _both(client: EngineClient) -> bool:
    return all(worker.usable for worker in (await client.status()).workers)


def _own(records: Sequence[RequestRecord]) -> Figures:
    """What the router noted of the same requests; warm-up requests of a client are among them."""
    done = [one for one in records if one.outcome == "completed"]
    firsts = sorted(one.token_s[0] - one.received_s for one in done)
    each = sorted(
        (one.token_s[-1] - one.token_s[0]) / (len(one.token_s) - 1)
        for one in done
        if len(one.token_s) > 1
    )
    return {
        "requests": len(records),
        "completed": len(done),
        "as_asked": sum(one.served == one.mode for one in done),
        "output_tokens": sum(one.output_tokens for one in done) / max(1, len(done)),
        "ttft_p50_s": percentile(firsts, 0.5),
        "ttft_p99_s": percentile(firsts, 0.99),
        "tpot_p50_s": percentile(each, 0.5),
        "tpot_p99_s": percentile(each, 0.99),
    }


async def _openai(url: str) -> dict[str, str]:
    """The official client's own calls; what each gave, or an exception."""
    asked: list[Any] = [{"role": "user", "content": "Name three fruits."}]
    same: dict[str, Any] = {"model": NAME, "temperature": 0, "max_completion_tokens": 24}
    async with openai.AsyncOpenAI(
        base_url=url + "/v1", api_key="none", max_retries=0, timeout=300
    ) as api:
        whole = await api.chat.completions.create(messages=asked, **same)
        usage: Any = {"include_usage": True}
        stream = await api.chat.completions.create(
            messages=asked, stream=True, stream_options=usage, **same
        )
        chunks: list[Any] = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert whole.usage and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        several = await api.completions.create(
            model=NAME, prompt=["One, two,", "Red, green,"], max_tokens=4, n=2, logprobs=2, seed=1
        )
        assert len(several.choices) == 4
        for choice in several.choices:
            assert choice.logprobs and len(choice.logprobs.token_logprobs or ()) == 4
        try:
            await api.completions.create(model=NAME, prompt="a", max_tokens=8192)
            raise AssertionError("an answer past the context was taken")
        except openai.BadRequestError as error:
            assert (error.code, error.param) == ("context_length_exceeded", "prompt")
        models = [model.id async for model in api.models.list()]
        assert models == [NAME]
    return {"chat": text, "version": openai.__version__}


def _table(args: argparse.Namespace, found: dict[str, Any]) -> list[str]:
    lines = [
        f"mode {args.mode}, {args.requests} completions at {args.rate:g} a second; load average "
        f"{found['load']:.1f}",
        "",
        f"openai: {found['tools']['openai']}",
        "",
        "| | answered | as asked | tokens each | TTFT p50, p99 ms | router's records | "
        "TPOT p50, p99 ms | router's records |",
        "|---|" + "---|" * 7,
    ]
    for tool in TOOLS:
        told = found["tools"][tool]
        if isinstance(told, str):
            lines.append(f"| {tool} | {told} |" + " |" * 6)
            continue
        own = told["records"]
        cells = [
            f"{told['requests']:.0f}, {own['completed']:.0f} of {own['requests']:.0f} recorded"
        ]
        cells += [f"{own['as_asked']:.0f}", f"{own['output_tokens']:.1f}"]
        for half in (SHOWN[:2], SHOWN[2:]):
            cells += [", ".join(f"{1e3 * one[name]:.1f}" for name in half) for one in (told, own)]
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
