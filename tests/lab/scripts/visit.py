"""On the desk: logs in to each host as deployment does, and tells how that went.

    python -m tests.lab.scripts.visit HOME PASSWORD HOST…

Prints one JSON object: by host, the home it has and the sentence of what failed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from homesplit.errors import HomesplitError
from homesplit.io.box_facts import read_facts
from homesplit.io.paths import Paths
from homesplit.io.ssh import Connections

_AT_ONCE = 4
_SECRET = b"a\0'secret'\r\n"


class Person:
    """Trusts every new key and knows one password."""

    def __init__(self, password: str) -> None:
        self._password: str | None = password

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        return True

    async def secret(self, prompt: str) -> str | None:
        given, self._password = self._password, None
        return given


async def visit(host: str, home: Path, password: str) -> dict[str, object]:
    """Several commands at once, and a file there and back."""
    paths = Paths(config=home / "config", cache=home / "cache", data=home / "data")
    try:
        async with Connections(paths=paths, ask=Person(password)) as connections:
            box = await connections.connect(host)
            facts = await read_facts(box)
            said = await asyncio.gather(*(box.run(f"echo {n}") for n in range(_AT_ONCE)))
            file = f'{facts.home}/it\'s a "file"'
            await box.write(file, _SECRET)
            same = await box.read(file) == _SECRET
            await box.run('rm "$HOME"/it*file*')
            forwards = [await box.forwards(port) for port in (9, 47612)]
    except HomesplitError as error:
        return {"failed": str(error)}
    whole = [int(output.stdout) for output in said] == list(range(_AT_ONCE)) and same
    return {"home": facts.home, "whole": whole, "forwards": forwards}


async def main(home: Path, password: str, hosts: list[str]) -> dict[str, dict[str, object]]:
    """One host after the other: each is to be tried by itself."""
    return {host: await visit(host, home, password) for host in hosts}


print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))))
