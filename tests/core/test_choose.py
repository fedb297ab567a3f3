"""Which of several outlooks is chosen: the simplest of those that can't be told from the best."""

from __future__ import annotations

import pytest
from homesplit_engine.records import Mode
from msgspec import structs

from homesplit.core.choose import choose
from homesplit.core.decide import decide
from homesplit.core.explain import verdict
from homesplit.core.predict import Outlook
from homesplit.core.workload import Targets
from tests.core.test_decide import QUICK, ask, looks

TARGETS = Targets(ttft_s=1.0, tpot_s=0.1)


def of(mode: Mode, goodput: float, doubt: float) -> Outlook:
    made = looks(ask(targets=TARGETS), mode, requests=4)[0]
    figures = structs.replace(made.figures, goodput_requests_per_s=goodput, attainment=0.9)
    return structs.replace(made, figures=figures, doubt=doubt)


@pytest.mark.parametrize(
    ("one_box", "doubt", "mode"),
    [
        (0.98, 0.0, "colocated"),
        (0.96, 0.0, "replica"),
        (0.96, 0.05, "colocated"),
        (0.93, 0.05, "replica"),
        (0.93, 0.08, "colocated"),
        (0.85, 0.5, "replica"),
    ],
)
def test_a_lead_that_is_smaller_than_what_the_fits_miss_by_is_a_tie(
    one_box: float, doubt: float, mode: Mode
) -> None:
    choice = choose([of("replica", 1.0, doubt), of("colocated", one_box, doubt)], TARGETS)
    assert choice.best.arrangement.mode == mode
    assert choice.tie == (mode == "colocated")


def test_the_verdict_says_what_a_tie_within_the_calibrations_error_is() -> None:
    choice = choose([of("replica", 1.0, 0.05), of("colocated", 0.96, 0.05)], TARGETS)
    asked = ask(targets=TARGETS)
    told = verdict(asked, choice, (), None, decide(asked, QUICK).rules)
    assert "its lead of 4 % is less than the 5 % that the boxes' calibration is off by" in told
    assert "adds nothing that could be told" in told
