"""A server that streams one fixed answer over HTTP and does nothing else; writes its URL to a file.

python -m tests.bench.plain_http FILE
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from aiohttp import web

EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
LONGEST_S = 600.0


async def answer(request: web.Request) -> web.StreamResponse:
    """One event as the router streams it."""
    await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(EVENT)
    await response.write(b"data: [DONE]\n\n")
    return response


async def serve(file: Path) -> None:
    """Until it is ended."""
    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    await asyncio.to_thread(file.write_text, f"http://{host}:{port}")
    await asyncio.sleep(LONGEST_S)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
