"""Logs in with asyncssh to every machine of a lab; the lab's `env` comes on standard input."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import asyncssh

ASK = "hostname; cat /etc/hostname; echo $HOME"


async def log_in(box: dict[str, Any], env: dict[str, Any]) -> dict[str, Any]:
    """What the machine answers, or the kind of error."""
    begin = time.monotonic()
    try:
        async with asyncssh.connect(
            box["address"],
            box["port"],
            username=box["user"],
            client_keys=[env["identity"]],
            known_hosts=env["known_hosts"],
            config=None,
            agent_path=None,
            connect_timeout=15,
        ) as connection:
            done = await connection.run(ASK, check=True)
            async with connection.start_sftp_client() as sftp:
                await sftp.listdir(".")
            answer = str(done.stdout).split("\n")
    except (OSError, asyncssh.Error) as error:
        return {"ok": False, "error": type(error).__name__, "s": time.monotonic() - begin}
    return {"ok": True, "answer": answer, "s": time.monotonic() - begin}


async def main() -> None:
    """All machines at once; prints one JSON document."""
    env: dict[str, Any] = json.load(sys.stdin)
    boxes = {**env["boxes"], **{k: v for k, v in env["others"].items() if "user" in v}}
    answers = await asyncio.gather(*(log_in(box, env) for box in boxes.values()))
    print(json.dumps(dict(zip(boxes, answers, strict=True))))


if __name__ == "__main__":
    asyncio.run(main())
