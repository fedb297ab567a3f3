"""The whole road where a user's systemd keeps services: up, a crash, up again, down, remove."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.lab.desks import ask_router, settle
from tests.lab.stand import BOXES, Stand, standing
from tests.lab.user_manager import user_manager

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1500)]

_LIMIT_S = 150.0
_UNITS = """
export XDG_RUNTIME_DIR="/run/user/$(id -u)"
systemctl --user --no-legend --plain list-units 'homesplit-*' | cut -d ' ' -f 1
"""


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stand]:
    """The first box keeps its owner's services, the second does not."""
    with (
        standing(tmp_path_factory.mktemp("stand")) as stand,
        user_manager(stand.lab, "atlas") as why,
    ):
        if why is not None:
            pytest.skip(f"no systemd runs for a user here: {why}")
        stand.before["atlas"] = stand.listing("atlas")
        yield stand


def units(stand: Stand) -> set[str]:
    """Our services of the first box's owner."""
    return set(stand.lab.box("atlas", ["sh", "-c", _UNITS]).stdout.split())


def states(stand: Stand) -> dict[str, str]:
    """By box, how its worker is."""
    return {box["box"]: box["state"] for box in stand.status(stand.ann)[1]["boxes"]}


def both_serve(stand: Stand, router: str) -> bool:
    workers = ask_router(stand.ann, router, "/homesplit/status")["workers"]
    return all(worker["alive"] for worker in workers)


def test_services_of_a_user_outlive_the_log_in_are_told_when_they_die_and_leave_nothing(
    stand: Stand,
) -> None:
    plan = stand.ann.json(*stand.words()[:-1], "--dry-run")["changes"]
    told = {change["box"] for change in plan if change["kind"] == "unit"}
    assert told == {"atlas"}

    router = stand.up("--mode", "split")["router_box"]
    services = {"homesplit-worker.service"}
    services |= {"homesplit-router.service"} if router == "atlas" else set()
    # Each command logs in anew: what runs now has outlived the log-in that started it.
    assert units(stand) == services
    assert states(stand) == {"atlas": "running", "borea": "running"}
    assert settle(lambda: both_serve(stand, router), within_s=_LIMIT_S)

    stand.lab.fault("atlas", "kill-engine", match="homesplit_engine worker")
    assert states(stand) == {"atlas": "stopped", "borea": "running"}
    stand.up("--mode", "split")
    assert units(stand) == services
    assert settle(lambda: both_serve(stand, router), within_s=_LIMIT_S)

    assert stand.ann.run("mode", "replica").returncode == 0
    assert stand.ann.run("down").returncode == 0
    assert settle(lambda: not units(stand), within_s=_LIMIT_S)
    assert [stand.engines(box) for box in BOXES] == [[], []]
    for box in BOXES:
        assert stand.ann.run("remove", box, timeout_s=400).returncode == 0
        assert settle(lambda box=box: stand.listing(box) == stand.before[box], within_s=60), box
