"""What deployment refuses, each in one sentence and before anything is brought to the box."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.lab.desks import settle
from tests.lab.road import discovered, files_of
from tests.lab.stand import Stand, standing

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stand]:
    with standing(tmp_path_factory.mktemp("stand")) as stand:
        yield stand


def as_it_was(stand: Stand) -> bool:
    """Whether nothing is left on the box, once what a log-in started there has ended."""
    return settle(lambda: stand.listing("atlas") == stand.before["atlas"], within_s=60)


@pytest.mark.parametrize(
    ("box", "says"), [("corvo", "corvo"), ("10.77.0.99", "10.77.0.99"), ("nowhere", "nowhere")]
)
def test_a_refused_key_and_a_wrong_host_are_one_sentence(stand: Stand, box: str, says: str) -> None:
    done = stand.ann.run(*stand.words(box))
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_box_known_only_by_its_announcement_can_be_deployed_to(
    stand: Stand, tmp_path: Path
) -> None:
    lines = stand.lab.ssh_config.read_text().splitlines()
    keys = [
        line for line in lines if line.split()[:1] in (["IdentityFile"], ["UserKnownHostsFile"])
    ]
    config = tmp_path / "ssh_config"
    config.write_text("\n".join(["Host *", "  User owner", *dict.fromkeys(keys)]) + "\n")
    boxes = discovered(stand.ann, usable=["atlas"], ssh_config=config)
    assert boxes["atlas"]["usable"], boxes["atlas"]["why"]
    dry = stand.ann.run(*stand.words("atlas")[:-1], "--dry-run", "--json", ssh_config=config)
    assert dry.returncode == 0, dry.stderr
    assert all(change["box"] == "atlas" for change in json.loads(dry.stdout)["changes"])


@pytest.mark.parametrize(
    ("fake", "says"),
    [
        ("#!/bin/sh\necho 3.8.10\n", "no Python 3.11 to 3.13 (only 3.8.10"),
        ("#!/bin/sh\nexit 127\n", "no Python 3.11 to 3.13 (none at all)"),
    ],
)
def test_a_box_whose_python_does_not_fit_is_refused_before_anything_is_brought(
    stand: Stand, fake: str, says: str
) -> None:
    names = [f"/usr/local/bin/python3{minor}" for minor in ("", ".11", ".12", ".13", ".14")]
    write = 'for f in "$@"; do printf %s "$0" >"$f"; chmod 755 "$f"; done'
    assert stand.lab.box("atlas", ["sh", "-c", write, fake, *names], root=True).returncode == 0
    try:
        done = stand.ann.run(*stand.words("atlas"), timeout_s=300)
        assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    finally:
        stand.lab.box("atlas", ["rm", *names], root=True)
    assert as_it_was(stand)


def test_a_full_disk_is_told_before_anything_is_brought(stand: Stand) -> None:
    folder = "/home/owner/.local"
    make = (
        f"mkdir {folder} && mount -t tmpfs -o size=60m,mode=755,uid=$(id -u owner) tmpfs {folder}"
    )
    made = stand.lab.box("atlas", ["sh", "-c", make], root=True)
    assert made.returncode == 0, made.stderr
    try:
        done = stand.ann.run(*stand.words("atlas"), timeout_s=300)
        assert (done.returncode, "GB free" in done.stderr) == (1, True), done.stderr
        assert files_of(stand.lab, "atlas") == sorted([*stand.before["atlas"][0], folder])
    finally:
        stand.lab.box("atlas", ["sh", "-c", f"umount {folder} && rmdir {folder}"], root=True)
    assert as_it_was(stand)
