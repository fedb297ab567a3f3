"""One question to what is deployed, as an answer on standard output: `python -m tests.lab.chat`."""

from __future__ import annotations

import asyncio
import sys

import aiohttp

from homesplit.stages import deploy
from homesplit.stages.context import Context

LIMIT_S = 240.0


async def ask(question: str) -> str:
    """The whole greedy answer of the deployment that this desk knows."""
    context = Context()
    deployment = await deploy.status(context)
    if deployment is None:
        raise SystemExit("nothing is deployed")
    body = {
        "model": deployment.model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 24,
        "temperature": 0,
    }
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with deploy.forward(context, deployment) as api:
        headers = {"Authorization": f"Bearer {api.api_key}"}
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.post(f"{api.url}/v1/chat/completions", json=body) as response,
        ):
            response.raise_for_status()
            answer = await response.json()
    return answer["choices"][0]["message"]["content"]


if __name__ == "__main__":
    print(asyncio.run(ask(sys.argv[1])))
