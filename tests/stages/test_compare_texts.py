"""How much text is compared: less on slow boxes, never none."""

from __future__ import annotations

import pytest
from homesplit_engine.words import Figures
from msgspec.structs import replace

from homesplit.core.load import LoadPlan
from homesplit.core.summary import summarise
from homesplit.core.workload import Targets
from homesplit.stages.compare_texts import Size, size_for


def figures(ttft_s: float | None, tpot_s: float | None) -> Figures:
    """Figures with only the two medians in them."""
    nothing = LoadPlan(workload="none", seed=1, seconds=1.0, closed=False, requests=())
    plain = summarise(nothing, (), Targets()).figures
    middle = replace(plain.ttft_s, p50=ttft_s)
    return replace(plain, ttft_s=middle, tpot_s=replace(plain.tpot_s, p50=tpot_s))


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "modes", "size"),
    [
        (0.1, 0.05, 4, Size()),
        (None, None, 4, Size()),
        (0.5, 0.05, 4, Size()),
        (0.5, 0.08, 4, Size(output_tokens=8, long_tokens=64)),
        (2.0, 0.5, 2, Size(output_tokens=8, long_tokens=64, prompts_each=2)),
        (30.0, 1.0, 4, Size(output_tokens=8, long_tokens=64, prompts_each=1)),
    ],
)
def test_the_slowest_mode_says_how_much_text_is_asked(
    ttft_s: float | None, tpot_s: float | None, modes: int, size: Size
) -> None:
    quick = figures(0.01, 0.01)
    assert size_for([quick, figures(ttft_s, tpot_s)], modes) == size


@pytest.mark.parametrize(("tpot_s", "tokens"), [(0.01, 48), (0.1, 16)])
def test_where_precision_is_lost_answers_are_longer_if_time_allows(
    tpot_s: float, tokens: int
) -> None:
    size = size_for([figures(0.1, tpot_s)], 3, longer=True)
    assert size.output_tokens == tokens and size.whole
