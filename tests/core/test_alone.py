"""Targets and a load from requests that had the boxes to themselves."""

from __future__ import annotations

import pytest

from homesplit.core.alone import alone, rounded_up
from homesplit.core.measured import RequestLog


def log(number: int, *, first_s: float, last_s: float, tokens: int) -> RequestLog:
    return RequestLog(
        id=number,
        request_id=f"r{number}",
        class_="short",
        due_s=0.0,
        sent_s=0.0,
        outcome="completed",
        arrival_s=(first_s, last_s),
        prompt_tokens_asked=10,
        output_tokens_asked=tokens,
        output_tokens=tokens,
    )


def test_targets_are_multiples_of_what_a_request_takes_alone() -> None:
    found = alone(
        [log(1, first_s=0.1, last_s=1.1, tokens=11), log(2, first_s=0.4, last_s=1.4, tokens=11)]
    )
    assert found is not None
    assert (found.targets.ttft_s, found.targets.tpot_s) == (1.2, 0.2)
    assert found.rate_requests_per_s == pytest.approx(0.45 / 1.25)


def test_nothing_completed_gives_no_targets() -> None:
    assert alone([]) is None


@pytest.mark.parametrize(
    ("value", "plain"), [(1.0, 1.0), (1.3, 1.5), (0.041, 0.05), (9.2, 10.0), (120.0, 120.0)]
)
def test_a_target_is_the_next_plain_figure(value: float, plain: float) -> None:
    assert rounded_up(value) == plain
