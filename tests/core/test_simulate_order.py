"""In what order the simulated router takes what comes at the same moment."""

from __future__ import annotations

import pytest
from msgspec import structs

from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.load import LoadPlan, OfferedRequest, PromptPart
from homesplit.core.sim_placing import LOOP_TOKENS
from homesplit.core.simulate import simulate
from tests.core.test_decide import ask, load


def firsts(*prompts: int) -> list[int]:
    """Ids of requests sent at the same moment, by when their first token came."""
    requests = tuple(
        OfferedRequest(
            id=number,
            class_="k",
            prompt=(PromptPart(seed=number + 1, tokens=tokens),),
            output_tokens=4,
            send_at_s=0.0,
        )
        for number, tokens in enumerate(prompts)
    )
    plan = LoadPlan(workload="w", seed=1, seconds=1.0, closed=False, requests=requests)
    asked = ask(work=load(400, 4))
    scene = structs.replace(build_scene(asked), tokenise_token_s=1e-5)
    whole = next(each for each in arrangements(asked, scene) if each.setting.prefill == "whole")
    records = simulate(scene, whole, plan).records
    return [int(r.timeline.request_id) for r in sorted(records, key=lambda r: r.timeline.token_s)]


@pytest.mark.parametrize("prompts", [(400, 300, 350), (300, 400, 260), (260, 300, 400)])
def test_short_prompts_are_read_in_the_order_in_which_they_came(prompts: tuple[int, ...]) -> None:
    assert firsts(*prompts) == [0, 1, 2]


def test_a_long_prompt_is_tokenised_beside_the_short_ones() -> None:
    assert firsts(8 * LOOP_TOKENS, 300) == [1, 0]
