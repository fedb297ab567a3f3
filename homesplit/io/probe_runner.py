"""Ships the probes to a box as one file, runs them there and takes the file away again."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import secrets
import shlex
import tempfile
import zipapp
import zipfile
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import homesplit_probes
from homesplit_probes import facts as probe_facts

from homesplit.errors import ProbeError, UnreachableError
from homesplit.io.box import Box
from homesplit.io.running import Running

FACTS_S = 30.0
"""For what a box says of itself, its slowest tools included."""
BOX_S = 20.0
"""For a box's figures, loading torch included; a quiet box needs less than half of it."""
_BOX_LIMIT_S = 30.0
LINK_S = 12.5
"""For a link's figures."""
_LINK_LIMIT_S = 15.0
_HERE_S = 3.0
_LEAST_S = 3.0
"""Even when shipping took long, an answer is waited for as long as this."""

Say = Callable[[str], None]


@cache
def bundle() -> bytes:
    """The probes as one zip application, made of the installed package."""
    package = Path(homesplit_probes.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        target = source / package.name
        target.mkdir(parents=True)
        for file in package.glob("*.py"):
            (target / file.name).write_bytes(file.read_bytes())
        packed = Path(folder) / "probes.pyz"
        main = f"{package.name}.__main__:main"
        zipapp.create_archive(source, packed, main=main, compressed=True)
        return _reproducible(packed.read_bytes())


def _reproducible(raw: bytes) -> bytes:
    """The same bytes for the same code: no times of day inside."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for name in sorted(old.namelist()):
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            new.writestr(info, old.read(name))
    return out.getvalue()


async def gather_facts(box: Box) -> dict[str, Any]:
    """What the machine says of itself, by `sh` alone."""
    separator = secrets.token_hex(16)
    output = await box.run(probe_facts.script(separator), timeout_s=FACTS_S)
    return probe_facts.parse(output.stdout, separator)


def python_of(facts: dict[str, Any]) -> str | None:
    """The Python that probes best: that of a deployment when there is one."""
    pythons = facts.get("pythons") or []
    return str(pythons[0]["path"]) if pythons else None


def needs_blas(facts: dict[str, Any]) -> bool:
    """Whether the Python that probes has no torch; what multiplies in numpy may be very slow."""
    pythons = facts.get("pythons") or []
    return bool(pythons) and pythons[0].get("library") != "torch"


async def measure_box(
    box: Box, facts: dict[str, Any], say: Say, *, blas: bytes = b""
) -> dict[str, Any] | None:
    """Compute, memory and power as the probes tell them; None when the box has no Python.

    `blas` is a wheel with a BLAS library, for a box without torch.
    """
    python = python_of(facts)
    if python is None:
        return None
    available = (facts.get("memory") or {}).get("available_bytes") or 0
    arguments = f"box --seconds {BOX_S:g} --available-bytes {int(available)}"
    if blas:
        arguments += f" --blas-bytes {len(blas)}"
        say(f"lending it a BLAS library ({len(blas) / 1e6:.0f} MB) for the length of the probe")
    deadline = _now() + _BOX_LIMIT_S
    async with _probe(box, python, arguments, say) as running:
        await running.write(blas, timeout_s=120)
        running.end_input()
        return await _answer(box, running, deadline, partial=True)


async def measure_link(
    listener: Box,
    listener_facts: dict[str, Any],
    driver: Box,
    driver_facts: dict[str, Any],
    addresses: tuple[str, ...],
    say: Say,
    *,
    seconds: float = LINK_S,
) -> dict[str, Any]:
    """One box listens on `addresses`, the other measures for `seconds`; directly between the two.

    Raises ProbeError when a box has no Python or the boxes don't reach each other.
    """
    pythons = python_of(listener_facts), python_of(driver_facts)
    if pythons[0] is None or pythons[1] is None:
        without = listener if pythons[0] is None else driver
        raise ProbeError(
            "there is no Python 3.9 or newer, which the link probe needs.",
            where=without.name,
            do_next="Deploy first (it brings Python), then probe again.",
        )
    token = secrets.token_hex(32)
    deadline = _now() + seconds + _LINK_LIMIT_S - LINK_S
    listen = f"listen --seconds {seconds + 5:g}"
    async with _probe(listener, pythons[0], listen, _quiet) as listening:
        await _tell(listening, {"token": token, "addresses": addresses})
        listening.end_input()
        first = _json_of(await listening.line(timeout_s=15))
        if first is None or not first.get("listening"):
            raise ProbeError(
                "its listener did not start.",
                where=listener.name,
                do_next="Probe again; if it stays so, see whether a firewall there ends listeners.",
            )
        async with _probe(driver, pythons[1], f"drive --seconds {seconds:g}", say) as driving:
            await _tell(driving, {"token": token, "peers": first["listening"]})
            driving.end_input()
            try:
                answer = await _answer(driver, driving, deadline)
            except ProbeError as error:
                raise await _gone((driver, listener)) or error from error
        if answer.get("why"):
            return answer
        answer["peer_interface"] = None
        with contextlib.suppress(UnreachableError):
            last = _json_of(await listening.line(timeout_s=_LEAST_S))
            answer["peer_interface"] = (last or {}).get("interface")
            await listening.finish(timeout_s=_LEAST_S)
        return answer


async def _gone(boxes: Sequence[Box]) -> ProbeError | None:
    """That some of these boxes answer no more, which explains whatever else was seen."""

    async def answers(box: Box) -> bool:
        try:
            return (await box.run("true", timeout_s=_HERE_S)).ok
        except UnreachableError:
            return False

    here = await asyncio.gather(*(answers(box) for box in boxes))
    gone = [box.name for box, there in zip(boxes, here, strict=True) if not there]
    if not gone:
        return None
    return ProbeError(
        "it answers no more.",
        where=" and ".join(gone),
        do_next="See whether it is on, awake and in the network, then probe again.",
    )


def _quiet(_: str) -> None:
    """The listener has nothing to tell."""


@contextlib.asynccontextmanager
async def _probe(box: Box, python: str, arguments: str, say: Say) -> AsyncGenerator[Running]:
    """The probes at work on a box; their file is gone when they end, however they end."""
    packed = bundle()
    script = (
        # A signal that comes while the folder is being removed would end `rm`, too; and a shell
        # that tells of its program's end to a reader who has gone is ended by SIGPIPE.
        "clean() { trap '' HUP INT TERM PIPE; rm -rf \"$d\"; }; "
        f'PATH="$PATH:{probe_facts.TOOLS}"; export PATH; '
        # Where /tmp is full, read-only or lets no library be loaded (noexec), the home serves.
        "trap clean EXIT; trap 'clean; exit 1' HUP INT TERM PIPE; "
        'd=$(mktemp -d 2>/dev/null) && echo : >"$d/try" && chmod 700 "$d/try" && '
        '"$d/try" 2>/dev/null || '
        '{ rm -rf "$d"; d=$(mktemp -d "$HOME/.homesplit.XXXXXX") || exit 1; }; '
        f'dd bs=1 count={len(packed)} of="$d/probes.pyz" 2>/dev/null; '
        # What it unpacks goes with the folder, also when it is ended in the middle.
        f'TMPDIR="$d" {shlex.quote(python)} -I -W ignore "$d/probes.pyz" {arguments}'
    )
    async with box.start(script, input=packed, keep_input=True, on_error_line=say) as running:
        yield running


async def _tell(running: Running, value: dict[str, Any]) -> None:
    await running.write(json.dumps(value).encode() + b"\n")


async def _answer(
    box: Box, running: Running, deadline: float, *, partial: bool = False
) -> dict[str, Any]:
    """The last JSON object among the lines; raises ProbeError with what was said instead.

    With `partial` an object that came before the deadline counts even if the probe has not ended.
    """
    found: dict[str, Any] | None = None
    try:
        async with asyncio.timeout(max(_LEAST_S, deadline - _now())):
            while (line := await running.line(timeout_s=_BOX_LIMIT_S)) is not None:
                found = _json_of(line) or found
            output = await running.finish(timeout_s=10)
    except (TimeoutError, UnreachableError) as error:
        if found is not None and partial:
            return found
        if isinstance(error, UnreachableError) and box.is_closed():
            raise
        raise ProbeError(
            "the probe did not end in time.",
            where=box.name,
            do_next="See whether that box is very busy, asleep or gone, then probe again.",
        ) from error
    if found is None:
        said = (output.stderr.splitlines() or [f"exit status {output.code}"])[-1]
        raise ProbeError(
            f"the probe failed: {said}.",
            where=box.name,
            do_next="Probe again; if it stays so, run `python3 -V` on that box.",
        )
    return found


def _now() -> float:
    return asyncio.get_running_loop().time()


def _json_of(line: str | None) -> dict[str, Any] | None:
    if line is None or not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
