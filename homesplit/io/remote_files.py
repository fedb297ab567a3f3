"""The engine's code and the model's files on a box: by hash, resumed, checked there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from homesplit.core.manifest import Manifest
from homesplit.errors import DeployError
from homesplit.io.box import Box
from homesplit.io.bundle import Bundle
from homesplit.io.remote_root import DELETE_S, must

_HASH_DEADLINE_S = 1800.0

_SHA = r"""
sha() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum "$1" | cut -d' ' -f1
  elif command -v shasum >/dev/null 2>&1; then shasum -a 256 "$1" | cut -d' ' -f1
  else openssl dgst -sha256 -r "$1" | cut -d' ' -f1; fi
}
"""


async def push_engine(box: Box, root: str, python: str, bundle: Bundle) -> None:
    """Unpack the engine under its hash with the environment's own Python; marked when whole."""
    folder = f"{root}/engine/{bundle.hash}"
    script = (
        f'set -eu; umask 077; d={quote(folder)}; rm -rf "$d"; mkdir -p "$d"\n'
        f'cat >"$d/engine.zip"; {quote(python)} -I -m zipfile -e "$d/engine.zip" "$d"\n'
        f'rm "$d/engine.zip"; sleep 0.1; : >"$d/.complete"'
    )
    must(await box.run(script, input=bundle.data, timeout_s=120.0), box, "unpack the engine")


async def clear_superseded(box: Box, root: str, *, env: str, engine: str) -> None:
    """Delete environments and engines of other versions; raises DeployError."""
    keep = f"{quote(env)}|{quote(engine)}"
    script = (
        f"set -u; cd {quote(root)} || exit 1\n"
        'for folder in env/* engine/*; do [ -d "$folder" ] || continue\n'
        f'  case "${{folder##*/}}" in {keep}) ;; *) rm -rf "$folder" || exit 1 ;; esac\n'
        "done"
    )
    must(
        await box.run(script, timeout_s=DELETE_S), box, "delete what an earlier version left there"
    )


async def push_model(
    box: Box, root: str, folder: Path, manifest: Manifest, seen: Callable[[int, int], None]
) -> None:
    """Copy the model's files that are missing or wrong, then check every hash there."""
    remote = f"{root}/models/{manifest.hash[:16]}"
    await box.run(f"rm -f {quote(remote)}/.complete")
    right = await _hashes(box, remote, manifest)
    done = 0
    for entry in manifest.files:
        base = done
        if right.get(entry.path) != entry.sha256:

            def tell(count: int, _total: int, base: int = base) -> None:
                seen(base + count, manifest.bytes)

            await box.put(
                folder / entry.path,
                f"{remote}/{entry.path}",
                progress=tell,
                resume_key=entry.sha256[:16],
            )
        done += entry.bytes
        seen(done, manifest.bytes)
    right = await _hashes(box, remote, manifest)
    wrong = [entry.path for entry in manifest.files if right.get(entry.path) != entry.sha256]
    if wrong:
        await box.run(f"rm -f {quote(f'{remote}/{wrong[0]}')}")
        raise DeployError(
            f"{wrong[0]} did not arrive as it was sent (its SHA-256 differs).",
            where=box.name,
            do_next="Repeat the command; only that file is sent again.",
        )
    await asyncio.sleep(0.1)
    output = await box.run(f"umask 077; : >{quote(f'{remote}/.complete')}")
    must(output, box, "mark the model as whole")


async def _hashes(box: Box, remote: str, manifest: Manifest) -> dict[str, str]:
    """SHA-256 of the model's files that are on the box."""
    lines = [
        f'[ -f {quote(e.path)} ] && printf "%s %s\\n" "$(sha {quote(e.path)})" {quote(e.path)}'
        for e in manifest.files
    ]
    script = f"cd {quote(remote)} 2>/dev/null || exit 0\n{_SHA}\n" + "\n".join(lines) + "\nexit 0"
    output = await box.run(script, timeout_s=_HASH_DEADLINE_S)
    pairs = (line.split(maxsplit=1) for line in output.stdout.splitlines())
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}
