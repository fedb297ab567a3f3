"""The hardest cells of the fault matrix; `python -m tests.lab.matrix` runs them all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import lab_needs
from tests.lab.api import RunningLab, running_lab
from tests.lab.matrix.__main__ import LINK
from tests.lab.matrix.cells import MODES, MOMENTS, Cell, all_cells, short_cells
from tests.lab.matrix.run import Known, run_cell
from tests.lab.matrix.stand import Stand, standing


def test_every_fault_meets_every_moment_in_every_mode_or_says_why_not() -> None:
    cells = all_cells()
    assert len({cell.name for cell in cells}) == len(cells) == 18 * len(MOMENTS) * len(MODES)
    assert Cell("flip", "idle", "split").why_not
    assert Cell("kill-a", "commit", "replica").why_not
    assert Cell("kill-a", "commit", "split").why_not is None
    assert len(short_cells()) == 6


class Stands:
    """One deployment at a time on one pair of boxes, of the kind that the cell needs."""

    def __init__(self, lab: RunningLab, folder: Path) -> None:
        self._lab = lab
        self._folder = folder
        self._stack = ExitStack()
        self._now: tuple[bool, Stand, Known] | None = None

    def of(self, cell: Cell) -> tuple[Stand, Known]:
        """The deployment for a cell, with its undisturbed answers."""
        if self._now is None or self._now[0] != cell.through_wire:
            self.close()
            stand = standing(self._lab, self._folder, wire=cell.through_wire)
            running = self._stack.enter_context(stand)
            self._now = cell.through_wire, running, Known.learn(running)
        return self._now[1], self._now[2]

    def close(self) -> None:
        """End what runs."""
        self._now = None
        self._stack.close()


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stands]:
    assert not lab_needs()
    with running_lab(2, LINK) as lab:
        running = Stands(lab, tmp_path_factory.mktemp("matrix"))
        try:
            yield running
        finally:
            running.close()


CELLS = sorted(short_cells(), key=lambda cell: cell.through_wire)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_no_text_changes(stands: Stands, cell: Cell) -> None:
    stand, known = stands.of(cell)
    result = run_cell(stand, cell, known)
    # How long a pause was depends on what else this computer does.
    assert [why for why in result.why if not why.startswith("paused")] == []
