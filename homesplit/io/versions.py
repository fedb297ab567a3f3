"""Which software made a measurement: versions of the parts, and the commit of a checkout."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

from homesplit import __version__

PACKAGES = ("aiohttp", "msgspec", "pyzmq", "torch", "transformers")
GIT_S = 5.0


@functools.cache
def versions() -> dict[str, str]:
    """Versions of homesplit, Python, the system and the main packages that are installed here."""
    found = {
        "homesplit": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def git_hash() -> str | None:
    """The commit of the checkout this package runs from, `-dirty` with changes; else None."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if changed else commit


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
