"""The table of `homesplit compare`."""

from __future__ import annotations

import pytest

from homesplit.cli.compare import show
from homesplit.core.compare_result import CompareResult, verdict
from tests.core.test_verdict import QUICK, runs


def test_a_short_name_and_its_prediction_begin_their_figures_in_one_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    modes = (runs("split", [QUICK] * 4),)
    show(
        CompareResult(
            modes=modes,
            verdict=verdict(modes, None),
            identical_text=None,
            compared_prompts=0,
            repeats=1,
            seed=1,
            loopback=None,
        )
    )
    measured, predicted = capsys.readouterr().out.splitlines()[:2]
    assert measured.index("4/4 done") == predicted.index("nothing: ") == len("  predicted  ")
