"""The product's commands as a person types them on the desk of a lab."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from homesplit.io.paths import user_paths
from tests.lab.api import RunningLab
from tests.lab.errors import LabError

_LOOKS = 5
COMMAND = [str(Path(sys.executable).with_name("homesplit"))]


class Road:
    """`homesplit … --json` on the desk, with its own folder for everything it keeps.

    The desk has no internet: what was fetched before on this computer is its cache.
    """

    def __init__(self, lab: RunningLab, home: Path) -> None:
        self.lab = lab
        self.home = home
        home.mkdir(exist_ok=True)
        cache = user_paths().cache
        cache.mkdir(parents=True, exist_ok=True)
        if not (home / "cache").exists():
            (home / "cache").symlink_to(cache)

    def run(
        self, *words: str, timeout_s: float = 300.0, ssh_config: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as typed."""
        command = [*COMMAND, *words]
        environment = self._environment(ssh_config)
        return self.lab.desk(command, environment=environment, timeout_s=timeout_s)

    def ask(self, question: str) -> str:
        """The answer of what is deployed."""
        command = [sys.executable, "-m", "tests.lab.chat", question]
        done = self.lab.desk(command, environment=self._environment(), timeout_s=300)
        if done.returncode:
            raise LabError(f"no answer to {question!r}:\n{done.stderr[-3000:]}")
        return done.stdout

    def _environment(self, ssh_config: Path | None = None) -> dict[str, str]:
        return {
            "HOMESPLIT_HOME": str(self.home),
            "HOMESPLIT_SSH_CONFIG": str(ssh_config or self.lab.ssh_config),
        }

    def json(
        self, *words: str, timeout_s: float = 300.0, ssh_config: Path | None = None
    ) -> dict[str, Any]:
        """The one JSON document of a command that must end well."""
        done = self.run(*words, "--json", timeout_s=timeout_s, ssh_config=ssh_config)
        if done.returncode:
            said = done.stderr[-3000:]
            raise LabError(f"homesplit {' '.join(words)} ended with {done.returncode}:\n{said}")
        return cast("dict[str, Any]", json.loads(done.stdout))


def discovered(
    road: Road, *words: str, usable: Sequence[str], ssh_config: Path | None = None
) -> dict[str, Any]:
    """What discovery lists, by name; looked for again while one of these can't be used.

    On a busy computer an SSH server may answer later than discovery waits for it.
    """
    found: dict[str, Any] = {}
    for _ in range(_LOOKS):
        told = road.json("discover", *words, ssh_config=ssh_config)["boxes"]
        found = {box["name"]: box for box in told}
        if all(name in found and found[name]["usable"] for name in usable):
            break
    return found


def box_platform(lab: RunningLab, box: str) -> str:
    """A box's kind, as `homesplit up --fetch-only --platform` names it."""
    ask = "import platform as p, sys; v = sys.version_info; print(p.machine(), v[0], v[1])"
    machine, major, minor = lab.box(box, ["/usr/bin/python3", "-c", ask]).stdout.split()
    return f"linux-{machine}-py{major}.{minor}-cpu"


def fetch_packages(platform: str) -> None:
    """Fetch what boxes of a kind need, here, where there is internet."""
    command = [*COMMAND, "up", "--fetch-only", "--platform", platform]
    done = subprocess.run(command, text=True, capture_output=True, timeout=1200)
    if done.returncode:
        raise LabError(f"fetching packages for {platform}: {done.stderr[-2000:]}")


def files_of(lab: RunningLab, box: str) -> list[str]:
    """Every file and folder of a box's owner, and in /tmp."""
    return sorted(lab.box(box, ["find", "/home/owner", "/tmp"]).stdout.splitlines())


def processes_of(lab: RunningLab, box: str) -> list[str]:
    """Every process of a box's owner, apart from the one that asks."""
    program = (
        "import glob, os\n"
        "for path in glob.glob('/proc/[0-9]*'):\n"
        "    try:\n"
        "        mine = os.stat(path).st_uid == os.getuid()\n"
        "        words = open(path + '/cmdline').read().replace(chr(0), ' ').strip()\n"
        "    except OSError:\n"
        "        continue\n"
        "    if mine and os.path.basename(path) != str(os.getpid()) and 'sshd' not in words:\n"
        "        print(words)\n"
    )
    return sorted(lab.box(box, ["/usr/bin/python3", "-c", program]).stdout.splitlines())
