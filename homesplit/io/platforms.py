"""The kinds of machine that packages are fetched for, in pip's words."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass

from homesplit.errors import DeployError, UsageError
from homesplit.io.box_facts import BoxFacts

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""Interpreters that every engine package has wheels for, the one tests run on first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind of box: system, processor, C library, Python and accelerator."""

    system: str
    machine: str
    libc: str = "glibc"
    glibc: tuple[int, int] = (2, 28)
    python: tuple[int, int] = (3, 11)
    accelerator: str = "cpu"

    @property
    def key(self) -> str:
        """A name for folders and for `--platform`, as `linux-x86_64-py3.11-cpu`."""
        libc = "-musl" if self.libc == "musl" else ""
        python = f"py{self.python[0]}.{self.python[1]}"
        return f"{self.system.lower()}{libc}-{self.machine}-{python}-{self.accelerator}"

    @property
    def torch_backend(self) -> str:
        """What uv is told: `auto` would bring torch for a GPU of AMD or Intel."""
        return "cpu" if self.system == "Linux" and self.accelerator == "cpu" else "auto"

    @property
    def pip_platforms(self) -> tuple[str, ...]:
        """Platform tags that run there, best first."""
        if self.system == "Darwin":
            tags = [f"macosx_{major}_0_{self.machine}" for major in range(15, 10, -1)]
            return (*tags, "macosx_11_0_universal2", "macosx_10_9_universal2")
        newest = min(self.glibc[1], 45)
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, 4, -1)]
        return (*tags, f"manylinux2014_{self.machine}", f"manylinux2010_{self.machine}")


def target_of(facts: BoxFacts, box: str) -> Target:
    """The kind of box that `facts` describe; raises DeployError when no packages fit it."""
    if facts.system not in ("Linux", "Darwin"):
        raise DeployError(
            f"it runs {facts.system}, for which the engine has no packages.",
            where=box,
            do_next="Use a Linux or macOS box (on Windows: WSL).",
        )
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(facts.machine, facts.machine)
    found = re.search(r"(\d+)\.(\d+)", facts.libc)
    glibc = (int(found[1]), int(found[2])) if found else None
    if why := _unfit(facts, machine, glibc):
        raise DeployError(why, where=box, do_next="Use another box, or a newer system on this one.")
    if facts.system == "Darwin":
        machine = "arm64"
    return Target(
        system=facts.system,
        machine=machine,
        glibc=glibc or _LEAST_GLIBC,
        python=python_minor(facts) or PYTHONS[0],
        accelerator="cuda" if facts.device == "cuda" else "cpu",
    )


def _unfit(facts: BoxFacts, machine: str, glibc: tuple[int, int] | None) -> str | None:
    """Why torch has no packages for such a system, None when it has."""
    if facts.bits == 32 or machine not in ("x86_64", "aarch64"):
        kind = "a 32-bit system" if facts.bits == 32 else f"a processor of the kind {machine}"
        return f"it has {kind}, for which torch has no packages (only x86_64 and ARM of 64 bits)."
    if facts.system == "Darwin" and machine == "x86_64":
        return "it is a Mac with an Intel processor, for which torch has no packages any more."
    if facts.libc == "musl":
        return f"its C library is {_MUSL}."
    if glibc is not None and glibc < _LEAST_GLIBC:
        return (
            f"its C library is glibc {glibc[0]}.{glibc[1]}, and torch's packages need "
            f"{_LEAST_GLIBC[0]}.{_LEAST_GLIBC[1]} (Debian 10, Ubuntu 18.10, RHEL 8 or newer)."
        )
    if facts.no_loader == "nix-ld":
        return (
            "it is NixOS without nix-ld (programs.nix-ld.enable = true), and so starts no program "
            "that was made for other systems."
        )
    if facts.no_loader:
        return (
            f"programs made for other systems don't start there: it has no {facts.no_loader} "
            "(as on Android)."
        )
    return None


_MUSL = "musl (Alpine), for which torch has no packages (only glibc, as in Debian or Fedora)"
_LEAST_GLIBC = (2, 28)
"""What torch's wheels of today are made for (their tag is manylinux_2_28)."""


def python_minor(facts: BoxFacts) -> tuple[int, int] | None:
    """The version of the box's own Python that fits, None when there is none."""
    found = fitting_python(facts)
    return found[0] if found else None


def fitting_python(facts: BoxFacts) -> tuple[tuple[int, int], str] | None:
    """Version and path of the box's interpreter to use, None when there is none that fits."""
    by_minor = {(p.version[0], p.version[1]): p.path for p in reversed(facts.pythons)}
    return next(((minor, by_minor[minor]) for minor in PYTHONS if minor in by_minor), None)


def this_target() -> Target:
    """This machine as a box."""
    libc, version = platform.libc_ver()
    match = re.match(r"(\d+)\.(\d+)", version)
    minor = (sys.version_info[0], sys.version_info[1])
    return Target(
        system=platform.system(),
        machine=platform.machine(),
        libc="glibc" if libc == "glibc" or platform.system() == "Darwin" else "musl",
        glibc=(int(match[1]), int(match[2])) if match and libc == "glibc" else (2, 28),
        python=minor if minor in PYTHONS else PYTHONS[0],
    )


def target_from_key(key: str) -> Target:
    """The target of a typed key; raises UsageError."""
    match = re.fullmatch(
        r"(linux|darwin)(-musl)?-(x86_64|aarch64|arm64)-py(3)\.(\d+)(?:-(cpu|cuda))?", key
    )
    if match is None:
        raise UsageError(f"{key!r} is no platform.", do_next="Write it as linux-x86_64-py3.11-cpu.")
    if match[2]:
        raise UsageError(
            f"{key!r} has the C library {_MUSL}.", do_next="Name the platform of another box."
        )
    return Target(
        system=match[1].capitalize(),
        machine=match[3],
        python=(int(match[4]), int(match[5])),
        accelerator=match[6] or "cpu",
    )
