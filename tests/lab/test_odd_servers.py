"""Real SSH servers and accounts as people have them: each works, or says in a sentence why not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

from tests.conftest import lab_needs
from tests.lab.api import running_lab
from tests.lab.odd_servers import ACCOUNTS, PASSWORD, set_up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

WORKS = {
    "fishy": ACCOUNTS["fishy"].home,
    "tcshy": ACCOUNTS["tcshy"].home,
    "dashy": ACCOUNTS["dashy"].home,
    "spacy": ACCOUNTS["spacy"].home,
    "noisy": ACCOUNTS["noisy"].home,
    "few": "/home/owner",
    "unforwarded": "/home/owner",
    "one_port": "/home/owner",
    "impatient": "/home/owner",
    "jump": "/home/owner",
    "over": "/home/owner",
    "stock": "/home/owner",
    "certified": "/home/owner",
    "by_certificate": "/home/owner",
    "twofold": "/home/owner",
    "terminal": "/home/owner",
}
SAYS = {
    "exact": "did not start `sh` (exit status",
    "curious": "did not start `sh` (exit status",
    "nowhere": "sh: not found",
    "bound": "exec: restricted",
    "closed": "This account is currently not available.",
    "forced": "for backups only",
    "ancient": "it offers only diffie-hellman-group1-sha1",
    "lost": "offered so many keys",
    "unstartable": "its ProxyCommand can't be started",
}


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    """How a visit to each of them went; an agent on the desk holds six keys of strangers."""
    assert not lab_needs()
    folder = tmp_path_factory.mktemp("odd")
    for number in range(6):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / f"k{number}")]
        subprocess.run(key, check=True, timeout=60)
    with running_lab(1, "loopback") as lab:
        config = set_up(lab, "atlas", folder)
        keys = " ".join(f"{folder}/k{number}" for number in range(6))
        agent = f'ssh-add -q {keys} && exec "$@"'
        visit = [sys.executable, "-m", "tests.lab.scripts.visit", str(folder / "home"), PASSWORD]
        command = ["ssh-agent", "sh", "-c", agent, "sh", *visit, *WORKS, *SAYS]
        settings = {"HOMESPLIT_SSH_CONFIG": str(config)}
        done = lab.desk(command, environment=settings, timeout_s=500)
        assert done.returncode == 0, done.stderr[-3000:]
        yield json.loads(done.stdout)


@pytest.mark.parametrize(("host", "home"), WORKS.items())
def test_commands_and_files_come_through_whole(
    visited: dict[str, Any], host: str, home: str
) -> None:
    forwards = {"unforwarded": [False, False], "one_port": [False, True]}.get(host, [True, True])
    assert visited[host] == {"home": home, "whole": True, "forwards": forwards}


@pytest.mark.parametrize(("host", "says"), SAYS.items())
def test_what_cannot_work_says_why(visited: dict[str, Any], host: str, says: str) -> None:
    assert says in visited[host].get("failed", ""), visited[host]


def test_what_was_sent_to_a_box_is_not_in_what_is_said_of_it(visited: dict[str, Any]) -> None:
    assert "#!/" not in str(visited)
    assert "say home" not in visited["curious"]["failed"]
