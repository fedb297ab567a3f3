"""Asking the `sh` of single facts, with stand-ins for other systems' tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

from homesplit_probes import facts

GOLDEN = Path(__file__).parent / "golden"


def command(name: str) -> str:
    """The `sh` that tells this fact."""
    return next(fact.command for fact in facts.FACTS if fact.name == name)


def grouped(name: str, folder: Path) -> str:
    """What a fact's command says where control groups lie in `folder`."""
    script = (facts.GROUPS + command(name)).replace("/sys/fs/cgroup", str(folder / "cgroup"))
    return said(folder, script.replace("/proc/self/cgroup", str(folder / "self")))


def tool(folder: Path, name: str, script: str) -> None:
    """A stand-in for a tool of another system."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def said(folder: Path, command: str) -> str:
    """What a command prints where these tools are found first."""
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
    return done.stdout
