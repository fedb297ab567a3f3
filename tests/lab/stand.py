"""Two boxes in a lab, two desks that know nothing of each other, and a tiny model to deploy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.conftest import lab_needs
from tests.engine.router_kit import make_tokenizer
from tests.engine.tiny import make_model
from tests.lab.api import running_lab
from tests.lab.desks import settle
from tests.lab.road import Road, box_platform, fetch_packages, files_of, processes_of

BOXES = ("atlas", "borea")
PAIR = ",".join(BOXES)
ROOT = "/home/owner/.local/share/homesplit/box"


class Stand:
    """A lab, two desks that know nothing of each other, and the boxes as they were."""

    def __init__(self, ann: Road, bob: Road, model: Path) -> None:
        self.ann = ann
        self.bob = bob
        self.lab = ann.lab
        self.model = model
        self.before = {box: self.listing(box) for box in BOXES}
        self.said: list[str] = []

    def listing(self, box: str) -> tuple[list[str], list[str]]:
        """Files and processes of a box; what Python compiles as it goes is left out."""
        files = [path for path in files_of(self.lab, box) if "__pycache__" not in path]
        return files, processes_of(self.lab, box)

    def at_rest(self) -> dict[str, tuple[list[str], list[str]]]:
        """Both boxes, once what watched over a start has ended."""

        def quiet() -> bool:
            lines = [line for box in BOXES for line in processes_of(self.lab, box)]
            return not [line for line in lines if "/run/launch" in line or "sleep" in line]

        assert settle(quiet, within_s=60)
        return {box: self.listing(box) for box in BOXES}

    def words(self, boxes: str = PAIR) -> tuple[str, ...]:
        """The command that deploys."""
        return ("up", "--boxes", boxes, "--model", str(self.model), "--threads", "1", "--yes")

    def up(self, *options: str) -> dict[str, Any]:
        """Deploy as the first desk."""
        done = self.ann.run(*self.words(), *options, "--json", timeout_s=900)
        assert done.returncode == 0, done.stderr[-3000:]
        self.said += [done.stdout, done.stderr]
        return json.loads(done.stdout)

    def status(self, road: Road, *boxes: str) -> tuple[int, dict[str, Any]]:
        """Exit code and deployment."""
        done = road.run("status", *boxes, "--json")
        self.said += [done.stdout, done.stderr]
        return done.returncode, json.loads(done.stdout)["deployment"]

    def engines(self, box: str) -> list[str]:
        """Engine processes there."""
        return [line for line in processes_of(self.lab, box) if "homesplit" in line]


@contextlib.contextmanager
def standing(folder: Path) -> Generator[Stand]:
    """Two boxes on a quick link and one that refuses the key."""
    assert not lab_needs()
    model = make_model(folder / "model" / "tiny", vocab_size=300, max_position_embeddings=1024)
    make_tokenizer(model)
    with running_lab(2, "loopback", odd="refuse") as lab:
        fetch_packages(box_platform(lab, "atlas"))
        yield Stand(Road(lab, folder / "ann"), Road(lab, folder / "bob"), model)
