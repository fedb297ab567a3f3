"""On the desk: starts a stand-in for an engine on a box as deployment does, looks, and ends it.

    python unit_road.py BOX HOME

Prints one JSON object of what was seen. The stand-in is no engine: what is looked at is who keeps
it alive.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from homesplit.io import remote_process
from homesplit.io.box import Box
from homesplit.io.box_facts import read_facts
from homesplit.io.paths import Paths
from homesplit.io.remote_process import EnginePlace
from homesplit.io.ssh import Connections


class NoOne:
    """There is nobody to ask."""

    async def trust_host_key(self, box: str, fingerprint: str) -> bool:
        return False

    async def secret(self, prompt: str) -> str | None:
        return None


_STAND_IN = """
import json, os, pathlib, sys, time
config = json.loads(pathlib.Path(sys.argv[-1]).read_text())
pathlib.Path(config["ready"]).write_text(json.dumps({"pid": os.getpid()}))
time.sleep(600)
"""
_KILL = """
read -r pid <'{run}/worker.pid'; kill -KILL "$pid"
n=0; while kill -0 "$pid" 2>/dev/null && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done
"""
_UNITS = """
export XDG_RUNTIME_DIR="/run/user/$(id -u)"
units() { systemctl --user --no-legend --plain list-units 'homesplit-*'; }
n=0; while [ "$1" = none ] && [ -n "$(units)" ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done
units
"""


async def lay_out(box: Box, place: EnginePlace) -> None:
    """An environment whose Python is the system's, and the stand-in as its engine."""
    package = f"{place.root}/engine/{place.engine}/homesplit_engine"
    await box.run(f"mkdir -p '{place.root}/env/{place.env}/bin' '{package}'")
    await box.run(f"ln -sf /usr/bin/python3 '{place.python}'; : >'{package}/__init__.py'")
    await box.write(f"{package}/__main__.py", _STAND_IN.encode())
    settings = json.dumps({"ready": f"{place.run}/worker.ready"})
    await box.write(f"{place.run}/worker.json", settings.encode())
    await remote_process.write_launcher(box, place)


async def seen(box: Box, place: EnginePlace, *, ends: bool = False) -> dict[str, Any]:
    """The worker's state, its control group and who its parent is, and the units there are.

    Where the unit `ends` it is waited for, as systemd takes a moment.
    """
    state = (await remote_process.states(box, place.root))["worker"]
    at = f"/proc/{state.pid}"
    told = await box.run(
        f"sed -n 's/^0:://p' {at}/cgroup; cat /proc/$(awk '/^PPid/ {{print $2}}' {at}/status)/comm"
    )
    units = await box.run(f"set -- {'none' if ends else 'some'}\n{_UNITS}", timeout_s=120.0)
    return {"state": state.state, "group": told.stdout.split(), "units": units.stdout.split()[:1]}


async def main(name: str, home: Path) -> dict[str, Any]:
    """Two log-ins: the first starts, the second finds it alive, breaks it and ends it."""
    paths = Paths(config=home / "config", cache=home / "cache", data=home / "data")
    found: dict[str, Any] = {}
    async with Connections(paths=paths, ask=NoOne()) as connections:
        box = await connections.connect(name)
        facts = await read_facts(box)
        found["unit"] = facts.unit
        place = EnginePlace(root=facts.root, env="e", engine="c", unit=facts.unit)
        await lay_out(box, place)
        await remote_process.start(box, place, "worker")
        await remote_process.wait_ready(box, place, "worker")
        await remote_process.keep(box, place.root)
    async with Connections(paths=paths, ask=NoOne()) as connections:
        box = await connections.connect(name)
        found["after_log_out"] = await seen(box, place)
        await box.run(_KILL.format(run=place.run))
        found["killed"] = await seen(box, place)
        await remote_process.start(box, place, "worker")
        await remote_process.wait_ready(box, place, "worker")
        found["again"] = await seen(box, place)
        await remote_process.stop(box, place.root)
        found["stopped"] = await seen(box, place, ends=True)
        await box.run(f"rm -rf '{facts.home}/.local'")
    return found


print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
