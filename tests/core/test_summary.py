"""The figures of a run, and what is said where there are none."""

from __future__ import annotations

from msgspec.structs import replace

from homesplit.core.bench_result import figures_document
from homesplit.core.load import plan_load
from homesplit.core.measured import RequestLog
from homesplit.core.summary import summarise
from homesplit.core.workload import Arrivals, LengthClass, Targets, Workload

KIND = LengthClass(
    name="short",
    share=1.0,
    prompt_tokens_low=8,
    prompt_tokens_high=8,
    output_tokens_low=2,
    output_tokens_high=2,
)
WORKLOAD = Workload(
    name="two users",
    classes=(KIND,),
    arrivals=Arrivals(kind="closed", users=2),
    targets=Targets(ttft_s=None, tpot_s=None),
    source="typed",
)
FIRST = RequestLog(
    id=0,
    request_id="a",
    class_="short",
    due_s=0.0,
    sent_s=0.0,
    outcome="completed",
    arrival_s=(9.0, 10.0),
    arrival_tokens=(1, 1),
    ended_s=10.0,
    prompt_tokens_asked=8,
    output_tokens_asked=2,
)


def test_a_run_whose_requests_all_began_in_the_warm_up_says_what_to_do() -> None:
    plan = plan_load(WORKLOAD, seed=1, seconds=10.0)
    said = summarise(plan, [FIRST], WORKLOAD.targets).no_data
    assert said is not None
    assert "every request (1) was due in the warm-up or the drain" in said
    assert "--warm-up 0 --drain 0" in said
    assert summarise(plan, [FIRST], WORKLOAD.targets, warm_up=0.0, drain=0.0).no_data is None


def test_a_run_without_requests_does_not_blame_the_warm_up() -> None:
    said = summarise(plan_load(WORKLOAD, seed=1, seconds=10.0), [], WORKLOAD.targets).no_data
    assert said == "no data: no request was offered"


def refused(number: int) -> RequestLog:
    return replace(
        FIRST,
        id=number,
        request_id=str(number),
        outcome="rejected",
        arrival_s=(),
        arrival_tokens=(),
        ended_s=0.001,
        status=503,
        error="503 too busy",
    )


def test_a_run_that_served_nobody_has_counts_and_no_figure_at_all() -> None:
    plan = plan_load(WORKLOAD, seed=1, seconds=10.0)
    found = summarise(
        plan, [refused(n) for n in range(60)], WORKLOAD.targets, warm_up=0.0, drain=0.0
    )
    assert found.no_data is not None and "60 times: 503 too busy" in found.no_data
    document = figures_document(found)
    for told in (document, document["by_class"]["short"]):
        assert (told["offered"], told["rejected"], told["inside"]) == (60, 60, 0)
        rates = ("goodput_requests_per_s", "goodput_tokens_per_s", "throughput_tokens_per_s")
        assert all(told[name] is None for name in ("attainment", *rates))
    assert all(interval is None for interval in document["intervals"].values())
    assert document["no_data"] == found.no_data


def test_all_inside_is_no_certainty() -> None:
    plan = plan_load(WORKLOAD, seed=1, seconds=10.0)
    logs = [replace(FIRST, id=n, request_id=str(n)) for n in range(30)]
    found = summarise(plan, logs, WORKLOAD.targets, warm_up=0.0, drain=0.0)
    share, good = found.intervals["attainment"], found.intervals["goodput_requests_per_s"]
    assert share is not None and good is not None
    assert (share.value, share.high) == (1.0, 1.0)
    # Wilson's lower end of 30 of 30.
    assert round(share.low, 3) == 0.886
    assert (good.low, good.high) == (share.low * 3.0, 3.0)


def test_one_answer_in_a_thousand_gives_its_own_figures_and_no_average_with_refusals() -> None:
    plan = plan_load(WORKLOAD, seed=1, seconds=10.0)
    logs = [FIRST, *(refused(n) for n in range(1, 1000))]
    found = summarise(plan, logs, WORKLOAD.targets, warm_up=0.0, drain=0.0)
    figures = found.figures
    assert (figures.offered, figures.completed, figures.rejected) == (1000, 1, 999)
    assert (figures.ttft_s.count, figures.ttft_s.p50, figures.ttft_s.p99) == (1, 9.0, 9.0)
    assert figures.attainment == 0.001
    assert figures.throughput_tokens_per_s == 2 / figures.window_s
    assert figures.window_s == 10.0
    assert any("not served: 999 times: 503 too busy" in note for note in found.notes)
