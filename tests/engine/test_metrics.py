"""What `/metrics` says of boxes that come and go, and of answers that were not written out."""

from __future__ import annotations

from typing import Any

from homesplit_engine.records import RequestRecord, WorkerStatus
from homesplit_engine.router.metrics import Metrics

BUSY = WorkerStatus(
    box="a",
    running=3,
    waiting=2,
    reserved=0,
    blocks_free=1,
    blocks_total=4,
    clock_s=0.0,
    power_w=9.0,
)


def lines(metrics: Metrics, *boxes: tuple[str, bool, WorkerStatus | None]) -> dict[str, float]:
    """The figures of a page by series."""
    page = metrics.page(boxes).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in page if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_a_lost_box_has_no_requests_and_no_cache_until_it_is_back() -> None:
    metrics = Metrics("tiny", None, None)
    ours = '{engine="a",model_name="tiny"}'
    told = {
        f"vllm:num_requests_running{ours}": 3.0,
        f"vllm:num_requests_waiting{ours}": 2.0,
        f"vllm:kv_cache_usage_perc{ours}": 0.75,
        f"homesplit:power_watts{ours}": 9.0,
    }
    for usable in (True, False, True):
        page = lines(metrics, ("a", usable, BUSY))
        assert page[f"homesplit:worker_usable{ours}"] == usable
        assert {name: page[name] for name in told if name in page} == (told if usable else {})


def test_a_prompt_that_was_read_counts_whatever_became_of_its_answer() -> None:
    metrics = Metrics("tiny", None, None)
    given: dict[str, Any] = {
        "mode": "colocated",
        "served": "colocated",
        "prefill": "whole",
        "prefill_box": "a",
        "decode_box": "a",
        "why": "",
        "prompt_tokens": 10,
        "received_s": 0.0,
    }
    begun: dict[str, Any] = {"output_tokens": 2, "token_s": (0.1, 0.2), "cached_tokens": 4}
    for outcome in ("completed", "cancelled"):
        record = RequestRecord(request_id=outcome, outcome=outcome, **given, **begun)
        metrics.request(record, {})
    refused = RequestRecord(request_id="r", outcome="rejected", output_tokens=0, **given)
    metrics.request(refused, {})
    page = lines(metrics)
    wanted = {
        "prompt_tokens": 20.0,
        "generation_tokens": 4.0,
        "prompt_tokens_cached": 8.0,
        "prefix_cache_queries": 20.0,
        "prefix_cache_hits": 8.0,
    }
    found = {name: page[f'vllm:{name}_total{{model_name="tiny"}}'] for name in wanted}
    assert found == wanted
