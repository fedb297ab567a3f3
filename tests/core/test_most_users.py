"""How many users at once boxes serve, told where those asked about are too many."""

from __future__ import annotations

import pytest
from msgspec import structs

from homesplit.core.candidates import arrangements, build_scene
from homesplit.core.decide import decide
from homesplit.core.most_users import most_users
from homesplit.core.predict import load_of
from homesplit.core.scene import Arrangement
from homesplit.core.workload import Targets
from tests.core.test_decide import QUICK, ask, load


@pytest.mark.parametrize(
    ("asked", "served", "found", "said"),
    [
        (16, {"colocated": 3, "replica": 6}, 6, "6 users would be served so, with replica"),
        (16, {"colocated": 3, "replica": 3}, 3, "3 users would be served so, with colocated"),
        (2, {"colocated": 1, "replica": 1}, 1, "1 user would be served so, with colocated"),
        (9, {"split": 8, "replica": 1}, 8, "8 users would be served so, with split."),
        (2, {}, 0, "2 users at once are more than these boxes serve inside the targets; not even"),
        (1, {}, 0, "One user is more than these boxes serve inside the targets."),
    ],
)
def test_the_most_is_found_and_goes_to_the_simplest_that_serves_as_many(
    asked: int, served: dict[str, int], found: int, said: str
) -> None:
    question = ask()
    able = arrangements(question, build_scene(question))

    def holds(arrangement: Arrangement, users: int) -> bool:
        assert 0 < users < asked
        return users <= served.get(arrangement.mode, 0)

    most = most_users(asked, able, holds)
    assert most.users == found and said in most.sentence


def test_users_who_are_too_many_are_told_how_many_are_not_and_no_rate() -> None:
    asked = ask(work=load(2000, 100, users=16), targets=Targets(ttft_s=1.0, tpot_s=0.03))
    plan = decide(asked, QUICK)
    assert plan.sustainable is False and plan.most_users is not None
    said = plan.recommendation.sentence
    assert plan.most_users.sentence in said and "at this rate" not in said
    fewer = load(2000, 100, users=plan.most_users.users)
    again = decide(structs.replace(asked, workload=fewer), QUICK)
    assert again.sustainable and again.most_users is None


def test_each_of_many_users_asks_at_least_twice() -> None:
    for users, requests in ((2, 24), (32, 64)):
        load_plan, enough = load_of(load(100, 10, users=users), 24)
        assert enough == requests and len(load_plan.requests) >= requests
