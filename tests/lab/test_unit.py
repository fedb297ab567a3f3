"""Where systemd keeps a user's services past the log-in, an engine is one: a real `--user` one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.lab.api import running_lab
from tests.lab.road import Road, files_of, processes_of
from tests.lab.user_manager import user_manager

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

UNIT = "homesplit-worker.service"


def test_a_worker_is_a_unit_of_its_user_that_outlives_the_log_in_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with running_lab(1, "loopback") as lab:
        home = tmp_path / "home"
        road = Road(lab, home)
        before = files_of(lab, "atlas")
        with user_manager(lab, "atlas") as why:
            if why is not None:
                pytest.skip(f"no systemd runs for a user here: {why}")
            script = [sys.executable, "-m", "tests.lab.scripts.unit_road", "atlas", str(home)]
            settings = {"HOMESPLIT_SSH_CONFIG": str(lab.ssh_config)}
            done = lab.desk(script, environment=settings, timeout_s=300)
            assert done.returncode == 0, done.stderr[-3000:]
            seen = json.loads(done.stdout)
        assert files_of(lab, "atlas") == before
        assert processes_of(lab, "atlas") == []
        assert not road.json("status", "atlas")["deployment"]
    assert seen["unit"] is True
    for moment in ("after_log_out", "again"):
        told = seen[moment]
        assert (told["state"], told["units"]) == ("running", [UNIT]), seen
        group, parent = told["group"]
        assert (group.rsplit("/", 1)[-1], parent) == (UNIT, "systemd"), seen
    assert (seen["killed"]["state"], seen["stopped"]["state"]) == ("crashed", "none")
    assert seen["stopped"]["units"] == []
