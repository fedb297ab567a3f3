"""Requests that are measured alone come one after another, some of each class."""

from __future__ import annotations

from homesplit.io.paths import user_paths
from homesplit.io.profiles import load_workload
from homesplit.stages.own_targets import EACH_CLASS, plan_alone


def test_each_request_waits_for_the_one_before_it() -> None:
    plan = plan_alone(load_workload("demo", user_paths()))
    assert [request.id for request in plan.requests] == list(range(2 * EACH_CLASS))
    assert [request.after for request in plan.requests] == [None, 0, 1, 2]
    assert [request.class_ for request in plan.requests] == ["short", "short", "long", "long"]
