"""The engine's Python environment on a box, made by uv; a half-made one is never used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from homesplit.errors import DeployError
from homesplit.io.box import Box
from homesplit.io.box_facts import WHOLE
from homesplit.io.model_store import hash_file
from homesplit.io.remote_process import WHO
from homesplit.io.remote_root import must
from homesplit.io.said import count
from homesplit.io.wheelhouse import Wheelhouse

_INSTALL_DEADLINE_S = 3600.0
_IDLE_S = 900.0

_END_EARLIER = r"""
run="$ROOT/run"; mkdir -p "$run"
# What a lost desk's command left at work there must not write into the same folder.
if alive maker; then
  group=$pid
  # The shell dies at once; what it started may still write for a while.
  at_work() { alive maker || kill -s 0 -- "-$group" 2>/dev/null; }
  for signal in TERM KILL; do
    kill -s $signal -- "-$group" 2>/dev/null || kill -s $signal "$group" 2>/dev/null
    n=0; while at_work && [ $n -lt 20 ]; do n=$((n + 1)); sleep 0.25; done
    at_work || break
  done
fi
"""

_ONE_AT_A_TIME = (
    _END_EARLIER
    + r"""
printf '%s\n%s\n' "$$" "$(token $$)" >"$run/maker.pid"
"""
)

_TIDY = r"""
rm -rf "$ROOT/uv-cache" "$ROOT/wheelhouse" "$ROOT/env/$KEY.txt"; rm -f "$run/maker.pid"
"""

_SETTLE = (
    _END_EARLIER
    + r"""
if whole "$ROOT/env/$KEY"; then
"""
    + _TIDY
    + r"""
  echo whole
fi
exit 0
"""
)

_SETUP = r"""
set -eu
dir="$ROOT/env/$KEY"; cache="$ROOT/uv-cache"
export UV_CACHE_DIR="$cache" UV_PYTHON_INSTALL_DIR="$ROOT/python" UV_PYTHON_INSTALL_BIN=0
export UV_NO_PROGRESS=1 UV_HTTP_TIMEOUT=60 XDG_CACHE_HOME="$ROOT/cache" PYTHONNOUSERSITE=1
mkdir -p "$ROOT/env"; n=0
until rm -rf "$dir" || [ $n -ge 20 ]; do n=$((n + 1)); sleep 0.25; done
cat >"$ROOT/env/$KEY.txt"
"""

_CHECK = r"""
"$dir/bin/python" -I -c '
import aiohttp, cryptography, msgspec, numba, psutil, safetensors, sys
import tokenizers, torch, transformers, zmq
print("torch", torch.__version__, "transformers", transformers.__version__, "Python",
      sys.version.split()[0])'
"""

# Marked before what it was made from goes: whoever is interrupted here has it whole all the same.
_MARK = r"""
sleep 0.1; printf '%s\n' "$KEY" >"$dir/.complete"
"""


_BY_SIGNAL = {
    128 + 4: (
        "its processor lacks instructions that torch is made of (Illegal instruction).",
        "Use another box: torch's packages are made for processors of about 2013 and newer.",
    ),
    128 + 9: (
        "what installs them was killed, most likely because memory ran out (Killed).",
        "End other programs there or give it swap, then repeat the command.",
    ),
}
"""What the status of a script says whose last command was ended by a signal, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvOrder:
    """What environment to make: its key, its packages, with which interpreter, from where.

    `python` is a path on the box, or None to let uv bring one. `wheelhouse` None takes the
    packages from the internet, with torch for `torch_backend` (in uv's words).
    """

    key: str
    requirements: str
    python: str | None
    wheelhouse: Wheelhouse | None
    torch_backend: str


async def settle(box: Box, root: str, key: str) -> bool:
    """End an installation that a lost desk left at work; whether the environment is whole now.

    What an interrupted one did not clear away is cleared away then.
    """
    script = f"umask 077; ROOT={quote(root)}; KEY={quote(key)}\n{WHO}{WHOLE}{_SETTLE}"
    output = await box.run(script, timeout_s=120.0)
    must(output, box, "end the installation that an earlier command left there")
    return output.stdout.strip() == "whole"


async def ensure_uv(box: Box, root: str, uv: Path, present: frozenset[str]) -> str:
    """The path of the pushed uv on the box; it is pushed unless it is there."""
    sha256 = await asyncio.to_thread(hash_file, uv)
    remote = f"{root}/bin/uv-{sha256[:16]}"
    if sha256[:16] not in present:
        await box.put(uv, remote, mode=0o700, resume_key=sha256[:16])
    output = await box.run(f"{quote(remote)} --version", timeout_s=30.0)
    must(output, box, "run uv")
    return remote


async def push_wheels(
    box: Box, root: str, house: Wheelhouse, seen: Callable[[int, int], None]
) -> None:
    """Copy all wheels; those that are there with the right size stay."""
    folder = f"{root}/wheelhouse"
    there = await _sizes(box, folder)
    done = 0
    for entry in house.manifest.files:
        base = done
        if there.get(entry.path) != entry.bytes:

            def tell(count: int, _total: int, base: int = base) -> None:
                seen(base + count, house.manifest.bytes)

            await box.put(
                house.folder / entry.path,
                f"{folder}/{entry.path}",
                progress=tell,
                resume_key=entry.sha256[:16],
            )
        done += entry.bytes
        seen(done, house.manifest.bytes)


async def make_env(
    box: Box, root: str, uv: str, order: EnvOrder, tell: Callable[[str], None]
) -> str:
    """Make the environment and mark it whole; returns what was installed, in words."""
    install = f'{quote(uv)} pip install --python "$dir/bin/python" -r "$ROOT/env/$KEY.txt"'
    if order.wheelhouse:
        install += ' --offline --no-index --find-links "$ROOT/wheelhouse"'
    else:
        install += f" --torch-backend={order.torch_backend}"
    python = quote(order.python) if order.python else "3.11 --python-preference only-managed"
    script = (
        f"umask 077; ROOT={quote(root)}; KEY={quote(order.key)}\n{WHO}{_ONE_AT_A_TIME}{_SETUP}"
        f'{quote(uv)} venv --quiet --python {python} "$dir"\n{install}\n{_CHECK}{_MARK}{_TIDY}'
    )
    last: list[str] = []
    said: list[str] = []

    def error_line(line: str) -> None:
        if line.strip():
            said.append(line.strip())
            del said[:-20]
            if not line.startswith(" + "):
                tell(line.strip())

    output = await box.stream(
        script,
        on_line=last.append,
        on_error_line=error_line,
        input=order.requirements.encode(),
        timeout_s=_INSTALL_DEADLINE_S,
        idle_s=_IDLE_S,
    )
    if not output.ok:
        reason = next((line for line in reversed(said) if line), f"exit status {output.code}")
        why, do_next = _BY_SIGNAL.get(
            output.code, (reason, "Repeat the command; the half-made environment is not used.")
        )
        raise DeployError(
            f"the engine's packages can't be installed: {why}", where=box.name, do_next=do_next
        )
    return last[-1] if last else ""


async def _sizes(box: Box, folder: str) -> dict[str, int]:
    output = await box.run(
        f'cd {quote(folder)} 2>/dev/null || exit 0; for f in *.whl; do [ -f "$f" ] && '
        'printf "%s %s\\n" "$(wc -c <"$f")" "$f"; done; exit 0'
    )
    pairs = (line.split(maxsplit=1) for line in output.stdout.splitlines())
    sizes = ((pair[1], count(pair[0])) for pair in pairs if len(pair) == 2)
    return {name: size for name, size in sizes if size is not None}
