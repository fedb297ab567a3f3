"""Deployment to two real boxes when it goes wrong: interrupted, contested, broken, removed.

The tests share one deployment of a tiny model and run in the order in which they stand.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from tests.lab.desks import Broken, ask_router, asked_from, listening, settle
from tests.lab.road import processes_of
from tests.lab.stand import BOXES, ROOT, Stand, standing

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(1500)]


LIMIT_S = 150.0
"""A limit, not a wait: on a busy computer everything takes many times as long."""


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stand]:
    with standing(tmp_path_factory.mktemp("stand")) as stand:
        yield stand


def pids(deployment: dict[str, Any]) -> dict[str, int]:
    return {box["box"]: box["pid"] for box in deployment["boxes"]}


# ------------------------------------------------------------------------- deployed


def test_an_up_that_was_killed_midway_is_continued(stand: Stand) -> None:
    broken = Broken(stand.ann, *stand.words())
    broken.until(*(f"{box}: installing the engine's packages" for box in BOXES))
    broken.kill()
    told = stand.ann.run("status", "--json")
    assert told.returncode == 1
    lying = {there["box"]: there for there in json.loads(told.stdout)["brought"]}
    for box in BOXES:
        kinds = {piece["kind"]: piece["bytes"] for piece in lying[box]["pieces"]}
        assert (lying[box]["folder"], kinds["uv"] > 0) == (ROOT, True)
        assert kinds.get("packages", 0) > 0 or kinds["environment"] > 0
    # An installation may still be at work there: the next `up` ends it before it begins its own.
    left = [line for box in BOXES for line in stand.engines(box)]
    assert [line for line in left if "homesplit_engine" in line] == []
    deployment = stand.up()
    assert [box["state"] for box in deployment["boxes"]] == ["running", "running"]
    sent = [line for line in stand.said[-1].splitlines() if "packages: " in line]
    counts = [line.split("packages: ")[1].split(" MB")[0].split(" of ") for line in sent]
    assert [done for done, total in counts if 0 < int(done) < int(total)] == []


def test_repeating_up_changes_nothing(stand: Stand) -> None:
    was = stand.at_rest()
    _, before = stand.status(stand.ann)
    dry = stand.ann.json(*stand.words()[:-1], "--dry-run")
    assert [change for change in dry["changes"] if change["needed"]] == []
    again = stand.up()
    assert (again["id"], pids(again)) == (before["id"], pids(before))
    assert stand.at_rest() == was


def test_a_second_desk_is_told_who_holds_the_boxes_and_looks_on(stand: Stand) -> None:
    was = stand.at_rest()
    _, own = stand.status(stand.ann)
    for words in (stand.words(), ("remove", "atlas")):
        refused = stand.bob.run(*words)
        assert refused.returncode == 1
        assert "held by" in refused.stderr
    code, seen = stand.status(stand.bob, *BOXES)
    assert code == 0
    assert "held by" in seen["held_by"]
    for key in ("id", "model", "setting", "router_box", "router_port", "router_state"):
        assert seen[key] == own[key], key
    assert pids(seen) == pids(own)
    assert stand.status(stand.bob) == (0, None)
    assert stand.at_rest() == was


def test_workers_listen_where_they_were_told_and_the_api_on_loopback_with_its_key(
    stand: Stand,
) -> None:
    _, deployment = stand.status(stand.ann)
    router = (deployment["router_box"], deployment["router_port"])
    for box in deployment["boxes"]:
        assert box["address"] == stand.lab.address(box["box"])
        first = router[1] - 2
        expected = {(box["address"], first), (box["address"], first + 1)}
        if box["box"] == router[0]:
            expected.add(("127.0.0.1", router[1]))
        assert listening(stand.ann, box["box"]) == expected
    assert ask_router(stand.ann, router[0], "/v1/models", key=False) == {"refused": 401}
    workers = ask_router(stand.ann, router[0], "/homesplit/status")["workers"]
    assert [worker["alive"] for worker in workers] == [True, True]


def test_the_api_is_offered_in_the_network_only_when_asked_and_only_with_its_key(
    stand: Stand,
) -> None:
    _, deployment = stand.status(stand.ann)
    before, router = pids(deployment), deployment["router_box"]
    other = next(box for box in BOXES if box != router)
    host = stand.lab.address(router)
    url = f"http://{host}:{deployment['router_port']}/v1/models"
    key = (stand.ann.home / "data/deployments/secrets/api.key").read_text().strip()
    asked = stand.up("--listen", host)
    assert (asked["api_address"], pids(asked)) == (host, before)
    assert [asked_from(stand.ann, other, url, given) for given in (key, "guess")] == [200, 401]
    assert stand.status(stand.bob, *BOXES)[1]["api_address"] == host
    assert stand.up()["api_address"] is None
    assert "refused" in str(asked_from(stand.ann, other, url, key)).lower()


def test_no_secret_is_in_arguments_logs_status_plan_or_notebook(stand: Stand) -> None:
    secrets: set[str] = set()
    folder = stand.ann.home / "data/deployments/secrets"
    assert folder.stat().st_mode & 0o077 == 0
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
        text = path.read_text().strip()
        secrets.add(json.loads(text)["secret"] if path.suffix == ".keys" else text)
    assert len(secrets) == 4
    told = list(stand.said)
    told += [json.dumps(stand.ann.json(*stand.words()[:-1], "--dry-run"))]
    told += [json.dumps(stand.status(stand.ann)[1])]
    kept = [p for p in stand.ann.home.rglob("*") if p.is_file() and folder not in p.parents]
    told += [p.read_bytes().decode(errors="replace") for p in kept if "cache" not in p.parts]
    for box in BOXES:
        told += processes_of(stand.lab, box)
        told.append(stand.lab.box(box, ["sh", "-c", f"cat {ROOT}/run/*.log"]).stdout)
        loose = stand.lab.box(box, ["find", f"{ROOT}/run", "-type", "f", "-perm", "/077"]).stdout
        assert loose == ""
        grep = ["grep", "-rlFf", "-", ROOT, "--exclude-dir=env"]
        found = stand.lab.box(box, grep, text="\n".join(secrets)).stdout.split()
        allowed = {f"{ROOT}/run/{name}" for name in ("worker.keys", "router.keys", "api.key")}
        assert set(found) - allowed == set()
        assert f"{ROOT}/run/worker.keys" in found
    assert [secret for secret in secrets if any(secret in text for text in told)] == []


def test_a_worker_that_dies_is_started_again_by_its_supervisor_without_a_desk(
    stand: Stand,
) -> None:
    def worker() -> str:
        return stand.lab.box("borea", ["pgrep", "-f", "homesplit_engine worker .*--parent"]).stdout

    before, first = pids(stand.status(stand.ann)[1]), worker()
    stand.lab.fault("borea", "kill-engine", match=r"homesplit_engine worker .*--parent")
    assert settle(lambda: worker() not in ("", first), within_s=LIMIT_S)

    def is_back() -> bool:
        code, deployment = stand.status(stand.ann)
        return code == 0 and all(box["state"] == "running" for box in deployment["boxes"])

    assert settle(is_back, within_s=LIMIT_S)
    assert pids(stand.status(stand.ann)[1]) == before


def test_a_worker_killed_with_its_supervisor_is_told_and_only_it_is_started_again(
    stand: Stand,
) -> None:
    before = pids(stand.status(stand.ann)[1])
    stand.lab.fault("borea", "kill-engine", match="homesplit_engine worker")
    code, deployment = stand.status(stand.ann)
    states = {box["box"]: box["state"] for box in deployment["boxes"]}
    assert (code, states) == (1, {"atlas": "running", "borea": "stopped"})
    routers = [line for line in stand.engines("atlas") if "router" in line]
    after = stand.up()
    assert pids(after)["atlas"] == before["atlas"]
    assert pids(after)["borea"] != before["borea"]
    assert [line for line in stand.engines("atlas") if "router" in line] == routers
    assert stand.status(stand.ann)[0] == 0

    def both_serve() -> bool:
        workers = ask_router(stand.ann, after["router_box"], "/homesplit/status")["workers"]
        return all(worker["alive"] for worker in workers)

    assert settle(both_serve, within_s=LIMIT_S)


# ------------------------------------------------------------------------- left


def test_a_cut_link_while_it_starts_leaves_nothing_running(stand: Stand) -> None:
    assert stand.ann.run("down").returncode == 0
    assert [stand.engines(box) for box in BOXES] == [[], []]
    broken = Broken(stand.ann, *stand.words())
    broken.until("atlas: starting the worker")
    stand.lab.fault("atlas", "cut-link")
    try:
        code, said = broken.end(timeout_s=180)
        assert (code, "atlas" in said.splitlines()[-1]) == (1, True), said
        for box in BOXES:
            assert settle(lambda box=box: stand.engines(box) == [], within_s=LIMIT_S), box
    finally:
        stand.lab.fault("atlas", "restore-link")
    assert [box["state"] for box in stand.up()["boxes"]] == ["running", "running"]


def test_remove_leaves_each_box_as_it_was_though_interrupted_and_the_other_unreachable(
    stand: Stand,
) -> None:
    stand.lab.fault("borea", "cut-link")
    try:
        failed = stand.ann.run("remove", "borea")
        assert (failed.returncode, "borea" in failed.stderr) == (1, True)
        assert stand.ann.run("remove", "atlas", timeout_s=400).returncode == 0
        assert stand.listing("atlas") == stand.before["atlas"]
    finally:
        stand.lab.fault("borea", "restore-link")
    broken = Broken(stand.ann, "remove", "borea")
    broken.until("deleting its folder")
    broken.kill()
    assert stand.ann.run("remove", "borea", timeout_s=400).returncode == 0
    assert stand.listing("borea") == stand.before["borea"]
    assert stand.status(stand.ann) == (0, None)
    assert list((stand.ann.home / "data/deployments").glob("secrets*")) == []
